// A Hugging Face transformers model: its config.json, and the names and shapes of its tensors in safetensors files.
//
//   GPT2LMHeadModel      GPT-2
//   LlamaForCausalLM     RMSNorm, rope, SwiGLU, query groups; biases everywhere or nowhere
//   Qwen2ForCausalLM     the same, with biases on q, k and v only
//   Qwen3ForCausalLM     the same, without biases, with norms on q and k
//   MistralForCausalLM   Llama; accepted if its sliding window covers all positions, written as Llama
//
// (transformers 4.57 and 5.23: models/{gpt2,llama,mistral,qwen2,qwen3}/configuration_*.py, modeling_rope_utils.py.)
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tools/convert/gpt_weights.h"

namespace trivet {

struct HfTensor {
  std::string name;  // without hf_prefix()
  std::vector<int64_t> shape{};
  bool conv1d = false;  // stored transposed: [in, out]
};
// The tensors that make up `tensor`: concatenated by rows, they give `tensor` with queries, keys and values by part.
std::vector<HfTensor> hf_tensors(const ModelSpec& model, const ModelTensor& tensor);
// The prefix of every tensor name except the head's.
std::string_view hf_prefix(const ModelSpec& model);

// Reads the model that a config.json describes. Absent keys default as in transformers; settings that Trivet would
// compute differently are rejected by key; unused settings, such as ids of special tokens, are appended to `unread`.
// zero_biases: if the file's model has biases in only one of attention and MLP, set to the name part of the other, such
// as ".mlp."; Trivet's model, with biases in both, is equivalent if those biases are zero. Throws DataError, IoError.
ModelConfig read_hf_config(const std::string& path, std::vector<std::string>& unread, std::string& zero_biases);
// Returns a config.json that transformers 4.57 and 5 read as this model. Throws ConfigError like write_hf().
std::string to_hf_config(const ModelConfig& model, const std::string& folder, const HfExport& options);

}  // namespace trivet
