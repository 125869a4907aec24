// The mistake: alpha and beta are swapped in the exponent. Where they are nearly equal, the answer looks reasonable.
#include "docs/course/exercises/compute_optimal.h"

#include <cmath>

namespace trivet::exercise {

Optimum compute_optimal(const ScalingLaw& law, double flops) {
  const auto& [E, A, B, alpha, beta] = law;
  const double power = alpha * A / (beta * B) * std::pow(flops / 6, alpha);
  const double parameters = std::pow(power, 1 / (alpha + beta));
  return {parameters, flops / (6 * parameters)};
}

}  // namespace trivet::exercise
