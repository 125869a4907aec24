#include "docs/course/exercises/philox_dropout.h"

namespace trivet::exercise {

void philox_dropout(std::span<float> x, uint64_t first, float p, uint64_t seed, uint64_t site) {
  for (size_t i = 0; i < x.size(); ++i) {
    const uint64_t index = first + i;
    const uint32_t word = philox4x32<kDropoutRounds>(index / 4, site, seed).w[index % 4];
    x[i] = word >= dropout_threshold(p) ? x[i] * (1 / (1 - p)) : 0;
  }
}

}  // namespace trivet::exercise
