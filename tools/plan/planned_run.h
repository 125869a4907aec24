// A planned run: a loaded configuration on a number of ranks of a system, with the values that it leaves to the planner
// (`auto`) chosen.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "engine/config/load.h"
#include "tools/plan/predict.h"

namespace trivet {

// A configuration resolved for a number of ranks.
struct LegalRun {
  LoadedConfig loaded;
  Layout layout;
};
// Throws ConfigError if the run has no single kind of step to plan: it skips training, or its batch size changes.
void check_is_planned(const Config& config);
// `run` with other values of some keys ("section.key=value"). Throws ConfigError if the engine refuses it, or as
// check_is_planned() does.
LegalRun legal_run(const LoadedConfig& run, int ranks, std::span<const std::string> sets = {});

struct RunPlan {
  LegalRun run;
  Prediction prediction;
  std::string choice = {};  // the values chosen for `auto`, and out of how many; "": none
};

// Plans a run. If the micro-batch size or v is left to the planner, it chooses the fastest step that fits in memory, or
// if none fits, the run that needs the least memory. It tries the micro-batch sizes that divide the samples of a
// data-parallel rank, above 64 only powers of two; and all v that the engine accepts. If the run's schedule is 1f1b or
// interleaved, v = 1 is planned as 1f1b and larger v as interleaved. Throws ConfigError, IoError.
RunPlan plan_run(const LoadedConfig& run, int ranks, const System& system, const PredictOptions& options = {});

}  // namespace trivet
