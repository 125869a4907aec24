// philox_dropout: chapter 12, 30 minutes
//
// Dropout whose mask does not depend on the layout: an element's fate is a pure function of the seed and of its index
// in the whole tensor, whichever rank has it. Philox turns a counter and a key into four random words of 32 bits.
// Element i has word i % 4 of philox4x32<kDropoutRounds>(i / 4, site, seed). It is kept if the word is at least
// dropout_threshold(p), and is then scaled by 1 / (1 - p), so that its mean stays the same; otherwise it becomes 0.
#pragma once

#include <span>

#include "kernels/philox.h"

namespace trivet::exercise {

// x: the elements from index `first` of the whole tensor on, in place. site: the number of the dropout in the model.
void philox_dropout(std::span<float> x, uint64_t first, float p, uint64_t seed, uint64_t site);

}  // namespace trivet::exercise

// Hints
//   1. The index is first + i. A rank's part can begin in the middle of a block of four words.
//   2. philox4x32<kDropoutRounds>(index / 4, site, seed).w[index % 4]
//   3. Drawing each block once instead of four times is a matter of speed: begin with the simple loop.
// In the engine: kernels/layer_ops.h:Dropout has the contract, kernels/cpu/dropout.h:dropout_scales a vectorised loop.
// Paper: Salmon et al. 2011.
