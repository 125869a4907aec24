#include "docs/course/exercises/compute_optimal.h"

namespace trivet::exercise {

Optimum compute_optimal(const ScalingLaw& law, double flops) {
  // Your code.
  return {1, flops / 6};
}

}  // namespace trivet::exercise
