// The mistake: a one-sided difference. Its error hides mistakes in the gradient that are just as large.
#include "docs/course/exercises/gradient_check.h"

#include <algorithm>
#include <cmath>

namespace trivet::exercise {

double gradient_error(const Loss& loss, std::vector<double> weights, std::span<const double> gradient) {
  constexpr double kStep = 1e-5;
  double largest = 0;
  const double here = loss(weights);
  for (size_t i = 0; i < weights.size(); ++i) {
    weights[i] += kStep;
    const double slope = (loss(weights) - here) / kStep;
    weights[i] -= kStep;
    const double size = std::max({std::abs(slope), std::abs(gradient[i]), 1e-3});
    largest = std::max(largest, std::abs(slope - gradient[i]) / size);
  }
  return largest;
}

}  // namespace trivet::exercise
