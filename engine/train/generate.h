// Generates text by sampling one token after another. Each token runs the whole context again, up to the model's
// sequence length; attention is causal, so padding behind the last token has no effect.
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
  double top_p = 1;          // nucleus of this probability, at least one token (Holtzman et al. 2020)
  uint64_t seed = 0;
  int32_t stop_token = -1;  // ends the text; -1: none
};

// The new tokens, the same on every rank; on_token is called with each. Collective over the model's ranks. Throws
// ConfigError for an empty prompt or a token outside the vocabulary. The context is truncated to the rank's positions.
std::vector<int32_t> generate(Rank& rank, std::span<const int32_t> prompt, const Sampling& sampling,
                              const std::function<void(int32_t token)>& on_token = {});

// A draw from softmax(logits / temperature), limited by top_k and top_p, with the uniform number u in [0, 1).
int32_t sample_token(std::span<const float> logits, const Sampling& sampling, double u);

}  // namespace trivet
