// The configuration that the tests vary.
#pragma once

#include <string>
#include <vector>

#include "engine/config/load.h"
#include "tests/support/message_of.h"

namespace trivet {

inline const std::string kGoodConfig = R"(model:
  num_layers: 2
  hidden_size: 8
  num_attention_heads: 4
  seq_length: 16
  vocab_size: 100
data:
  path: corpus
train:
  train_iters: 10
)";

inline LoadedConfig load_good(const std::vector<std::string>& sets = {}) {
  return parse_config(kGoodConfig, "run.yaml", sets);
}

inline std::string parse_error(const std::string& text, const std::vector<std::string>& sets = {}) {
  return message_of([&] { parse_config(text, "run.yaml", sets); });
}

}  // namespace trivet
