// A planned run: a loaded configuration on a number of ranks of a system, with the values that it leaves to the planner
// (`auto`) chosen.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "engine/config/load.h"
#include "tools/plan/predict.h"

namespace trivet {

// A configuration that was resolved for a number of ranks.
struct LegalRun {
  LoadedConfig loaded;
  Layout layout;
};
// Throws ConfigError if a run has no step of one size that could be planned.
void check_is_planned(const Config& config);
// `run` with other values of some keys ("section.key=value"). Throws ConfigError if the engine refuses it, or if
// it has no step of one size that could be planned.
LegalRun legal_run(const LoadedConfig& run, int ranks, std::span<const std::string> sets = {});

struct RunPlan {
  LegalRun run;
  Prediction prediction;
  std::string choice = {};  // the planner's choice, and among how many; "": none
};

// Plans a run. The micro-batch size and v, where they are left to the planner, are those of the fastest step that fits
// in memory; where none fits, of the run that needs the least. Of the micro-batch size it tries the divisors of the
// samples of a data-parallel rank up to 64, and the larger ones that are powers of two; of v all that the engine takes,
// by the schedule 1f1b for 1 and interleaved for more where the run has one of these. Throws ConfigError, IoError.
RunPlan plan_run(const LoadedConfig& run, int ranks, const System& system, const PredictOptions& options = {});

}  // namespace trivet
