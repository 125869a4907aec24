// AdamW, fused with the rounding of the new weight into the model's: one pass over all of the optimizer's memory.
#include "kernels/adamw_constants.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/vector.h"
#include "kernels/op_checks.h"

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

void CpuOps::adamw(Tensor weight, Tensor grad, Tensor m, Tensor v, Tensor model_weight, Tensor grad_scale,
                   Tensor proceed, const AdamW& how, Stream& stream) {
  constexpr const char* kOp = "adamw";
  shapes::check_adamw(weight, grad, m, v, model_weight, grad_scale, proceed, how);
  const int64_t n = weight.numel();
  stream.run({kOp, Category::optimizer}, [=, threads = threads_, k = constants_of(how)] {
    if (proceed && proceed.as<float>()[0] == 0) return;
    const float scale = grad_scale.as<float>()[0];
    parallel_for(threads, n, 8192, [&](Range part, int) {
      const auto from = [=](const Tensor& t) { return t.as<float>() + part.begin; };
      if (model_weight)
        update<true>(part.size(), k, scale, from(grad), from(weight), from(m), from(v),
                     model_weight.as<bf16>() + part.begin);
      else update<false>(part.size(), k, scale, from(grad), from(weight), from(m), from(v), nullptr);
    });
  });
}

}  // namespace trivet
