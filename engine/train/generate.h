// Text from a model: sampling one token after another. The context is run again for every token, up to the model's
// sequence length; causal attention makes what stands behind the last token irrelevant.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "engine/train/rank.h"

namespace trivet {

struct Sampling {
  int64_t tokens = 64;       // at most so many new ones
  double temperature = 0.8;  // 0: the most likely token each time
  int64_t top_k = 40;        // 0: from the whole vocabulary
  double top_p = 1;  // of those, the likeliest that together have this probability, at least one (Holtzman et al. 2020)
  uint64_t seed = 0;
  int32_t stop_token = -1;  // ends the text; -1: none
};

// The new tokens, the same on every rank; on_token, where there is one, hears of each as it is made. Collective over
// the model's ranks. Throws ConfigError for an empty prompt or a token that is not in the vocabulary. Only as many of
// the last tokens are seen as the rank has positions.
std::vector<int32_t> generate(Rank& rank, std::span<const int32_t> prompt, const Sampling& sampling,
                              const std::function<void(int32_t token)>& on_token = {});

// One draw from softmax(logits / temperature) among the top_k and top_p, by the uniform number u in [0, 1).
int32_t sample_token(std::span<const float> logits, const Sampling& sampling, double u);

}  // namespace trivet
