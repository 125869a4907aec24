// compute_optimal: chapter 17, 30 minutes
//
// Runs of several sizes have been fitted with loss(N, D) = E + A / N^alpha + B / D^beta for N parameters trained on D
// tokens. A run costs about 6 N D floating-point operations. You may spend `flops`: which N and D give the lowest loss?
#pragma once

namespace trivet::exercise {

struct ScalingLaw {
  double E, A, B, alpha, beta;
  double loss(double parameters, double tokens) const;  // the test provides it
};

struct Optimum {
  double parameters, tokens;
};

Optimum compute_optimal(const ScalingLaw& law, double flops);

}  // namespace trivet::exercise

// Hints
//   1. D = flops / (6 N) leaves a function of N alone. At its minimum the derivative is 0.
//   2. alpha A / N^alpha = beta B / D^beta: one percent more of N lowers the loss as much as one percent more of D.
//   3. N^(alpha + beta) = alpha A / (beta B) (flops / 6)^beta.
// In the engine: tools/study/scaling.h:ScalingLaw
// Paper: Hoffmann et al. 2022, "Training Compute-Optimal Large Language Models", section 3.3.
