// online_softmax: chapter 1, 30 minutes
//
// A query's attention is sum_k softmax(scores)_k values_k. The softmax needs the largest score, but the scores come a
// block of keys at a time and are not kept, which is why flash attention needs no memory for them. Add one more block
// to the state, which holds the sums over all keys so far, relative to the largest score so far. A score of -infinity
// marks a key that the query must not see; a whole block of such keys can come first.
#pragma once

#include <limits>
#include <span>
#include <vector>

namespace trivet::exercise {

struct OnlineSoftmax {
  float max = -std::numeric_limits<float>::infinity();
  float sum = 0;                // of exp(score - max)
  std::vector<float> weighted;  // [d] sum of exp(score - max) value; the attention is weighted / sum
};

// scores: [block]; values: [block, d]
void add_block(OnlineSoftmax& state, std::span<const float> scores, std::span<const float> values);

}  // namespace trivet::exercise

// Hints
//   1. The new maximum is the larger of the old one and the block's.
//   2. What the state holds is relative to the old maximum: exp(old - new) turns it into sums relative to the new one.
//   3. Both sums are rescaled, `weighted` too. And -inf - -inf is NaN: return early while no key has been seen.
// In the engine: kernels/cpu/attention_head.h, kernels/cuda/attention_flash.cu. Paper: Milakov, Gimelshein 2018.
