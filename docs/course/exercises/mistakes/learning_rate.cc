// The mistake: the cosine counts from step 0 instead of from the end of the warm-up, so the rate drops when the warm-up
// ends.
#include "docs/course/exercises/learning_rate.h"

#include <cmath>
#include <numbers>

namespace trivet::exercise {

double learning_rate(const RateSchedule& schedule, int64_t step) {
  const auto& [warmup, decay, peak, least] = schedule;
  if (step <= warmup) return peak * static_cast<double>(step) / static_cast<double>(warmup);
  if (step > decay) return least;
  const double r = static_cast<double>(step) / static_cast<double>(decay);
  return least + (peak - least) * (1 + std::cos(std::numbers::pi * r)) / 2;
}

}  // namespace trivet::exercise
