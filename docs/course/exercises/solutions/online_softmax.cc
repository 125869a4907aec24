#include "docs/course/exercises/online_softmax.h"

#include <algorithm>
#include <cmath>

namespace trivet::exercise {

void add_block(OnlineSoftmax& state, std::span<const float> scores, std::span<const float> values) {
  const float max = std::max(state.max, *std::ranges::max_element(scores));
  if (std::isinf(max)) return;  // no key was seen yet
  const float rescale = std::exp(state.max - max);
  state.max = max;
  state.sum *= rescale;
  for (float& x : state.weighted) x *= rescale;
  const size_t d = state.weighted.size();
  for (size_t key = 0; key < scores.size(); ++key) {
    const float weight = std::exp(scores[key] - max);
    state.sum += weight;
    for (size_t i = 0; i < d; ++i) state.weighted[i] += weight * values[key * d + i];
  }
}

}  // namespace trivet::exercise
