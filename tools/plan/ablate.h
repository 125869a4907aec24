// Ablation: what a planned step spends its time on, and how much each switch would recover.
//
//   without   the step time with one cost class at a time set to zero, on the same tapes. Classes overlap in time, so
//             the gains do not add up
//   path      the critical path of the last step, traced back from its end; each nanosecond counts once
//   switches  each switch (switches.h) changed on its own: the run is recorded and replayed again
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/text.h"
#include "tools/plan/planned_run.h"
#include "tools/plan/switches.h"

namespace trivet {

struct Ablation {
  struct Without {
    std::string what;  // "attention"
    double step_seconds = 0;
  };
  struct Switched {
    Switch how;
    std::string refusal = {};  // why the change is invalid or without effect; "": neither
    double step_seconds = 0;
    int64_t memory_bytes = 0;
  };
  struct PathShare {
    std::string what;  // "matmul"; "all_reduce (data)"
    int64_t ns = 0;
  };
  double step_seconds = 0;
  int64_t memory_bytes = 0, capacity_bytes = 0;
  std::vector<PathShare> path = {};     // of the last step, largest first; adds up to the step time
  std::vector<Without> without = {};    // largest gain first
  std::vector<Switched> switches = {};  // largest gain first; invalid ones last
};

// The critical path of the last step, summed by name.
std::vector<Ablation::PathShare> critical_path(const Rehearsal& rehearsal, const ReplayCosts& costs);

// progress: called before each prediction with the number done and the total.
Ablation ablate(const LegalRun& run, const System& system,
                const std::function<void(size_t done, size_t of)>& progress = {});

// Fills `switches` with the effect on `a` of each setting in which `b` differs and, last, of all these settings
// together; leaves `path` and `without` empty. Throws ConfigError if `a` is rejected.
Ablation compare(const LoadedConfig& a, const LoadedConfig& b, int ranks, const System& system);

std::vector<TextBlock> describe(const Ablation& ablation);
nlohmann::ordered_json json_of(const Ablation& ablation);

}  // namespace trivet
