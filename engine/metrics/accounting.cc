#include "engine/metrics/accounting.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "base/check.h"
#include "engine/model/modules.h"

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
    case Module::q_norm:
    case Module::k_norm:
    case Module::mlp_norm:
    case Module::final_norm: return ModelPart::norms;
    case Module::output_layer: return ModelPart::output_layer;
  }
  fail("a module of no part");
}

struct GpuPeak {
  std::string_view model;        // a word in the GPU's name
  std::string_view variant;      // another word in it; "": any
  double fp8, bf16, tf32, fp32;  // 0: not supported, or not published
};

// A model's variants come before the model.
constexpr GpuPeak kPeaks[] = {
    {"GB200", "", 5000, 2500, 1250, 80},
    {"B200", "", 4500, 2250, 1125, 75},
    {"H200", "NVL", 1671, 835.5, 417.5, 60},
    {"H200", "", 1978.9, 989.4, 494.7, 66.9},
    {"GH200", "", 1978.9, 989.4, 494.7, 66.9},
    {"H100", "PCIe", 1513, 756, 378, 51.2},
    {"H100", "NVL", 1671, 835.5, 417.5, 60},
    {"H100", "", 1978.9, 989.4, 494.7, 66.9},
    {"H800", "PCIe", 1513, 756, 378, 51.2},
    {"H800", "", 1978.9, 989.4, 494.7, 66.9},
    {"H20", "", 296, 148, 74, 44},
    {"A100", "", 0, 312, 156, 19.5},
    {"A800", "", 0, 312, 156, 19.5},
    {"A30", "", 0, 165, 82, 10.3},
    {"A40", "", 0, 149.7, 74.8, 37.4},
    {"A10", "", 0, 125, 62.5, 31.2},
    {"A6000", "", 0, 154.8, 77.4, 38.7},
    {"L40S", "", 733, 362, 183, 91.6},
    {"L40", "", 362, 181, 90.5, 90.5},
    {"L4", "", 242.5, 121, 60, 30.3},
    {"V100", "SXM2", 0, 0, 0, 15.7},
    {"V100", "PCIE", 0, 0, 0, 14},
    {"4090", "", 0, 165.2, 82.6, 82.6},
    {"3090", "", 0, 71, 35.6, 35.6},
};

std::vector<std::string> name_words(std::string_view name) {
  std::vector<std::string> words(1);
  for (const char c : name) {
    if (c == ' ' || c == '-' || c == '_') words.emplace_back();
    else words.back() += c;
  }
  return words;
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
  // For each token, every element of a linear layer's weight takes part in three multiply-adds: one in forward and one
  // for each gradient. Same for the output layer's weight, which may be the word embedding's.
  double weights = 0;
  for (const ModelTensor& tensor : model_tensors(model))
    if (is_linear(tensor.module) && tensor.param.name.ends_with(".weight"))
      weights += static_cast<double>(tensor.param.global_shape.numel());
  const double s = static_cast<double>(model.seq);
  const double positions = convention == FlopsConvention::causal ? s / 2 : s;  // attended to per token, on average
  const double width = static_cast<double>(model.attention.width());
  return {.layers = 6 * weights,
          .attention = 12 * static_cast<double>(model.num_layers) * width * positions,
          .logits = 6 * static_cast<double>(model.hidden) * static_cast<double>(model.vocab)};
}

double flops_per_step(const ModelSpec& model, int64_t global_batch, FlopsConvention convention) {
  return flops_per_token(model, convention).total() * static_cast<double>(global_batch) *
         static_cast<double>(model.seq);
}

double flops_in_documents(const ModelSpec& model, int64_t samples, double seen_keys) {
  const TokenFlops token = flops_per_token(model, FlopsConvention::full);
  return (token.layers + token.logits) * static_cast<double>(samples * model.seq) +
         token.attention / static_cast<double>(model.seq) * seen_keys;
}

double model_flops_utilisation(double flops, double seconds, int ranks, double peak_tflops) {
  return flops / (seconds * ranks * peak_tflops * 1e12);
}

std::optional<double> peak_tflops_by_name(std::string_view gpu_name, std::string_view dtype) {
  const auto words = name_words(gpu_name);
  const auto has = [&](std::string_view word) { return std::find(words.begin(), words.end(), word) != words.end(); };
  if (has("MIG") || has("Laptop") || has("Max") || has("Mobile") || has("D") || has("Ti")) return {};
  for (const GpuPeak& gpu : kPeaks) {
    if (!has(gpu.model) || !(gpu.variant.empty() || has(gpu.variant))) continue;
    const double peak = dtype == "fp8"    ? gpu.fp8
                        : dtype == "bf16" ? gpu.bf16
                        : dtype == "tf32" ? gpu.tf32
                        : dtype == "fp32" ? gpu.fp32
                                          : 0;
    return peak > 0 ? std::optional(peak) : std::nullopt;
  }
  return {};
}

}  // namespace trivet
