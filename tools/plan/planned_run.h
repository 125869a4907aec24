// A planned run: a loaded configuration on a given number of a system's ranks, with values chosen for the keys that it
// leaves to the planner (`auto`).
#pragma once

#include <span>
#include <string>
#include <vector>

#include "engine/config/load.h"
#include "tools/plan/predict.h"

namespace trivet {

// A configuration resolved for a given number of ranks.
struct LegalRun {
  LoadedConfig loaded;
  Layout layout;
};
// Throws ConfigError if no single step represents the run: it skips training, or its batch size changes.
void check_is_planned(const Config& config);
// `run` with some keys overridden ("section.key=value"). Throws ConfigError if the engine rejects it, or like
// check_is_planned().
LegalRun legal_run(const LoadedConfig& run, int ranks, std::span<const std::string> sets = {});

struct RunPlan {
  LegalRun run;
  Prediction prediction;
  std::string choice = {};  // the values chosen for `auto`, and the number of candidates; "": no `auto`
};

// Plans a run. If the micro-batch size or v is left to the planner, it chooses the values with the fastest step that
// fits in memory or, if none fits, those that need the least memory. It tries all micro-batch sizes that divide a
// data-parallel rank's samples (above 64, only powers of two), and all v that the engine accepts. If the run's schedule
// is 1f1b or interleaved, v = 1 is planned as 1f1b and larger v as interleaved. Throws ConfigError, IoError.
RunPlan plan_run(const LoadedConfig& run, int ranks, const System& system, const PredictOptions& options = {});

}  // namespace trivet
