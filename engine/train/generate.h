// Generates text by sampling one token after another. The keys and values of earlier tokens stay in the rank's
// activations, so each new token costs one position. A text that outgrows the rank's positions is truncated to its last
// positions / 2 tokens, which are recomputed because their positions have changed.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "engine/train/rank.h"

namespace trivet {

struct Sampling {
  int64_t tokens = 64;       // at most this many new tokens
  double temperature = 0.8;  // 0: always the most likely token
  int64_t top_k = 40;        // 0: the whole vocabulary
  double top_p = 1;          // nucleus of this probability, at least one token (Holtzman et al. 2020)
  uint64_t seed = 0;
  int32_t stop_token = -1;  // ends the text; at the end of the prompt it begins a new document instead; -1: none
  int64_t vocab = 0;        // of the tokenizer: only its ids are drawn if the model has more; 0: all of the model's
};

// Returns the new tokens, the same on every rank; on_token is called with each. Collective over the model's ranks.
// Throws ConfigError for an empty prompt or a token outside the vocabulary. If the prompt is longer than the rank's
// positions, only its end is used.
std::vector<int32_t> generate(Rank& rank, std::span<const int32_t> prompt, const Sampling& sampling,
                              const std::function<void(int32_t token)>& on_token = {});

// Draws from softmax(logits / temperature), limited by top_k and top_p, with the uniform number u in [0, 1).
int32_t sample_token(std::span<const float> logits, const Sampling& sampling, double u);

}  // namespace trivet
