// Accounting: parameters, model FLOPs and MFU, computed from the parameters that the model's layers declare, not
// measured. A model's own vocabulary is the tokenizer's; a run stores and multiplies a padded one
// (ModelSpec::with_vocab).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "base/words.h"
#include "engine/model/spec.h"

namespace trivet {

enum class ModelPart : uint8_t { word_embeddings, position_embeddings, attention, mlp, norms, output_layer };
constexpr auto words_of(ModelPart) {
  return word_list("word embeddings", "position embeddings", "attention", "MLP", "norms", "output layer");
}
constexpr size_t kModelParts = words_of(ModelPart{}).size();

struct ParameterCount {
  std::array<int64_t, kModelParts> of{};  // indexed by ModelPart
  int64_t total() const;
  int64_t operator[](ModelPart part) const { return of[static_cast<size_t>(part)]; }
};

// Counts every weight, bias and norm. For a GPT: L (4 h^2 + 2 h f + 9 h + f) + 2 h + s h + vocab h (twice with untied
// embeddings); with f = 4 h, a layer has 12 h^2 + 13 h.
ParameterCount count_parameters(const ModelSpec& model);

// Conventions for counting the FLOPs of a step. All count an m x k by k x n GEMM as 2 m k n, the backward pass as twice
// the forward pass, and no recomputation (model FLOPs, not hardware FLOPs).
//   causal  attention scores over the causal half only: Megatron-LM since 2025-03, NeMo since 2025-08
//   full    over the full s x s square: earlier Megatron-LM and NeMo, Narayanan et al. 2021 and Korthikanti et al. 2022
//   six_n   6 x parameters: Kaplan et al. 2020, without attention scores
enum class FlopsConvention : uint8_t { causal, full, six_n };

// FLOPs of forward and backward for one token, by kind of GEMM. Exact below 2^53.
struct TokenFlops {
  double layers = 0;     // the linear layers; for a GPT: L (24 h^2 + 12 h f)
  double attention = 0;  // QK^T and PV: 12 L h s (causal: half)
  double logits = 0;     // the output layer: 6 h vocab
  double total() const { return layers + attention + logits; }
};
// Under six_n everything is in `layers`.
TokenFlops flops_per_token(const ModelSpec& model, FlopsConvention convention);

// FLOPs of one optimizer step over `global_batch` samples of seq_length tokens, on all ranks together.
double flops_per_step(const ModelSpec& model, int64_t global_batch, FlopsConvention convention);

// Same, but counts attention over `seen_keys`: the number of attended keys, summed over all queries of these samples.
double flops_in_documents(const ModelSpec& model, int64_t samples, double seen_keys);

// Model FLOPs utilisation: the fraction of `ranks` x `peak_tflops` that a step of `seconds` achieved.
double model_flops_utilisation(double flops, double seconds, int ranks, double peak_tflops);

// Peak TFLOP/s of one GPU, by the name that the driver reports, from NVIDIA's data sheets: dense (never the sparse
// figure, which is twice as high), with fp32 accumulation. `dtype`: fp8, bf16, tf32 (tensor cores) or fp32 (none).
// Empty for an unknown name or dtype, a MIG slice or a slower laptop variant, because MFU must not rest on a guess.
std::optional<double> peak_tflops_by_name(std::string_view gpu_name, std::string_view dtype);

}  // namespace trivet
