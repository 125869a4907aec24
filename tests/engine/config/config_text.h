// The configuration that the tests vary, and the message of the error that a call throws.
#pragma once

#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "engine/config/load.h"
#include "kernels/base/check.h"

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

template <class E = ConfigError, class F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const E& e) {
    return e.what();
  } catch (const std::exception& e) {
    ADD_FAILURE() << "another exception: " << e.what();
    return e.what();
  }
  ADD_FAILURE() << "no exception";
  return "";
}

inline std::string parse_error(const std::string& text, const std::vector<std::string>& sets = {}) {
  return message_of([&] { parse_config(text, "run.yaml", sets); });
}

}  // namespace trivet
