// The configuration section `mlperf:`: selects an MLPerf Training benchmark, whose rules set the values that the other
// sections omit and whose procedure directs the run (procedure.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/words.h"
#include "engine/config/tool_section.h"
#include "tools/mlperf/rules.h"

namespace trivet {

enum class MlperfBenchmark { none, gpt3, llama31_405b, llama31_8b, tiny, tiny_gpt3 };
enum class MlperfDivision { closed, open };
enum class SubmissionStatus { onprem, cloud, preview, research };

constexpr auto words_of(MlperfBenchmark) {
  return word_list("none", "gpt3", "llama31_405b", "llama31_8b", "tiny", "tiny_gpt3");
}
constexpr auto words_of(MlperfDivision) { return word_list("closed", "open"); }
constexpr auto words_of(SubmissionStatus) { return word_list("onprem", "cloud", "preview", "research"); }

struct MlperfConfig {
  MlperfBenchmark benchmark = MlperfBenchmark::none;
  std::string round;  // "": the last round that includes the benchmark
  MlperfDivision division = MlperfDivision::closed;
  std::string submission_org;       // the submitter
  std::string submission_platform;  // the system
  SubmissionStatus submission_status = SubmissionStatus::onprem;
  std::optional<double> target;                  // validation loss at which the run ends; empty: as in the rules
  std::optional<int64_t> eval_interval_samples;  // empty: as in the rules
  int64_t skipped_evaluations = 0;               // at the start of the run
  std::string cache_clear;                       // command that drops the hosts' caches
  int64_t warmup_steps = 0;                      // on synthetic data, before the clock starts
};
const MlperfConfig& mlperf_of(const Config& config);

ToolSection mlperf_section();

// The rules of the run's benchmark, with target and cadence overridden by the configuration; empty: no benchmark.
std::optional<mlperf::Benchmark> benchmark_of(const MlperfConfig& config);

// The time to the target of a run that converges like the reference runs, from the start of the first step to the end
// of the last evaluation. Evaluating a sample takes only a forward pass and counts as a third of a training sample.
struct TimeToTarget {
  double steps = 0, evaluations = 0, minutes = 0;
};
// Empty if the run has no benchmark, or if no reference covers its batch size. config: resolved.
std::optional<TimeToTarget> time_to_target(const Config& config, double step_seconds);

}  // namespace trivet
