// AdamW, fused with the rounding of the new weight into the model's: one pass over all of the optimizer's memory.
#include <cmath>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/shapes.h"

namespace trivet {
namespace {

struct Constants {
  float beta1, one_minus_beta1, beta2, one_minus_beta2, eps;
  float step_size;        // learning rate / (1 - beta1^step)
  float root_correction;  // 1 / sqrt(1 - beta2^step)
  float decay;            // learning rate * weight decay
};

Constants constants_of(const AdamW& how) {
  const double step = static_cast<double>(how.step);
  const double correction1 = 1.0 - std::pow(static_cast<double>(how.beta1), step);
  const double correction2 = 1.0 - std::pow(static_cast<double>(how.beta2), step);
  return {.beta1 = how.beta1,
          .one_minus_beta1 = static_cast<float>(1.0 - static_cast<double>(how.beta1)),
          .beta2 = how.beta2,
          .one_minus_beta2 = static_cast<float>(1.0 - static_cast<double>(how.beta2)),
          .eps = how.eps,
          .step_size = static_cast<float>(how.learning_rate / correction1),
          .root_correction = static_cast<float>(1.0 / std::sqrt(correction2)),
          .decay = static_cast<float>(static_cast<double>(how.learning_rate) * how.weight_decay)};
}

template <bool kModelWeight>
void update(Range part, const Constants k, float scale, const float* grad, float* weight, float* m, float* v,
            bf16* model_weight) {
#pragma omp simd
  for (int64_t i = part.begin; i < part.end; ++i) {
    const float g = grad[i] * scale;
    const float m_new = k.beta1 * m[i] + k.one_minus_beta1 * g;
    const float v_new = k.beta2 * v[i] + k.one_minus_beta2 * (g * g);
    const float w = weight[i];
    const float w_new = w - (k.step_size * m_new / (std::sqrt(v_new) * k.root_correction + k.eps) + k.decay * w);
    m[i] = m_new;
    v[i] = v_new;
    weight[i] = w_new;
    if constexpr (kModelWeight) model_weight[i].bits = bf16(w_new).bits;
  }
}

}  // namespace

void CpuOps::adamw(Tensor weight, Tensor grad, Tensor m, Tensor v, Tensor model_weight, Tensor grad_scale,
                   const AdamW& how, Stream& stream) {
  constexpr const char* kOp = "adamw";
  const int64_t n = weight.numel();
  shapes::expect_vector(kOp, "weight", weight, DType::f32, n);
  shapes::expect_vector(kOp, "grad", grad, DType::f32, n);
  shapes::expect_vector(kOp, "m", m, DType::f32, n);
  shapes::expect_vector(kOp, "v", v, DType::f32, n);
  if (model_weight) shapes::expect_vector(kOp, "model_weight", model_weight, DType::bf16, n);
  shapes::expect_vector(kOp, "grad_scale", grad_scale, DType::f32, 1);
  check(how.step >= 1, "adamw: step counts from 1");
  stream.run({kOp, Category::optimizer}, [=, threads = threads_, k = constants_of(how)] {
    const float scale = grad_scale.as<float>()[0];
    parallel_for(threads, n, 8192, [&](Range part, int) {
      if (model_weight)
        update<true>(part, k, scale, grad.as<float>(), weight.as<float>(), m.as<float>(), v.as<float>(),
                     model_weight.as<bf16>());
      else update<false>(part, k, scale, grad.as<float>(), weight.as<float>(), m.as<float>(), v.as<float>(), nullptr);
    });
  });
}

}  // namespace trivet
