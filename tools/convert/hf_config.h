// A model in Hugging Face's transformers: its config.json, and the names and shapes of its tensors in safetensors
// files.
//
//   GPT2LMHeadModel      GPT-2
//   LlamaForCausalLM     RMSNorm, rope, SwiGLU, query groups; biases everywhere or nowhere
//   Qwen2ForCausalLM     the same with biases for queries, keys and values only
//   Qwen3ForCausalLM     the same without biases and with norms on queries and keys
//   MistralForCausalLM   Llama; read if its sliding window covers all positions, and written as Llama
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
// The tensors that make up `tensor`: their rows in order are its rows, with queries, keys and values by part.
std::vector<HfTensor> hf_tensors(const ModelSpec& model, const ModelTensor& tensor);
// The prefix of all tensor names but the head's.
std::string_view hf_prefix(const ModelSpec& model);

// The model that a config.json describes. Absent keys have the defaults of transformers; settings that Trivet computes
// differently are refused by their key; settings of no use, such as ids of special tokens, are appended to `unread`.
// zero_biases: if the file's model has biases in only one of attention and MLP, gets the name part of the other, such
// as ".mlp."; with zeros there, Trivet's model, which has both, computes the same. Throws DataError, IoError.
ModelConfig read_hf_config(const std::string& path, std::vector<std::string>& unread, std::string& zero_biases);
// A config.json that transformers 4.57 and 5 read as this model. Throws ConfigError like write_hf().
std::string to_hf_config(const ModelConfig& model, const std::string& folder, const HfExport& options);

}  // namespace trivet
