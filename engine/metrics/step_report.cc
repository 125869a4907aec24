#include "engine/metrics/step_report.h"

#include "engine/metrics/accounting.h"

namespace trivet {

void report_speed(StepReport& report, const StepWork& work, double step_seconds, const StepStats& stats) {
  report.step_seconds = step_seconds;
  report.tokens_per_second = static_cast<double>(work.tokens) / step_seconds;
  report.model_tflops_per_rank = work.flops / step_seconds / work.ranks / 1e12;
  report.mfu = model_flops_utilisation(work.flops, step_seconds, work.ranks, work.peak_tflops);
  report.bubble_fraction = stats.bubble_fraction();
  report.stats = stats;
}

}  // namespace trivet
