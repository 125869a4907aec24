#include "docs/course/exercises/recompute.h"

namespace trivet::exercise {

std::vector<Checkpoint> forward_keeping_few(std::span<const Layer> layers, double x, size_t every, Random& random) {
  // Your code.
  return {};
}

double backward_recomputing(std::span<const Layer> layers, const std::vector<Checkpoint>& kept, double dy) {
  // Your code.
  return 0;
}

}  // namespace trivet::exercise
