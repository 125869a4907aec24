#include "docs/course/exercises/mfu.h"

namespace trivet::exercise {

double flops_per_token(const GptSizes& gpt) {
  // Your code.
  return 0;
}

double mfu(const GptSizes& gpt, double tokens_per_second, int gpus, double peak_tflops) {
  // Your code.
  return 0;
}

}  // namespace trivet::exercise
