// The results of a benchmark's runs: time and samples to the target, the score, and whether the runs converge like the
// reference. See training_rules.adoc, sections "Run Results" and "Reference Convergence Points".
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/text.h"
#include "tools/mlperf/log.h"

namespace trivet::mlperf {

struct RunResult {
  std::string file;  // its name, without the folder
  std::string benchmark;
  int64_t seed = -1, batch = 0;
  std::string status{};  // from run_stop; "": not logged
  double minutes = 0;    // from run_start to run_stop
  double target = 0;     // 0: unknown
  struct Evaluation {
    double samples, loss;
  };
  std::vector<Evaluation> evaluations{};

  bool converged() const { return status == "success"; }
  double samples() const { return evaluations.empty() ? 0 : evaluations.back().samples; }
};

// Throws DataError if the log lacks a line that a result needs.
RunResult result_of(const Log& log);

// Olympic scoring: the mean of the minutes without the fastest and the slowest run; a run that did not converge counts
// as the slowest. Empty if there are fewer than three runs, or two did not converge.
std::optional<double> score_of(std::span<const RunResult> runs);

// Samples to the target of each reference run.
struct Reference {
  std::string benchmark;
  int64_t batch = 0;
  double target = 0;
  std::vector<double> samples{};
};
Reference read_reference(const std::string& path);
// Returns what read_reference() reads. Throws ConfigError for fewer than three runs, or if a run did not converge.
std::string reference_text(std::span<const RunResult> runs);

// The runs, the score and, if there is a reference, the test against it.
std::vector<TextBlock> summary_blocks(std::span<const RunResult> runs, const std::optional<Reference>& reference);
// Loss over samples as SVG, one line per run.
std::string plot_evaluations(std::span<const RunResult> runs);

}  // namespace trivet::mlperf
