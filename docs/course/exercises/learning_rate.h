// learning_rate: chapter 0, 15 minutes
//
// The learning rate of a step, counted from 1. It rises in a straight line, from 0 before the first step to `peak` at
// step `warmup`. Then it falls along half a period of a cosine, to `least` at step `decay`, and stays there.
#pragma once

#include <cstdint>

namespace trivet::exercise {

struct RateSchedule {
  int64_t warmup, decay;  // steps
  double peak, least;
};

double learning_rate(const RateSchedule& schedule, int64_t step);

}  // namespace trivet::exercise

// Hints
//   1. There are three cases: up to `warmup`, up to `decay`, and later.
//   2. In the second, let r run from 0 at step `warmup` to 1 at step `decay`.
//   3. (1 + cos(pi r)) / 2 falls from 1 to 0. It scales peak - least.
// In the engine: engine/train/lr_schedule.h:learning_rate, which has more shapes than the cosine.
