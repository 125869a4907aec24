// model_tensors() for the weights target: from a table. The engine's own asks the layers, which bring all operations
// along. Names are the table's own, too: what other formats call them does not depend on them.
#include <array>
#include <fmt/format.h>

#include "engine/model/modules.h"
#include "kernels/base/check.h"

namespace trivet {

std::vector<ModelTensor> model_tensors(const ModelSpec& model) {
  if (model.num_layers > 4) throw DataError("more layers than are worth the time");
  const int64_t h = model.hidden, f = model.ffn;
  std::vector<ModelTensor> tensors;
  const auto add = [&](Module module, int64_t layer, const char* parameter, Shape shape) {
    tensors.push_back(
        {module,
         layer,
         {.name = fmt::format("{}.{}.{}", static_cast<int>(module), layer, parameter), .global_shape = shape}});
  };
  const auto add_both = [&](Module module, int64_t layer, Shape shape) {
    add(module, layer, "weight", shape);
    add(module, layer, "bias", {shape[0]});
  };
  add(Module::word_embeddings, 0, "weight", {model.vocab, h});
  add(Module::position_embeddings, 0, "weight", {model.seq, h});
  for (int64_t layer = 0; layer < model.num_layers; ++layer) {
    add_both(Module::attention_norm, layer, {h});
    add_both(Module::qkv, layer, {3 * h, h});
    add_both(Module::proj, layer, {h, h});
    add_both(Module::mlp_norm, layer, {h});
    add_both(Module::fc1, layer, {f, h});
    add_both(Module::fc2, layer, {h, f});
  }
  add_both(Module::final_norm, 0, {h});
  if (!model.tied_embeddings) add(Module::output_layer, 0, "weight", {model.vocab, h});
  return tensors;
}

}  // namespace trivet
