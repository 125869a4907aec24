// Measures a spec of this machine's CPUs: the real trainer runs steps on threads, its spans are matched with the
// records on the same run's tape, and the constants that thread_ranks.h uses are fitted to the measured times.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/text.h"
#include "tools/plan/system.h"
#include "tools/plan/tape.h"

namespace trivet {

// Rank 0's operations in a step, with their median times over all steps.
struct MeasuredOps {
  struct Work {
    TapeWork what;
    double seconds = 0;
  };
  struct Call {
    int64_t bytes = 0;   // of Call::whole(); 0: a barrier
    double seconds = 0;  // from the arrival of the last rank
  };
  std::vector<Work> works;  // on its compute stream
  std::vector<Call> calls;  // collectives on its compute stream
};

// Measures `steps` steps after one warm-up step. sets: "section.key=value", applied to a small GPT. Throws ConfigError,
// or Error if the run's ops differ from its tape's.
MeasuredOps measure_run(const std::vector<std::string>& sets, int ranks, int steps);

// Fits the constants that price ops on one thread to the measured times.
void fit_ops(std::span<const MeasuredOps::Work> works, System& system);

struct MeasuredSystem {
  System system;
  std::string processor;
  TextBlock fit;  // how well the constants reproduce the data they were fitted to
};
// Returns `system` with this machine's constants. Takes a minute, during which the machine should be otherwise idle.
// Calls note() at the start of each round.
MeasuredSystem measure_system(System system, const std::function<void(const std::string&)>& note);

// The text of the measured spec.
std::string page_of(const MeasuredSystem& measured);

}  // namespace trivet
