#include "docs/course/exercises/gradient_norm.h"

#include <cmath>

namespace trivet::exercise {

float gradient_norm(Communicator& tensor, std::span<const WeightGradient> gradients, Stream& stream) {
  float squares = 0;
  for (const WeightGradient& gradient : gradients) {
    if (gradient.whole && tensor.rank() > 0) continue;
    for (const float x : gradient.values) squares += x * x;
  }
  tensor.all_reduce(tensor_of({&squares, 1}), Reduce::sum, stream);
  return std::sqrt(squares);
}

}  // namespace trivet::exercise
