#include "docs/course/exercises/adamw.h"

#include <cmath>

namespace trivet::exercise {

void adamw(std::span<double> weights, std::span<const double> grads, std::span<double> m, std::span<double> v,
           int64_t step, const AdamWOptions& options) {
  const auto& [lr, beta1, beta2, eps, weight_decay] = options;
  const double correction1 = 1 - std::pow(beta1, step), correction2 = 1 - std::pow(beta2, step);
  for (size_t i = 0; i < weights.size(); ++i) {
    m[i] = beta1 * m[i] + (1 - beta1) * grads[i];
    v[i] = beta2 * v[i] + (1 - beta2) * grads[i] * grads[i];
    weights[i] -= lr * (m[i] / correction1 / (std::sqrt(v[i] / correction2) + eps) + weight_decay * weights[i]);
  }
}

}  // namespace trivet::exercise
