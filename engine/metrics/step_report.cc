#include "engine/metrics/step_report.h"

#include <cmath>

#include "engine/metrics/accounting.h"

namespace trivet {

void report_speed(StepReport& report, const StepWork& work, double step_seconds, const StepStats& stats) {
  report.step_seconds = step_seconds;
  report.tokens_per_second = static_cast<double>(work.tokens) / step_seconds;
  report.model_tflops_per_rank = work.flops / step_seconds / work.ranks / 1e12;
  report.mfu = model_flops_utilisation(work.flops, step_seconds, work.ranks, work.peak_tflops);
  report.bubble_fraction = stats.bubble_fraction();
  report.compute_fraction = stats.of_window(stats.compute);
  report.optimizer_fraction = stats.of_window(stats.optimizer);
  report.exposed_wire_fraction = stats.of_window(StepStats::sum(stats.exposed_wire));
  report.exposed_wait_fraction = stats.of_window(StepStats::sum(stats.exposed_wait));
  report.host_fraction = stats.of_window(stats.host);
  report.idle_fraction = stats.of_window(stats.idle);
  for (size_t k = 0; k < kCommClasses.size(); ++k) {
    report.class_wire_fraction[k] = stats.of_window(stats.exposed_wire[k]);
    report.class_wait_fraction[k] = stats.of_window(stats.exposed_wait[k]);
  }
  report.overlap_ratio = stats.overlap_ratio().value_or(StepReport::kUnknown);
}

void RunningSpeed::add(double step_seconds) {
  ++steps_;
  if (steps_ == warm_up_steps_ + 1) recent_ = StepReport::kUnknown;
  constexpr double kWeight = 0.07;  // 0.93^10 is about a half
  recent_ = std::isnan(recent_) ? step_seconds : recent_ + kWeight * (step_seconds - recent_);
}

double RunningSpeed::recent_step_seconds() const { return recent_; }

}  // namespace trivet
