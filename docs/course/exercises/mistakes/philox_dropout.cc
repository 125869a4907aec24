// The mistake: the index counts from the start of the rank's part. All ranks drop the same places, whereas a
// single rank would drop different ones.
#include "docs/course/exercises/philox_dropout.h"

namespace trivet::exercise {

void philox_dropout(std::span<float> x, uint64_t first, float p, uint64_t seed, uint64_t site) {
  for (size_t i = 0; i < x.size(); ++i) {
    const uint32_t word = philox4x32<kDropoutRounds>(i / 4, site, seed).w[i % 4];
    x[i] = word >= dropout_threshold(p) ? x[i] * (1 / (1 - p)) : 0;
  }
}

}  // namespace trivet::exercise
