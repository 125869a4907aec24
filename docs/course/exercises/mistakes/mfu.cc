// The mistake: attention over the full square of positions, half of which a causal model never computes. For long
// sequences the MFU comes out far too high.
#include "docs/course/exercises/mfu.h"

namespace trivet::exercise {

double flops_per_token(const GptSizes& gpt) {
  const double kv_share = static_cast<double>(gpt.kv_heads) / static_cast<double>(gpt.heads);
  const auto layers = static_cast<double>(gpt.layers), h = static_cast<double>(gpt.hidden);
  const auto f = static_cast<double>(gpt.ffn), s = static_cast<double>(gpt.seq), vocab = static_cast<double>(gpt.vocab);
  return 6 * (layers * ((2 + 2 * kv_share) * h * h + 2 * h * f) + h * vocab) + 12 * layers * h * s;
}

double mfu(const GptSizes& gpt, double tokens_per_second, int gpus, double peak_tflops) {
  return flops_per_token(gpt) * tokens_per_second / (gpus * peak_tflops * 1e12);
}

}  // namespace trivet::exercise
