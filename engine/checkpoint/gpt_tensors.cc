#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <string_view>

#include "engine/checkpoint/gpt_weights.h"
#include "engine/checkpoint/slice.h"
#include "engine/model/gpt_stage.h"

namespace trivet {
namespace {

struct Kind {
  std::string_view name, hf_name;  // '*': the layer's number
  bool conv1d = false, query_key_value = false;
};

// In the order of an llm.c file, which has no output weight of its own.
constexpr std::array<Kind, 17> kKinds{{
    {"embedding.word_embeddings.weight", "wte.weight"},
    {"embedding.position_embeddings.weight", "wpe.weight"},
    {"decoder.layers.*.input_layernorm.weight", "h.*.ln_1.weight"},
    {"decoder.layers.*.input_layernorm.bias", "h.*.ln_1.bias"},
    {"decoder.layers.*.self_attention.linear_qkv.weight", "h.*.attn.c_attn.weight", true, true},
    {"decoder.layers.*.self_attention.linear_qkv.bias", "h.*.attn.c_attn.bias", false, true},
    {"decoder.layers.*.self_attention.linear_proj.weight", "h.*.attn.c_proj.weight", true},
    {"decoder.layers.*.self_attention.linear_proj.bias", "h.*.attn.c_proj.bias"},
    {"decoder.layers.*.pre_mlp_layernorm.weight", "h.*.ln_2.weight"},
    {"decoder.layers.*.pre_mlp_layernorm.bias", "h.*.ln_2.bias"},
    {"decoder.layers.*.mlp.linear_fc1.weight", "h.*.mlp.c_fc.weight", true},
    {"decoder.layers.*.mlp.linear_fc1.bias", "h.*.mlp.c_fc.bias"},
    {"decoder.layers.*.mlp.linear_fc2.weight", "h.*.mlp.c_proj.weight", true},
    {"decoder.layers.*.mlp.linear_fc2.bias", "h.*.mlp.c_proj.bias"},
    {"decoder.final_layernorm.weight", "ln_f.weight"},
    {"decoder.final_layernorm.bias", "ln_f.bias"},
    {"output_layer.weight", "lm_head.weight"},
}};

constexpr std::string_view kLayers = "decoder.layers.";

// The number behind "decoder.layers."; empty: no such name.
std::string layer_of(std::string_view name) {
  if (!name.starts_with(kLayers)) return {};
  name.remove_prefix(kLayers.size());
  return std::string(name.substr(0, name.find('.')));
}

std::string with_layer(std::string_view pattern, const std::string& layer) {
  std::string text(pattern);
  if (const size_t star = text.find('*'); star != std::string::npos) text.replace(star, 1, layer);
  return text;
}

GptTensor describe(const Param& param) {
  GptTensor tensor{.name = param.spec.name, .shape = slice_of(param, 0, param.shape.numel()).global};
  const std::string layer = layer_of(tensor.name);
  for (; tensor.kind < kKinds.size(); ++tensor.kind) {
    const Kind& kind = kKinds[tensor.kind];
    if (with_layer(kind.name, layer) != tensor.name) continue;
    tensor.hf_name = with_layer(kind.hf_name, layer);
    tensor.conv1d = kind.conv1d;
    tensor.query_key_value = kind.query_key_value;
    return tensor;
  }
  fail(tensor.name + ": no other format has a name for it");
}

}  // namespace

std::vector<GptTensor> gpt_tensors(const ModelConfig& model) {
  const GptShape shape{.num_layers = model.num_layers,
                       .hidden = model.hidden_size,
                       .ffn = model.ffn_hidden_size.value(),
                       .heads = model.num_attention_heads,
                       .seq = model.seq_length,
                       .vocab = model.vocab_size.value(),
                       .padded_vocab = model.vocab_size.value(),
                       .micro_batch = 1,
                       .tied_embeddings = !model.untie_embeddings_and_output_weights};
  ParamList params(0, 1);
  const GptStage stage(params, shape, {.num_layers = model.num_layers}, 0);
  std::vector<GptTensor> tensors;
  for (const Param& param : params.all()) tensors.push_back(describe(param));
  return tensors;
}

}  // namespace trivet
