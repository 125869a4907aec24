#include <array>
#include <string_view>

#include "engine/checkpoint/gpt_weights.h"

namespace trivet {
namespace {

struct Foreign {
  std::string_view hf_name;  // '*': the layer's number
  bool conv1d = false;       // its matrix
  bool query_key_value = false;
};
// By Module, whose order is that of an llm.c file too.
constexpr std::array<Foreign, kModules> kForeign{{{"wte"},
                                                  {"wpe"},
                                                  {"h.*.ln_1"},
                                                  {"h.*.attn.c_attn", true, true},
                                                  {"h.*.attn.c_proj", true},
                                                  {"h.*.ln_2"},
                                                  {"h.*.mlp.c_fc", true},
                                                  {"h.*.mlp.c_proj", true},
                                                  {"ln_f"},
                                                  {"lm_head"}}};

GptTensor describe(const ModelTensor& tensor) {
  const auto module = static_cast<size_t>(tensor.module);
  const Foreign& foreign = kForeign[module];
  const std::string& name = tensor.param.name;
  const std::string end = name.substr(name.rfind('.'));  // .weight or .bias
  std::string hf_name = std::string(foreign.hf_name) + end;
  if (const size_t star = hf_name.find('*'); star != std::string::npos)
    hf_name.replace(star, 1, std::to_string(tensor.layer));
  return {.name = name,
          .hf_name = hf_name,
          .shape = tensor.param.global_shape,
          .kind = 2 * module + (end == ".bias" ? 1 : 0),
          .conv1d = foreign.conv1d && tensor.param.global_shape.rank == 2,
          .query_key_value = foreign.query_key_value};
}

}  // namespace

std::vector<GptTensor> gpt_tensors(const ModelSpec& model) {
  std::vector<GptTensor> tensors;
  for (const ModelTensor& tensor : model_tensors(model)) tensors.push_back(describe(tensor));
  return tensors;
}

}  // namespace trivet
