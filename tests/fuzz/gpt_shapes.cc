// gpt_tensors() for the weights target: from a table. The engine's own asks the model, which brings all operations
// along.
#include <array>
#include <fmt/format.h>

#include "engine/checkpoint/gpt_weights.h"
#include "parallel/param.h"

namespace trivet {

std::vector<GptTensor> gpt_tensors(const ModelConfig& model) {
  if (model.num_layers > 4) throw DataError("more layers than are worth the time");
  const int64_t h = model.hidden_size, f = model.ffn_hidden_size.value(), v = model.vocab_size.value();
  const std::array<GptTensor, 12> block{{{.name = "ln_1.weight", .shape = {h}},
                                         {.name = "ln_1.bias", .shape = {h}},
                                         {.name = "attn.c_attn.weight", .shape = {3 * h, h}, .conv1d = true},
                                         {.name = "attn.c_attn.bias", .shape = {3 * h}},
                                         {.name = "attn.c_proj.weight", .shape = {h, h}, .conv1d = true},
                                         {.name = "attn.c_proj.bias", .shape = {h}},
                                         {.name = "ln_2.weight", .shape = {h}},
                                         {.name = "ln_2.bias", .shape = {h}},
                                         {.name = "mlp.c_fc.weight", .shape = {f, h}, .conv1d = true},
                                         {.name = "mlp.c_fc.bias", .shape = {f}},
                                         {.name = "mlp.c_proj.weight", .shape = {h, f}, .conv1d = true},
                                         {.name = "mlp.c_proj.bias", .shape = {h}}}};
  std::vector<GptTensor> tensors;
  const auto add = [&](GptTensor tensor, const std::string& prefix, size_t kind) {
    tensor.hf_name = prefix + tensor.name;
    tensor.name = tensor.hf_name == "wte.weight" ? kSharedEmbedding : tensor.hf_name;
    tensor.kind = kind;
    tensor.query_key_value = tensor.hf_name.find("c_attn") != std::string::npos;
    tensors.push_back(tensor);
  };
  add({.name = "wte.weight", .shape = {v, h}}, "", 0);
  add({.name = "wpe.weight", .shape = {model.seq_length, h}}, "", 1);
  for (int64_t layer = 0; layer < model.num_layers; ++layer)
    for (size_t i = 0; i < block.size(); ++i) add(block[i], fmt::format("h.{}.", layer), 2 + i);
  add({.name = "ln_f.weight", .shape = {h}}, "", 14);
  add({.name = "ln_f.bias", .shape = {h}}, "", 15);
  if (model.untie_embeddings_and_output_weights) add({.name = "lm_head.weight", .shape = {v, h}}, "", 16);
  return tensors;
}

}  // namespace trivet
