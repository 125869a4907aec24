// Votes: what the ranks have to agree on between two steps. Each rank says what it knows; the sums, which travel in the
// one all-reduce that a step has for its statistics, are the same for all, and so are the conclusions. A rank that
// stopped on a signal of its own would leave the others waiting in their next collective.
#pragma once

#include "engine/checkpoint/saver.h"
#include "engine/metrics/step_stats.h"

namespace trivet {

// Ranks that say so. Nothing but int64_t, so that an all-reduce can add them.
struct Votes {
  int64_t stop_signal = 0;  // the process was asked to stop
  int64_t out_of_time = 0;  // the next step might end too late
  SaveVote save;

  void add(const Votes& other) {
    stop_signal += other.stop_signal;
    out_of_time += other.out_of_time;
    save.busy += other.save.busy;
    save.failed += other.save.failed;
  }
};

struct StepSums {
  StepStats stats;
  Votes votes;
};

}  // namespace trivet
