// Measurement: the page of this machine's CPUs. The real trainer takes steps on threads, its spans are matched with the
// records of the same run's tape, and the constants are fitted to them: what thread_ranks.h prices.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/text.h"
#include "tools/plan/system.h"
#include "tools/plan/tape.h"

namespace trivet {

// Rank 0's operations in a step, with the medians over the steps.
struct MeasuredOps {
  struct Work {
    TapeWork what;
    double seconds = 0;
  };
  struct Call {
    int64_t bytes = 0;   // of Call::whole(); 0: a barrier
    double seconds = 0;  // from when the last rank has come
  };
  std::vector<Work> works;  // of its compute stream
  std::vector<Call> calls;  // collectives of its compute stream
};

// Runs `steps` steps after one that is left out. sets: "section.key=value", over a small GPT. Throws ConfigError, and
// Error if the run has other ops than its tape.
MeasuredOps measure_run(const std::vector<std::string>& sets, int ranks, int steps);

// Fits the constants that price ops on one thread to the measured times.
void fit_ops(std::span<const MeasuredOps::Work> works, System& system);

struct MeasuredSystem {
  System system;
  std::string processor;
  TextBlock fit;  // how well the constants reproduce the data that they were fitted to
};
// The system with the constants of this machine. Takes a minute, during which nothing else should run here; `note` gets
// the present measurement.
MeasuredSystem measure_system(System system, const std::function<void(const std::string&)>& note);

// As a page.
std::string page_of(const MeasuredSystem& measured);

}  // namespace trivet
