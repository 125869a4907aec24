// model_tensors() for the weights target, from a table. The engine's version queries the layers, which would link in
// all operations. The tensor names are the table's own, too: names in other formats do not depend on them.
#include <array>
#include <fmt/format.h>

#include "base/check.h"
#include "engine/model/modules.h"

namespace trivet {

std::vector<ModelTensor> model_tensors(const ModelSpec& model) {
  if (model.num_layers > 4) throw DataError("more layers than are worth the time");
  expect_runs(model);
  const int64_t h = model.hidden, f = model.ffn;
  std::vector<ModelTensor> tensors;
  const auto add = [&](Module module, int64_t layer, const char* parameter, Shape shape) {
    tensors.push_back(
        {module,
         layer,
         {.name = fmt::format("{}.{}.{}", static_cast<int>(module), layer, parameter), .global_shape = shape}});
  };
  const auto add_both = [&](Module module, int64_t layer, Shape shape, bool bias) {
    add(module, layer, "weight", shape);
    if (shape.rank > 1) --shape.rank;  // a norm's weight is already one-dimensional
    if (bias) add(module, layer, "bias", shape);
  };
  const bool mean = model.norm == Norm::layernorm;
  add(Module::word_embeddings, 0, "weight", {model.vocab, h});
  if (model.positions == Positions::learned) add(Module::position_embeddings, 0, "weight", {model.seq, h});
  for (int64_t layer = 0; layer < model.num_layers; ++layer) {
    add_both(Module::attention_norm, layer, {h}, mean);
    add_both(Module::qkv, layer, {model.attention.qkv_width(), h}, model.qkv_bias);
    if (model.qk_norm)
      for (const Module norm : {Module::q_norm, Module::k_norm})
        add_both(norm, layer, {model.attention.head_width}, mean);
    add_both(Module::proj, layer, {h, model.attention.width()}, model.biases);
    add_both(Module::mlp_norm, layer, {h}, mean);
    add_both(Module::fc1, layer, model.gated() ? Shape{2, f, h} : Shape{f, h}, model.biases);
    add_both(Module::fc2, layer, {h, f}, model.biases);
  }
  add_both(Module::final_norm, 0, {h}, mean);
  if (!model.tied_embeddings) add(Module::output_layer, 0, "weight", {model.vocab, h});
  return tensors;
}

}  // namespace trivet
