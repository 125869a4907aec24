#include "docs/course/exercises/compute_optimal.h"

#include "docs/course/exercises/support/testing.h"

namespace trivet::exercise {

double ScalingLaw::loss(double parameters, double tokens) const {
  return E + A / std::pow(parameters, alpha) + B / std::pow(tokens, beta);
}

namespace {

TEST(compute_optimal, has_no_better_neighbour) {
  for (const ScalingLaw& law : {ScalingLaw{1.69, 406.4, 410.7, 0.34, 0.28}, ScalingLaw{2.1, 90, 4000, 0.25, 0.4}})
    for (const double flops : {1e15, 1e19, 5.76e23}) {
      const auto [parameters, tokens] = compute_optimal(law, flops);
      ASSERT_NEAR(6 * parameters * tokens / flops, 1, 1e-9) << "the budget of " << flops << " is not what 6 N D is";
      for (const double factor : {0.5, 0.98, 1.02, 2.0})
        ASSERT_LT(law.loss(parameters, tokens), law.loss(factor * parameters, tokens / factor))
            << "with " << flops << " FLOPs: you choose N = " << parameters << ", but " << factor << " N is better";
    }
}

}  // namespace
}  // namespace trivet::exercise
