// The optimizer step: whether it is accepted, where a rejected step went wrong, and AdamW.
//
// AdamW is fused with rounding the new weight into the model's weight: one pass over all optimizer memory, 30 bytes per
// element, which is its entire cost. All shards share one launch, or a few, because many are biases of a few thousand
// elements, for which a launch of their own would take longer than the work.
#include "base/piece.h"
#include "kernels/cuda/chunk_table.cuh"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/pack.cuh"

namespace trivet {
namespace {

struct Shard {
  float* weight;
  const float* grad;
  float *m, *v;
  __nv_bfloat16* model_weight;  // or null
  int64_t n;
  bool decays, vectors, model_vectors;  // 16-byte accesses: to fp32 (vectors), to the model's weight (model_vectors)
};
using Shards = ChunkTable<Shard, piece(200, 3)>;  // one chunk per block

// ---- kernels

// Each block handles kBlockThreads packs of one shard, one per thread. Shards may begin at any element, so each array
// may have any alignment.
__global__ void __launch_bounds__(kBlockThreads) adamw_kernel(const __grid_constant__ Shards shards, AdamWConstants c,
                                                              const float* grad_scale, const float* accepted) {
  if (accepted && *accepted == 0) return;
  const int which = shards.find(blockIdx.x);
  const Shard& p = shards.entry[which];
  const int64_t block = blockIdx.x - shards.first[which], i = (block * kBlockThreads + threadIdx.x) * kPack, n = p.n;
  if (i >= n) return;
  const float scale = grad_scale[0], decay = p.decays ? c.decay : 0.0f;
  with_flag(is_whole(i, n, p.vectors), [&](auto whole) {
    const Pack gradient = load_pack(p.grad, i, n, whole);
    Pack w = load_pack(p.weight, i, n, whole), first = load_pack(p.m, i, n, whole),
         second = load_pack(p.v, i, n, whole);
#pragma unroll
    for (int k = 0; k < kPack; ++k) {
      const float g = gradient.v[k] * scale;
      first.v[k] = c.beta1 * first.v[k] + c.one_minus_beta1 * g;
      second.v[k] = c.beta2 * second.v[k] + c.one_minus_beta2 * (g * g);
      const float root = sqrtf(second.v[k]) * c.root_correction + c.eps;
      w.v[k] -= c.step_size * first.v[k] / root + decay * w.v[k];
    }
    store_pack(p.m, i, n, whole, first);
    store_pack(p.v, i, n, whole, second);
    store_pack(p.weight, i, n, whole, w);
    if (p.model_weight) store_pack(p.model_weight, i, n, p.model_vectors, w);
  });
}

// One thread, as there are only a few numbers.
__global__ void accept_step_kernel(const float* numbers, int n, StepLimits limits, float* accepted) {
  bool passes = true;
  for (int i = 0; i < n; ++i) passes &= isfinite(numbers[i]) ? numbers[i] <= limits.at_most[i] : !limits.finite;
  *accepted = passes ? 1.0f : 0.0f;
}

// Each thread strides over packs of x, and writes only if it has found an element that is not finite.
__global__ void __launch_bounds__(kBlockThreads)
    find_non_finite_kernel(const float* x, int64_t n, bool vectors, const float* accepted, unsigned long long* found) {
  if (accepted && *accepted != 0) return;
  long long mark = 0;
  unsigned long long nans = 0, infinities = 0;
  for (int64_t i = (static_cast<int64_t>(blockIdx.x) * kBlockThreads + threadIdx.x) * kPack; i < n;
       i += static_cast<int64_t>(gridDim.x) * kBlockThreads * kPack) {
    const Pack pack = load_pack(x, i, n, vectors);  // zeros from n on
#pragma unroll
    for (int k = 0; k < kPack; ++k) {
      if (isfinite(pack.v[k])) continue;
      const bool infinite = !isnan(pack.v[k]);
      mark = max(mark, static_cast<long long>(non_finite_mark(i + k, infinite)));
      nans += infinite ? 0 : 1;
      infinities += infinite ? 1 : 0;
    }
  }
  if (mark == 0) return;
  atomicMax(found, static_cast<unsigned long long>(mark));
  atomicAdd(found + 1, nans);
  atomicAdd(found + 2, infinities);
}

}  // namespace

// ---- launchers

void CudaOps::launch(const op::AcceptStep& op, cudaStream_t stream) {
  launch_kernel(accept_step_kernel, {1, 1, stream}, op.numbers.as<float>(), static_cast<int>(op.numbers.numel()),
                op.limits, op.accepted.as<float>());
}

void CudaOps::launch(const op::FindNonFinite& op, cudaStream_t stream) {
  const int64_t grid = std::clamp<int64_t>(ceil_div(op.x.numel(), kBlockThreads * kPack), 1, 8 * multiprocessors_);
  launch_kernel(find_non_finite_kernel, {blocks(grid, op.kSpan.name), kBlockThreads, stream}, op.x.as<float>(),
                op.x.numel(), aligned(op.x), elements<float>(op.accepted),
                static_cast<unsigned long long*>(op.found.data));
}

void CudaOps::launch(const op::AdamWStep& op, cudaStream_t stream) {
  const auto shard_of = [](const AdamWShard& p) {
    return std::pair(Shard{.weight = p.weight.as<float>(),
                           .grad = p.grad.as<float>(),
                           .m = p.m.as<float>(),
                           .v = p.v.as<float>(),
                           .model_weight = elements<bf16>(p.model_weight),
                           .n = p.weight.numel(),
                           .decays = p.decays,
                           .vectors = aligned(p.weight, p.grad, p.m, p.v),
                           .model_vectors = aligned(p.model_weight)},
                     ceil_div(p.weight.numel(), kBlockThreads * kPack));
  };
  launch_tables<Shards>(op.shards, shard_of, [&](const Shards& shards, int64_t chunks) {
    launch_kernel(adamw_kernel, {blocks(chunks, op.kSpan.name), kBlockThreads, stream}, shards, constants_of(op.how),
                  elements<float>(op.grad_scale), elements<float>(op.accepted));
  });
}

}  // namespace trivet
