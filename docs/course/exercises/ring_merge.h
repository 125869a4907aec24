// ring_merge: chapter 13, 25 minutes
//
// In ring attention a query meets the keys of one rank after another. Each hop gives the attention over these keys, and
// lse, the logarithm of the softmax's denominator. Merge a hop into the result so far, so that in the end the result is
// the attention over all keys. A hop whose keys are all masked has lse = -infinity.
#pragma once

#include <limits>
#include <vector>

namespace trivet::exercise {

struct Hop {
  std::vector<float> out;                               // [d] softmax(scores) values, over the keys of the hop
  float lse = -std::numeric_limits<float>::infinity();  // log(sum of exp(score)) of these keys
};

void ring_merge(Hop& total, const Hop& hop);

}  // namespace trivet::exercise

// Hints
//   1. exp(lse) is the weight of a hop: its out is a mean, and the merged out the mean of both outs with these weights.
//   2. The new lse is log(exp(a) + exp(b)), and scores can be 300: factor out the larger one first.
//   3. -inf - -inf is NaN: a hop that saw no key changes nothing.
// In the engine: parallel/context/attention.cc. Papers: Liu, Zaharia, Abbeel 2023; Dao et al. 2022.
