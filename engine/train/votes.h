// Votes: what the ranks agree on between two steps. Their sums travel in the all-reduce of a step's statistics, so that
// all ranks draw the same conclusions. A rank that stopped alone would leave the others waiting in a collective.
#pragma once

#include "engine/checkpoint/saver.h"

namespace trivet {

// Numbers of ranks; nothing but int64_t, for the all-reduce.
struct Votes {
  int64_t stop_signal = 0;  // the process was asked to stop
  int64_t out_of_time = 0;  // the next step might exceed the time limit
  SaveVote save;

  void add(const Votes& other) {
    stop_signal += other.stop_signal;
    out_of_time += other.out_of_time;
    save.busy += other.save.busy;
    save.failed += other.save.failed;
  }
};

}  // namespace trivet
