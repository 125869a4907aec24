// gradient_check: chapter 1, 20 minutes
//
// A backward pass that you wrote by hand gives the gradient of a loss. Is it right? Compare it, weight by weight, with
// the slope that you get by moving the weight a little. Return the largest relative error,
//     |slope - gradient| / max(|slope|, |gradient|, 1e-3).
// For a correct gradient it has to be below 1e-7, so the slope has to be accurate.
#pragma once

#include <functional>
#include <span>
#include <vector>

namespace trivet::exercise {

using Loss = std::function<double(const std::vector<double>& weights)>;

double gradient_error(const Loss& loss, std::vector<double> weights, std::span<const double> gradient);

}  // namespace trivet::exercise

// Hints
//   1. (f(w + e) - f(w)) / e is off by about e f''(w) / 2: too much. Use a point on either side of w.
//   2. (f(w + e) - f(w - e)) / (2 e) is off by about e^2 f'''(w) / 6, and by rounding errors of about 1e-16 f(w) / e.
//   3. In double precision e = 1e-5 is a good choice. Set each weight back before you move the next one.
// In the engine: tests/support/ops_fixture.h:numeric_gradient, for every op with a backward pass.
