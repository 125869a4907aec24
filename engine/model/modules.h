// The modules of a model that have parameters, and all parameters of a model as its layers declare them.
#pragma once

#include <string>
#include <vector>

#include "engine/model/spec.h"
#include "parallel/param.h"

namespace trivet {

// In the order of the forward pass; the output layer has no parameters of its own if embeddings are tied.
enum class Module : uint8_t {
  word_embeddings,
  position_embeddings,
  attention_norm,  // from here to fc2: one in each block
  qkv,
  q_norm,  // per head, in models that have it
  k_norm,
  proj,
  mlp_norm,
  fc1,
  fc2,
  final_norm,
  output_layer
};
inline constexpr size_t kModules = static_cast<size_t>(Module::output_layer) + 1;

// The module's name in checkpoints, which is Megatron's. Its parameters are NAME.weight and, except for embeddings, the
// output layer, and modules to which the spec gives no bias, NAME.bias. layer: for a module in a block, from 0.
std::string name_of(Module module, int64_t layer = 0);

struct ModelTensor {
  Module module{};
  int64_t layer = 0;  // 0 outside of blocks
  ParamSpec param;    // for the whole model; its vocabulary has no padding
};
// In the order of the forward pass. Throws ConfigError if the model cannot run (expect_runs).
std::vector<ModelTensor> model_tensors(const ModelSpec& spec);

}  // namespace trivet
