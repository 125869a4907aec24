// adamw: chapter 5, 20 minutes
//
// One step of AdamW, with g the gradient of a weight and `step` counted from 1:
//     m = beta1 m + (1 - beta1) g              v = beta2 v + (1 - beta2) g^2
//     m^ = m / (1 - beta1^step)                v^ = v / (1 - beta2^step)
//     weight -= lr (m^ / (sqrt(v^) + eps) + weight_decay weight)
// How does that differ from Adam with an L2 penalty, whose g is the gradient plus weight_decay weight?
#pragma once

#include <cstdint>
#include <span>

namespace trivet::exercise {

struct AdamWOptions {
  double lr, beta1, beta2, eps, weight_decay;
};

// weights, grads, m, v: [n]
void adamw(std::span<double> weights, std::span<const double> grads, std::span<double> m, std::span<double> v,
           int64_t step, const AdamWOptions& options);

}  // namespace trivet::exercise

// Hints
//   1. Update m and v first; the step uses the new values.
//   2. eps is added after the square root, not below it.
//   3. The decay is decoupled: only lr scales it. The size of a weight's gradients does not matter.
// In the engine: kernels/step_ops.h:AdamWStep, kernels/step_ops.h:constants_of. Paper: Loshchilov, Hutter 2019.
