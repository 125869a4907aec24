// Where one head of one batch entry lies in the views of attention, as kernels see it.
#pragma once

#include "kernels/cuda/attention.h"
#include "kernels/cuda/dropout.cuh"

namespace trivet {

// A HeadsView for a kernel.
template <class T>
struct Heads {
  T* data;
  int64_t position, entry, group, member;  // strides

  explicit Heads(const HeadsView& x)
      : data(static_cast<T*>(x.data())),
        position(x.layout.position),
        entry(x.layout.entry),
        group(x.layout.group),
        member(x.layout.member) {}
};

// AttentionArgs for a kernel: typed, with what does not depend on the head worked out.
template <class T>
struct HeadArgs {
  Heads<const T> q, k, v;
  T* out;
  float* lse;
  const T* dout;
  Heads<T> dq, dk, dv;
  float* delta;
  int s, groups, members, d;
  int64_t out_stride;  // of out and dout, from a position to the next
  float scale;
  DropoutArgs dropout;

  explicit HeadArgs(const AttentionArgs& a)
      : q(a.qkv.q),
        k(a.qkv.k),
        v(a.qkv.v),
        out(static_cast<T*>(a.out.data())),
        lse(a.lse),
        dout(static_cast<const T*>(a.dout.data())),
        dq(a.dqkv.q),
        dk(a.dqkv.k),
        dv(a.dqkv.v),
        delta(a.delta),
        s(static_cast<int>(a.s)),
        groups(static_cast<int>(a.groups)),
        members(static_cast<int>(a.members)),
        d(static_cast<int>(a.d)),
        out_stride(a.out.layout.position),
        scale(a.scale),
        dropout(a.dropout) {}

  // `which` counts query heads of batch entries, entry * heads + head, and which / members kv heads, entry * groups +
  // group. Column 0 of position 0:
  template <class U>
  __device__ U* query_head(const Heads<U>& x, int which) const {
    return kv_head(x, which / members) + which % members * x.member;
  }
  template <class U>
  __device__ U* kv_head(const Heads<U>& x, int kv) const {
    return x.data + kv / groups * x.entry + kv % groups * x.group;
  }
  __device__ int64_t out_at(int which) const { return static_cast<int64_t>(which) * d; }
  __device__ int64_t lse_at(int which) const { return static_cast<int64_t>(which) * s; }

  // The square that the probability of a query and a key belongs to, for dropout.
  __device__ int64_t dropout_square(int which, int query, int key) const {
    const int64_t heads = groups * members, batch = which / heads, head = which % heads;
    const int64_t row = (*dropout.first_sample + batch) * dropout.total_heads + dropout.first_head + head;
    const int64_t pairs = dropout_pairs(dropout.seq_length);
    return (row * pairs + dropout_pair(key)) * pairs + dropout_pair(query);
  }
};

// Which of this lane's sums of 16 rows and 8 kBlocks columns (tensor_core.cuh) the dropout keeps: bit 4 n + e for
// sums[n][e]. Rows and columns begin at multiples of 16; one are queries, the others keys. A square is a column of two
// rows and the column 8 further. In a loop that stays one: the generator is long.
template <bool kRowsAreQueries, int kBlocks, class T>
__device__ inline uint64_t kept_by_dropout(const HeadArgs<T>& a, int which, int first_row, int first_column) {
  static_assert(kBlocks <= 16 && kBlocks % 2 == 0);
  constexpr int kNextKey = kRowsAreQueries ? 4 : 2, kNextQuery = kRowsAreQueries ? 2 : 4;  // from bit to bit
  const int lane = threadIdx.x % 32, row = first_row + lane / 4, column = first_column + lane % 4 * 2;
  const DropoutArgs& dropout = a.dropout;
  const int64_t first = kRowsAreQueries ? a.dropout_square(which, row, column) : a.dropout_square(which, column, row);
  const int64_t stride = kRowsAreQueries ? dropout_pairs(dropout.seq_length) : 1;  // from a column's square to the next
  uint64_t kept = 0;
#pragma unroll 1
  for (int i = 0; i < kBlocks; ++i) {
    const int pair = i / 2 * 8 + i % 2;
    const PhiloxWords words =
        philox4x32<kDropoutRounds>(static_cast<uint64_t>(first + pair * stride), dropout.site, dropout.seed);
    const uint32_t four = (words.w[0] >= dropout.threshold ? 1u : 0u) |
                          (words.w[1] >= dropout.threshold ? 1u << kNextKey : 0u) |
                          (words.w[2] >= dropout.threshold ? 1u << kNextQuery : 0u) |
                          (words.w[3] >= dropout.threshold ? 1u << (kNextKey + kNextQuery) : 0u);
    kept |= uint64_t{four} << pair;
  }
  return kept;
}
__device__ inline float dropout_scale(const DropoutArgs& dropout, uint64_t kept, int i) {
  return kept >> i & 1 ? dropout.kept : 0.0f;
}

// Calls f.template operator()<64>(), or with 80, 96 or 128: the head sizes that kernels are compiled for
// (flash_attention_has).
template <class F>
void dispatch_head(int64_t d, F&& f) {
  switch (d) {
    case 64: return f.template operator()<64>();
    case 80: return f.template operator()<80>();
    case 96: return f.template operator()<96>();
    case 128: return f.template operator()<128>();
    default: fail("attention has no kernel for heads of " + std::to_string(d) + " columns");
  }
}

}  // namespace trivet
