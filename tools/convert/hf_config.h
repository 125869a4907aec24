// Names of a model and its tensors in Hugging Face's transformers: config.json, and names and shapes in safetensors
// files.
//
//   GPT2LMHeadModel      GPT-2
//   LlamaForCausalLM     RMSNorm, rope, SwiGLU, query groups; biases everywhere or nowhere
//   Qwen2ForCausalLM     the same with biases of queries, keys and values only
//   Qwen3ForCausalLM     the same without biases and with norms of queries and keys
//   MistralForCausalLM   Llama; read where its sliding window covers all positions, and written as Llama
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
// The tensors that `tensor` is, whose rows in their order are its rows, queries, keys and values by part.
std::vector<HfTensor> hf_tensors(const ModelSpec& model, const ModelTensor& tensor);
// The prefix of the names of all tensors but the head.
std::string_view hf_prefix(const ModelSpec& model);

// The model that a config.json describes. Absent keys have the defaults of transformers; settings that Trivet computes
// differently are refused by their key; settings of no use, such as ids of special tokens, are appended to `unread`.
// zero_biases: gets the part of their names, such as ".mlp.", where the file's model has only the other biases: with
// zeros Trivet's, which has both, computes the same. Throws DataError, IoError.
ModelConfig read_hf_config(const std::string& path, std::vector<std::string>& unread, std::string& zero_biases);
// A config.json which transformers 4.57 and 5 read as this model. Throws ConfigError as write_hf().
std::string to_hf_config(const ModelConfig& model, const std::string& folder, const HfExport& options);

}  // namespace trivet
