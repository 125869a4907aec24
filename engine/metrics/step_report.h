// StepReport: what is told of a step, on the console and in metrics.jsonl alike; and the EvalReport of an evaluation.
#pragma once

#include <array>
#include <cstdint>
#include <limits>

#include "engine/metrics/step_stats.h"

namespace trivet {

struct StepReport {
  static constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

  int64_t step = 0;  // from 1
  int64_t total_steps = 0;
  int64_t consumed_samples = 0;  // since the beginning of training
  int64_t consumed_tokens = 0;
  double loss = kUnknown;
  double grad_norm = kUnknown;
  double learning_rate = kUnknown;
  double step_seconds = kUnknown;
  double tokens_per_second = kUnknown;
  double model_tflops_per_rank = kUnknown;
  double mfu = kUnknown;  // stays unknown where the peak is
  double bubble_fraction = kUnknown;
  // Of the step, as StepStats has them; compute to idle add up to 1.
  using Fractions = std::array<double, kCommClasses.size()>;  // of kCommClasses
  double compute_fraction = kUnknown;
  double optimizer_fraction = kUnknown;
  double exposed_wire_fraction = kUnknown;
  double exposed_wait_fraction = kUnknown;
  double host_fraction = kUnknown;
  double idle_fraction = kUnknown;
  Fractions class_wire_fraction = {kUnknown, kUnknown, kUnknown};  // add up to exposed_wire_fraction
  Fractions class_wait_fraction = {kUnknown, kUnknown, kUnknown};
  double overlap_ratio = kUnknown;  // unknown without communication
};

// What a step amounts to, the same for every step of a run.
struct StepWork {
  int64_t samples = 0;  // of a step, on all ranks
  int64_t tokens = 0;
  double flops = 0;  // model FLOPs of a step, on all ranks
  int ranks = 1;
  double peak_tflops = StepReport::kUnknown;  // of one rank
};

// Fills in the speed of a step, and the fractions of `stats` (of one rank, or added up over ranks).
void report_speed(StepReport& report, const StepWork& work, double step_seconds, const StepStats& stats);

struct EvalReport {
  int64_t step = 0;
  double validation_loss = StepReport::kUnknown;
  int64_t samples = 0;
  double seconds = StepReport::kUnknown;
};

struct SaveReport {
  int64_t step = 0;
  int64_t bytes = 0;         // of all ranks
  double stall_seconds = 0;  // that training stood still
  double seconds = 0;        // until it was committed, as the next step boundary saw it
};

// The speed of the last steps. The first ones, in which everything is touched for the first time, do not count
// once there are others.
class RunningSpeed {
 public:
  explicit RunningSpeed(int64_t warm_up_steps = 1) : warm_up_steps_(warm_up_steps) {}
  void add(double step_seconds);
  int64_t steps() const { return steps_; }
  // A mean that forgets: half of it is the last ten steps or so. kUnknown before the first one.
  double recent_step_seconds() const;

 private:
  int64_t warm_up_steps_;
  int64_t steps_ = 0;
  double recent_ = StepReport::kUnknown;
};

}  // namespace trivet
