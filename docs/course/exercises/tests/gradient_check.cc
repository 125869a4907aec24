#include "docs/course/exercises/gradient_check.h"

#include "docs/course/exercises/support/testing.h"

namespace trivet::exercise {
namespace {

double loss(const std::vector<double>& w) { return std::exp(w[0] * w[1]) + std::sin(w[1]) * w[2] + w[2] * w[2] * w[2]; }
std::vector<double> gradient_of_loss(const std::vector<double>& w) {
  const double e = std::exp(w[0] * w[1]);
  return {w[1] * e, w[0] * e + std::cos(w[1]) * w[2], std::sin(w[1]) + 3 * w[2] * w[2]};
}
const std::vector<double> kAt{0.7, -1.3, 0.4};

TEST(gradient_check, accepts_a_right_gradient) {
  EXPECT_LT(gradient_error(loss, kAt, gradient_of_loss(kAt)), 1e-7)
      << "the gradient is right: what is left has to be below 1e-7";
}

TEST(gradient_check, sees_an_error_in_any_element) {
  for (size_t i = 0; i < 3; ++i)
    for (const double factor : {1.001, 0.999, -1.0, 0.0}) {
      std::vector<double> gradient = gradient_of_loss(kAt);
      const double right = gradient[i];
      gradient[i] *= factor;
      const double size = std::max({std::abs(right), std::abs(gradient[i]), 1e-3});
      ASSERT_NEAR(gradient_error(loss, kAt, gradient), std::abs(right - gradient[i]) / size, 1e-6)
          << "element " << i << " was multiplied by " << factor;
    }
}

}  // namespace
}  // namespace trivet::exercise
