// Which layers of a model each pipeline stage holds.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace trivet {

struct LayerSplit {
  int64_t num_layers = 0;
  int stages = 1;                            // p * v
  std::optional<int64_t> first_layers = {};  // of the first stage, and
  std::optional<int64_t> last_layers = {};   // of the last, where they are not as the others
  bool account_for_embedding = false;        // the embedding counts as a layer of the first stage,
  bool account_for_loss = false;             // the head as one of the last
};

// Layers of each stage, [stages]. Throws ConfigError that says which numbers disagree and what would work.
std::vector<int64_t> split_layers(const LayerSplit& split);

}  // namespace trivet
