// StepReport: the record of a step, for the console and metrics.jsonl; EvalReport: the record of an evaluation.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "base/statistics.h"
#include "engine/metrics/accounting.h"
#include "engine/metrics/step_stats.h"

namespace trivet {

// The state of a run's GPUs (kernels/gpu_monitor.h), if available.
struct GpuReport {
  double power_watts = 0;  // total of all GPUs, mean since the last report
  double energy_joules_per_token = 0;
  double sm_clock_mhz = 0;                          // mean
  int64_t slowed_by_power = 0, slowed_by_heat = 0;  // number of throttled GPUs
};

struct StepReport {
  static constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

  int64_t step = 0;  // from 1
  int64_t total_steps = 0;
  int64_t consumed_samples = 0;  // since the beginning of training
  int64_t consumed_tokens = 0;
  double loss = kUnknown;
  double grad_norm = kUnknown;
  double learning_rate = kUnknown;
  // Present if they vary over the run, or differ from learning_rate.
  std::optional<int64_t> batch_size = {};  // samples
  std::optional<double> weight_decay = {}, decoupled_learning_rate = {};
  std::optional<GpuReport> gpus = {};
  double step_seconds = kUnknown;
  double remaining_seconds = kUnknown;  // for the remaining steps
  double tokens_per_second = kUnknown;
  double model_tflops_per_rank = kUnknown;
  double mfu = kUnknown;  // stays unknown if the peak is
  // If attention is limited to documents: counts only the attention computed; `mfu` counts attention in whole samples.
  std::optional<double> mfu_in_documents = {};
  double bubble_fraction = kUnknown;
  StepStats stats = {};   // the sum over ranks
  int ranks = 1;          // number of ranks in stats
  KnownLinks links = {};  // without a link the floor is unknown
};

// The work of a step, the same for every step of a run.
struct StepWork {
  int64_t tokens = 0;  // of a step, on all ranks
  double flops = 0;    // model FLOPs of a step, on all ranks
  int ranks = 1;
  double peak_tflops = StepReport::kUnknown;  // of one rank
};

inline double mfu_of(const StepWork& work, double step_seconds) {
  return model_flops_utilisation(work.flops, step_seconds, work.ranks, work.peak_tflops);
}

// Fills in the speed of a step and where its time went.
inline void report_speed(StepReport& report, const StepWork& work, double step_seconds, const StepStats& stats) {
  report.step_seconds = step_seconds;
  report.tokens_per_second = static_cast<double>(work.tokens) / step_seconds;
  report.model_tflops_per_rank = work.flops / step_seconds / work.ranks / 1e12;
  report.mfu = mfu_of(work, step_seconds);
  report.bubble_fraction = stats.bubble_fraction();
  report.stats = stats;
  report.ranks = work.ranks;
}

struct EvalReport {
  int64_t step = 0;
  std::string set = "validation";      // or "test"
  double loss = StepReport::kUnknown;  // mean over the tokens
  int64_t samples = 0;
  int64_t tokens = 0;
  double seconds = StepReport::kUnknown;
  std::string checkpoint{};  // with train.skip_train: the checkpoint evaluated
};

struct SaveReport {
  int64_t step = 0;
  int64_t bytes = 0;         // of all ranks
  double stall_seconds = 0;  // how long training stalled
  double seconds = 0;        // until it was committed, as seen at the next step boundary
};

// The time limit to request for a job that finishes a run (walltime.h).
struct WallTimeReport {
  double seconds = 0;
  double lead_seconds = 0;  // from a signal to the job's end: enough to finish and save a step
  std::string text{};
};

// The duration of a step: the median of recent steps. The first step, which includes warm-up, does not count once there
// is another.
class RunningSpeed {
 public:
  void add(double step_seconds) {
    if (steps_++ == 1) recent_.clear();
    if (recent_.size() == kSteps) recent_.erase(recent_.begin());
    recent_.push_back(step_seconds);
  }
  double recent_step_seconds() const { return recent_.empty() ? StepReport::kUnknown : median(recent_); }

 private:
  static constexpr size_t kSteps = 31;
  int64_t steps_ = 0;
  std::vector<double> recent_;
};

}  // namespace trivet
