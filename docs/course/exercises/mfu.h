// mfu: chapter 2, 25 minutes
//
// Count the floating-point operations of a GPT per token, forward and backward, and divide what a run does by what its
// GPUs could do. A GEMM of [m, k] by [k, n] is 2 m k n operations, and its backward pass is two such GEMMs. Only GEMMs
// count: the linear layers (qkv, proj, fc1, fc2), scores and their product with the values, and the output layer. A
// position attends to s / 2 positions on average. Looking up an embedding is not a GEMM.
#pragma once

#include <cstdint>

namespace trivet::exercise {

struct GptSizes {
  int64_t layers, hidden, heads, kv_heads, ffn, seq, vocab;  // kv_heads: of keys and values; each serves several heads
};

double flops_per_token(const GptSizes& gpt);
// The share of peak_tflops (10^12 operations per second per GPU) that a run at this speed achieves.
double mfu(const GptSizes& gpt, double tokens_per_second, int gpus, double peak_tflops);

}  // namespace trivet::exercise

// Hints
//   1. A weight of a linear layer is multiplied and added once per token: 2 operations forward, 6 in all.
//   2. Weights: q and proj have h^2 each, k and v 2 h^2 kv_heads / heads, the MLP 2 h f, the output layer h vocab.
//   3. A query has h numbers in all heads and meets s / 2 keys: 2 h s / 2 operations, as many for the values, times 3.
// In the engine: engine/metrics/accounting.cc:flops_per_token, which counts the weights that the layers declare.
