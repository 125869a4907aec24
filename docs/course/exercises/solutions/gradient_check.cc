#include "docs/course/exercises/gradient_check.h"

#include <algorithm>
#include <cmath>

namespace trivet::exercise {

double gradient_error(const Loss& loss, std::vector<double> weights, std::span<const double> gradient) {
  constexpr double kStep = 1e-5;
  double largest = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    const double at = weights[i];
    weights[i] = at + kStep;
    const double above = loss(weights);
    weights[i] = at - kStep;
    const double below = loss(weights);
    weights[i] = at;
    const double slope = (above - below) / (2 * kStep);
    const double size = std::max({std::abs(slope), std::abs(gradient[i]), 1e-3});
    largest = std::max(largest, std::abs(slope - gradient[i]) / size);
  }
  return largest;
}

}  // namespace trivet::exercise
