// one_f_one_b: chapter 8, 40 minutes
//
// Write a generator for the schedule 1F1B: the program of one of p ranks, for m micro-batches. Op{OpKind::forward, i}
// is the forward pass of micro-batch i, and Op{OpKind::backward, i} its backward pass. Sends and receives follow from
// the order. A rank begins with forward passes, until its first gradient can arrive. Then it runs one forward and one
// backward pass in turn, and finally the remaining backward passes. Of all schedules of that kind, 1F1B holds the
// activations of the fewest micro-batches: at most p - rank.
#pragma once

#include "parallel/pipeline/schedule.h"

namespace trivet::exercise {

Program one_f_one_b(int p, int m, int rank);

}  // namespace trivet::exercise

// Hints
//   1. The last rank begins its first backward pass right after its first forward pass.
//   2. Each rank before it starts one forward pass earlier: p - 1 - rank passes of warm-up, but not more than m.
//   3. for (int i = 0; i < m; ++i): forward pass warm_up + i, if there is one; backward pass i.
// In the engine: parallel/pipeline/schedules.cc:fused. The test checks yours with
// parallel/pipeline/check.h:find_problems, which names any wrong op, and draws the schedule as `trivet schedule` does.
