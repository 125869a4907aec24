#include "engine/model/modules.h"

#include <array>
#include <charconv>

#include "engine/model/gpt_stage.h"

namespace trivet {
namespace {

constexpr std::string_view kBlocks = "decoder.layers.";

struct ModuleName {
  std::string_view name;
  bool in_block = false;  // and so behind "decoder.layers.NUMBER."
};
constexpr std::array<ModuleName, kModules> kNames{{{"embedding.word_embeddings"},
                                                   {"embedding.position_embeddings"},
                                                   {"input_layernorm", true},
                                                   {"self_attention.linear_qkv", true},
                                                   {"self_attention.linear_proj", true},
                                                   {"pre_mlp_layernorm", true},
                                                   {"mlp.linear_fc1", true},
                                                   {"mlp.linear_fc2", true},
                                                   {"decoder.final_layernorm"},
                                                   {"output_layer"}}};

// The module that declared a parameter.
ModelTensor with_module(const ParamSpec& param) {
  std::string_view name = param.name;
  name = name.substr(0, name.rfind('.'));
  ModelTensor tensor{.layer = 0, .param = param};
  const bool in_block = name.starts_with(kBlocks);
  if (in_block) {
    name.remove_prefix(kBlocks.size());
    std::from_chars(name.data(), name.data() + name.size(), tensor.layer);
    name.remove_prefix(name.find('.') + 1);
  }
  for (size_t i = 0; i < kModules; ++i)
    if (kNames[i].in_block == in_block && kNames[i].name == name) {
      tensor.module = static_cast<Module>(i);
      return tensor;
    }
  fail(param.name + ": no module of a model declares it");
}

}  // namespace

std::string name_of(Module module, int64_t layer) {
  const auto [name, in_block] = kNames[static_cast<size_t>(module)];
  return (in_block ? std::string(kBlocks) + std::to_string(layer) + "." : "") + std::string(name);
}

std::vector<ModelTensor> model_tensors(const ModelSpec& spec) {
  GptShape shape{spec};
  shape.padded_vocab = spec.vocab;
  shape.micro_batch = 1;
  ParamList params;
  const GptStage stage(params, shape, {.num_layers = spec.num_layers}, 0);
  std::vector<ModelTensor> tensors;
  for (const Param& param : params.all()) tensors.push_back(with_module(param.spec));
  return tensors;
}

}  // namespace trivet
