#include "docs/course/exercises/adamw.h"

namespace trivet::exercise {

void adamw(std::span<double> weights, std::span<const double> grads, std::span<double> m, std::span<double> v,
           int64_t step, const AdamWOptions& options) {
  // Your code.
}

}  // namespace trivet::exercise
