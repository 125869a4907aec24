#include "docs/course/exercises/philox_dropout.h"

namespace trivet::exercise {

void philox_dropout(std::span<float> x, uint64_t first, float p, uint64_t seed, uint64_t site) {
  // Your code.
}

}  // namespace trivet::exercise
