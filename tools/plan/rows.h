// Rows: measured runs to compare predictions with, and to fit a system's constants to. A row is a run of the ordinary
// configuration and how long its step took.
//
// A CSV file: lines that begin with '#' are comments, the first other line names the columns:
//   run               the run's YAML file, relative to the CSV file's folder
//   ranks             of the run
//   SECTION.KEY       a value instead of the file's, as --set; an empty cell leaves it
//   system.KEY        a constant instead of the page's, as --system-set; an empty cell leaves it
//   one of step_seconds, tokens_per_second_per_rank, model_tflops_per_rank (by train.flops_convention)
// Or the metrics.jsonl of a run: its folder has config.resolved.yaml, and its step is the median of those after the
// first two.
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

// Every problem is one ConfigError with its file, line, column, found and expected; IoError.
std::vector<MeasuredRow> read_rows(const std::string& path);

}  // namespace trivet
