// AdamW, fused with the rounding of the new weight into the model's: one pass over all of the optimizer's memory.
#include "kernels/adamw_constants.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/vector.h"

namespace trivet {
namespace {

template <bool kModelWeight>
void update(int64_t n, const AdamWConstants& k, float scale, const float* grad, float* weight, float* m, float* v,
            bf16* model_weight) {
  for_vectors(n, [=](auto at) {
    const Floats g = at.load(grad) * scale, w = at.load(weight);
    const Floats m_new = k.beta1 * at.load(m) + k.one_minus_beta1 * g;
    const Floats v_new = k.beta2 * at.load(v) + k.one_minus_beta2 * (g * g);
    const Floats w_new = w - (k.step_size * m_new / (sqrt(v_new) * k.root_correction + k.eps) + k.decay * w);
    at.store(m, m_new);
    at.store(v, v_new);
    at.store(weight, w_new);
    if constexpr (kModelWeight) at.store(model_weight, w_new);
  });
}

}  // namespace

void CpuOps::compute(const op::AdamWStep& op) {
  if (op.accepted && op.accepted.as<float>()[0] == 0) return;
  AdamW without_decay = op.how;
  without_decay.weight_decay = 0;
  const AdamWConstants with_decay = constants_of(op.how), no_decay = constants_of(without_decay);
  const float scale = op.grad_scale.as<float>()[0];
  const auto size = [&](size_t i) { return op.pieces[i].weight.numel(); };
  int64_t n = 0;
  for (size_t i = 0; i < op.pieces.size(); ++i) n += size(i);
  parallel_for(threads_, n, 8192, [&](Range part, int) {
    for_pieces(op.pieces.size(), size, part, [&](size_t i, Range range) {
      const AdamWShard& piece = op.pieces[i];
      const AdamWConstants& k = piece.decays ? with_decay : no_decay;
      const auto from = [=](const Tensor& t) { return t.as<float>() + range.begin; };
      if (piece.model_weight)
        update<true>(range.size(), k, scale, from(piece.grad), from(piece.weight), from(piece.m), from(piece.v),
                     piece.model_weight.as<bf16>() + range.begin);
      else
        update<false>(range.size(), k, scale, from(piece.grad), from(piece.weight), from(piece.m), from(piece.v),
                      nullptr);
    });
  });
}

}  // namespace trivet
