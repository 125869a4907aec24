#include "engine/metrics/accounting.h"

#include <numeric>
#include <string>

#include "engine/model/modules.h"
#include "kernels/base/check.h"

namespace trivet {
namespace {

bool is_linear(Module module) {
  return module == Module::qkv || module == Module::proj || module == Module::fc1 || module == Module::fc2;
}

ModelPart part_of(Module module) {
  switch (module) {
    case Module::word_embeddings: return ModelPart::word_embeddings;
    case Module::position_embeddings: return ModelPart::position_embeddings;
    case Module::qkv:
    case Module::proj: return ModelPart::attention;
    case Module::fc1:
    case Module::fc2: return ModelPart::mlp;
    case Module::attention_norm:
    case Module::mlp_norm:
    case Module::final_norm: return ModelPart::norms;
    case Module::output_layer: return ModelPart::output_layer;
  }
  fail("a module of no part");
}

}  // namespace

int64_t ParameterCount::total() const { return std::accumulate(of.begin(), of.end(), int64_t{0}); }

ParameterCount count_parameters(const ModelSpec& model) {
  ParameterCount count;
  for (const ModelTensor& tensor : model_tensors(model))
    count.of[static_cast<size_t>(part_of(tensor.module))] += tensor.param.global_shape.numel();
  return count;
}

TokenFlops flops_per_token(const ModelSpec& model, FlopsConvention convention) {
  if (convention == FlopsConvention::six_n)
    return {.layers = 6.0 * static_cast<double>(count_parameters(model).total())};
  // A token meets each element of a linear layer's weight in three multiplications and additions: forward, and for
  // both gradients. Likewise the output layer's, which may be the word embedding's.
  double weights = 0;
  for (const ModelTensor& tensor : model_tensors(model))
    if (is_linear(tensor.module) && tensor.param.global_shape.rank == 2)
      weights += static_cast<double>(tensor.param.global_shape.numel());
  const double s = static_cast<double>(model.seq);
  const double positions = convention == FlopsConvention::causal ? s / 2 : s;  // that a token attends to, on average
  const double width = static_cast<double>(model.attention.width());
  return {.layers = 6 * weights,
          .attention = 12 * static_cast<double>(model.num_layers) * width * positions,
          .logits = 6 * static_cast<double>(model.hidden) * static_cast<double>(model.vocab)};
}

double flops_per_step(const ModelSpec& model, int64_t global_batch, FlopsConvention convention) {
  return flops_per_token(model, convention).total() * static_cast<double>(global_batch) *
         static_cast<double>(model.seq);
}

double model_flops_utilisation(double flops, double seconds, int ranks, double peak_tflops) {
  return flops / (seconds * ranks * peak_tflops * 1e12);
}

}  // namespace trivet
