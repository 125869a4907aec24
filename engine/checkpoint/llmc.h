// llm.c's model_*.bin: 256 int32 of header, then each kind of tensor over all layers.
//
//   [0] 20240326  [1] version: 3 fp32, 5 bf16  [2] positions  [3] vocabulary  [4] layers  [5] heads  [6] channels
//   [7] vocabulary with padding: rows of the first tensor
//
// Only one kind of model: tied embeddings, an MLP four times as wide, layernorm_epsilon 1e-5.
// (github.com/karpathy/llm.c, train_gpt2.py, write_model.)
#pragma once

#include "engine/checkpoint/gpt_weights.h"
#include "kernels/base/dtype.h"

namespace trivet {

bool is_llmc_model(const std::string& path);  // begins with the magic number
std::unique_ptr<GptWeights> open_llmc(const std::string& path);

// Throws ConfigError for a model that the format cannot hold, and where `path` exists.
void write_llmc(GptWeights& weights, const std::string& path, DType dtype);

}  // namespace trivet
