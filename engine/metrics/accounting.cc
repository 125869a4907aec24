#include "engine/metrics/accounting.h"

#include <numeric>
#include <string>

#include "kernels/base/check.h"

namespace trivet {
namespace {

int64_t ffn_of(const ModelConfig& model) { return model.ffn_hidden_size.value_or(4 * model.hidden_size); }

}  // namespace

const char* name_of(ModelPart part) {
  switch (part) {
    case ModelPart::word_embeddings: return "word embeddings";
    case ModelPart::position_embeddings: return "position embeddings";
    case ModelPart::attention: return "attention";
    case ModelPart::mlp: return "MLP";
    case ModelPart::norms: return "norms";
    case ModelPart::output_layer: return "output layer";
  }
  return "?";
}

std::vector<ParameterTensor> parameter_tensors(const ModelConfig& model, int64_t vocab) {
  const int64_t h = model.hidden_size, f = ffn_of(model);
  std::vector<ParameterTensor> tensors;
  tensors.reserve(static_cast<size_t>(12 * model.num_layers + 5));
  const auto add = [&](ModelPart part, int64_t elements, bool cut) { tensors.push_back({part, elements, cut}); };

  add(ModelPart::word_embeddings, vocab * h, true);
  add(ModelPart::position_embeddings, model.seq_length * h, false);
  for (int64_t layer = 0; layer < model.num_layers; ++layer) {
    add(ModelPart::norms, h, false);
    add(ModelPart::norms, h, false);
    add(ModelPart::attention, 3 * h * h, true);  // query, key, value
    add(ModelPart::attention, 3 * h, true);
    add(ModelPart::attention, h * h, true);  // projection
    add(ModelPart::attention, h, false);
    add(ModelPart::norms, h, false);
    add(ModelPart::norms, h, false);
    add(ModelPart::mlp, f * h, true);
    add(ModelPart::mlp, f, true);
    add(ModelPart::mlp, h * f, true);
    add(ModelPart::mlp, h, false);
  }
  add(ModelPart::norms, h, false);
  add(ModelPart::norms, h, false);
  if (model.untie_embeddings_and_output_weights) add(ModelPart::output_layer, vocab * h, true);
  return tensors;
}

int64_t ParameterCount::total() const { return std::accumulate(of.begin(), of.end(), int64_t{0}); }

ParameterCount count_parameters(const ModelConfig& model, int64_t vocab) {
  ParameterCount count;
  for (const ParameterTensor& tensor : parameter_tensors(model, vocab))
    count.of[static_cast<size_t>(tensor.part)] += tensor.elements;
  return count;
}

FlopsConvention parse_flops_convention(std::string_view text) {
  for (const auto convention : {FlopsConvention::causal, FlopsConvention::full, FlopsConvention::six_n})
    if (text == name_of(convention)) return convention;
  throw ConfigError("train.flops_convention: found " + std::string(text) + ", expected one of causal, full, 6n");
}

const char* name_of(FlopsConvention convention) {
  switch (convention) {
    case FlopsConvention::causal: return "causal";
    case FlopsConvention::full: return "full";
    case FlopsConvention::six_n: return "6n";
  }
  return "?";
}

TokenFlops flops_per_token(const ModelConfig& model, int64_t vocab, FlopsConvention convention) {
  if (convention == FlopsConvention::six_n)
    return {.layers = 6.0 * static_cast<double>(count_parameters(model, vocab).total())};
  const double L = static_cast<double>(model.num_layers), h = static_cast<double>(model.hidden_size);
  const double f = static_cast<double>(ffn_of(model)), s = static_cast<double>(model.seq_length);
  const double positions = convention == FlopsConvention::causal ? s / 2 : s;  // that a token attends to, on average
  return {.layers = L * (24 * h * h + 12 * h * f),
          .attention = 12 * L * h * positions,
          .logits = 6 * h * static_cast<double>(vocab)};
}

double flops_per_step(const ModelConfig& model, int64_t vocab, int64_t global_batch, FlopsConvention convention) {
  return flops_per_token(model, vocab, convention).total() * static_cast<double>(global_batch) *
         static_cast<double>(model.seq_length);
}

double model_flops_utilisation(double flops, double seconds, int ranks, double peak_tflops) {
  return flops / (seconds * ranks * peak_tflops * 1e12);
}

}  // namespace trivet
