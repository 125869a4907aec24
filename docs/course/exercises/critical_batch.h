// critical_batch: chapter 17, 30 minutes
//
// A run with batches of B samples reaches a target loss after S steps. With a larger batch it takes fewer steps, but
// more samples. McCandlish et al. 2018 found the law of this trade-off:
//
//   S(B) = least_steps (1 + critical / B)
//
// At B = critical a run takes twice the least number of steps, and twice the least number of samples. Fit least_steps
// and critical to measured runs. Measurements vary by the same percentage, whether a run takes 100 steps or 10,000.
#pragma once

#include <vector>

namespace trivet::exercise {

struct BatchRun {
  double batch, steps;  // B, S
};

struct BatchLaw {
  double least_steps, critical;
};

BatchLaw critical_batch(const std::vector<BatchRun>& runs);

}  // namespace trivet::exercise

// Hints
//   1. S is a straight line in x = 1 / B: S = a + b x, with least_steps = a and critical = b / a.
//   2. Equal percentages: minimise the sum of ((a + b x) / S - 1)^2, not of (a + b x - S)^2.
//   3. Divide by S: fit 1 = a u + b v with u = 1 / S and v = x / S. Its two normal equations are
//      a sum(u u) + b sum(u v) = sum(u) and a sum(u v) + b sum(v v) = sum(v).
// Paper: McCandlish et al. 2018, "An Empirical Model of Large-Batch Training", section 2.3.
