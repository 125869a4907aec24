// Where one head of one batch entry lies in the tensors of attention, as kernels see it.
#pragma once

#include "kernels/cuda/attention.h"
#include "kernels/cuda/dropout.cuh"

namespace trivet {

// Whether the dropout keeps an element.
__device__ inline bool dropout_keeps_here(int64_t index, uint64_t seed, uint64_t site, uint32_t threshold) {
  const PhiloxWords words = philox4x32(static_cast<uint64_t>(index) / 4, site, seed);
  const int word = static_cast<int>(index & 3);
  return (word == 0 ? words.w[0] : word == 1 ? words.w[1] : word == 2 ? words.w[2] : words.w[3]) >= threshold;
}
// The same in a function of its own: the generator's registers are not kept free for it where nothing is dropped.
__device__ __noinline__ static bool dropout_keeps(int64_t index, uint64_t seed, uint64_t site, uint32_t threshold) {
  return dropout_keeps_here(index, seed, site, threshold);
}
__device__ inline float dropout_scale(const DropoutArgs& d, int64_t index) {
  return dropout_keeps(index, d.seed, d.site, d.threshold) ? d.kept : 0.0f;
}

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

  // Global index of the probability of (query, key 0), for dropout.
  __device__ int64_t dropout_row(int which, int query) const {
    const int64_t batch = which / heads, head = which % heads;
    return (((dropout.first_sample + batch) * dropout.total_heads + dropout.first_head + head) * dropout.seq_length +
            query) *
           dropout.seq_length;
  }
};

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
