// Rows: measured runs, for comparing predictions and for fitting a system's constants. A row is a run's ordinary
// configuration and its step time.
//
// A CSV file: lines that begin with '#' are comments; the first other line names the columns:
//   run               the run's YAML file, relative to the CSV file's folder
//   ranks             the number of ranks
//   SECTION.KEY       overrides the file's value, as --set does; an empty cell keeps it
//   system.KEY        overrides the spec's constant, as --system-set does; an empty cell keeps it
//   one of step_seconds, tokens_per_second_per_rank, model_tflops_per_rank (by train.flops_convention)
// Or a run's metrics.jsonl, with config.resolved.yaml in the same folder; the step time is then the median over all
// steps except the first two.
#pragma once

#include <string>
#include <vector>

#include "tools/plan/rehearsal.h"
#include "tools/plan/system.h"

namespace trivet {

struct MeasuredRow {
  std::string place;   // FILE:LINE
  Config config = {};  // resolved
  Layout layout = {};
  std::vector<std::string> system_sets = {};
  double step_seconds = 0;
};

// Throws IoError, or ConfigError with the file, line, column, and found and expected values of the first problem.
std::vector<MeasuredRow> read_rows(const std::string& path);

}  // namespace trivet
