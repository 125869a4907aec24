// AdamW, fused with the rounding of the new weight into the model's: one pass over all of the optimizer's memory, 30
// bytes an element, which is all it costs. All pieces go in one launch, or a few: many of them are biases of some
// thousand elements, whose launches would take longer than they.
#include "kernels/adamw_constants.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/piece_table.cuh"

namespace trivet {
namespace {

struct Piece {
  float* weight;
  const float* grad;
  float *m, *v;
  __nv_bfloat16* model_weight;  // or null
  int64_t n;
  bool decays, vectors, model_vectors;  // vectors: of 16 bytes, of fp32 and of the model's
};
using Pieces = PieceTable<Piece, 200>;
constexpr int kThreads = 256;

// ---- kernels

// A block has kThreads packs of one piece, a thread has one. Shards are cut at any element, so each of the arrays may
// start at any alignment.
__global__ void __launch_bounds__(kThreads) adamw_kernel(const __grid_constant__ Pieces pieces, AdamWConstants c,
                                                         const float* grad_scale, const float* accepted) {
  if (accepted && *accepted == 0) return;
  const int which = pieces.find(blockIdx.x);
  const Piece& p = pieces.piece[which];
  const int64_t block = blockIdx.x - pieces.first[which], i = (block * kThreads + threadIdx.x) * kPack, n = p.n;
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

}  // namespace

// ---- launchers

void CudaOps::launch(const op::AdamWStep& op, cudaStream_t stream) {
  const auto piece_of = [](const AdamWShard& p) {
    return std::pair(Piece{.weight = p.weight.as<float>(),
                           .grad = p.grad.as<float>(),
                           .m = p.m.as<float>(),
                           .v = p.v.as<float>(),
                           .model_weight = elements<bf16>(p.model_weight),
                           .n = p.weight.numel(),
                           .decays = p.decays,
                           .vectors = aligned(p.weight, p.grad, p.m, p.v),
                           .model_vectors = aligned(p.model_weight)},
                     ceil_div(p.weight.numel(), kThreads * kPack));
  };
  launch_tables<Pieces>(op.pieces, piece_of, [&](const Pieces& pieces) {
    launch_kernel(adamw_kernel, {blocks(pieces.total(), op.kSpan.name), kThreads, stream}, pieces, constants_of(op.how),
                  elements<float>(op.grad_scale), elements<float>(op.accepted));
  });
}

}  // namespace trivet
