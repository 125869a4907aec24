#include "engine/model/modules.h"

#include <array>
#include <map>
#include <string_view>
#include <utility>

#include "engine/model/gpt_stage.h"

namespace trivet {
namespace {

struct ModuleName {
  std::string_view name;
  bool in_block = false;  // then prefixed with "decoder.layers.NUMBER."
};
constexpr auto kNames = std::to_array<ModuleName>({{"embedding.word_embeddings"},
                                                   {"embedding.position_embeddings"},
                                                   {"input_layernorm", true},
                                                   {"self_attention.linear_qkv", true},
                                                   {"self_attention.q_layernorm", true},
                                                   {"self_attention.k_layernorm", true},
                                                   {"self_attention.linear_proj", true},
                                                   {"pre_mlp_layernorm", true},
                                                   {"mlp.linear_fc1", true},
                                                   {"mlp.linear_fc2", true},
                                                   {"decoder.final_layernorm"},
                                                   {"output_layer"}});
static_assert(kNames.size() == kModules);

}  // namespace

std::string name_of(Module module, int64_t layer) {
  const auto [name, in_block] = kNames[static_cast<size_t>(module)];
  return (in_block ? "decoder.layers." + std::to_string(layer) + "." : "") + std::string(name);
}

std::vector<ModelTensor> model_tensors(const ModelSpec& spec) {
  GptShape shape{spec};
  shape.padded_vocab = spec.vocab;
  shape.micro_batch = 1;
  ParamList params;
  const GptStage stage(params, shape, {.num_layers = spec.num_layers}, 0);
  std::map<std::string, std::pair<Module, int64_t>> modules;  // by name, with their layers
  for (size_t i = 0; i < kModules; ++i)
    for (int64_t layer = 0; layer < (kNames[i].in_block ? spec.num_layers : 1); ++layer) {
      const auto module = static_cast<Module>(i);
      modules[name_of(module, layer)] = {module, layer};
    }
  std::vector<ModelTensor> tensors;
  for (const Param& param : params.all()) {
    const std::string& name = param.spec.name;
    const auto at = modules.find(name.substr(0, name.rfind('.')));
    check(at != modules.end(), name + ": no module of a model declares it");
    tensors.push_back({at->second.first, at->second.second, param.spec});
  }
  return tensors;
}

}  // namespace trivet
