// Where one head of one batch entry lies in the tensors of attention, as kernels see it.
#pragma once

#include "kernels/cuda/attention.h"
#include "kernels/cuda/dropout.cuh"

namespace trivet {

// AttentionArgs for a kernel: typed, with what does not depend on the head worked out.
template <class T>
struct HeadArgs {
  const T* qkv;
  T* out;
  float* lse;
  const T* dout;
  T* dqkv;
  float* delta;
  int s, heads, d;
  int64_t qkv_stride, out_stride;  // from a position to the next, in elements
  float scale;
  DropoutArgs dropout;

  explicit HeadArgs(const AttentionArgs& a)
      : qkv(static_cast<const T*>(a.qkv)),
        out(static_cast<T*>(a.out)),
        lse(a.lse),
        dout(static_cast<const T*>(a.dout)),
        dqkv(static_cast<T*>(a.dqkv)),
        delta(a.delta),
        s(static_cast<int>(a.s)),
        heads(static_cast<int>(a.heads)),
        d(static_cast<int>(a.d)),
        qkv_stride(a.b * a.heads * 3 * a.d),
        out_stride(a.b * a.heads * a.d),
        scale(a.scale),
        dropout(a.dropout) {}

  // `which` counts heads of batch entries: batch * heads + head. Column 0 of position 0:
  __device__ int64_t qkv_at(int which) const { return static_cast<int64_t>(which) * 3 * d; }  // of q; k at + d, v + 2 d
  __device__ int64_t out_at(int which) const { return static_cast<int64_t>(which) * d; }
  __device__ int64_t lse_at(int which) const { return static_cast<int64_t>(which) * s; }

  // The square that the probability of a query and a key belongs to, for dropout.
  __device__ int64_t dropout_square(int which, int query, int key) const {
    const int64_t batch = which / heads, head = which % heads;
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
