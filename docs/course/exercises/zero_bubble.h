// zero_bubble: chapter 8, 50 minutes
//
// A backward pass has two halves. OpKind::backward_input computes the gradient of the stage's input, for which the
// previous rank waits; OpKind::backward_weight computes the gradients of the weights, for which only the optimizer
// waits. Run the second half later, where 1F1B is idle, and the bubble shrinks from (p - 1)(tF + tI + tW) to
// (p - 1)(tF + tI - tW): the schedule ZB-H1. No rank may hold the activations of more than p micro-batches; the weight
// half frees them.
#pragma once

#include "parallel/pipeline/schedule.h"

namespace trivet::exercise {

Program zero_bubble(int p, int m, int rank);

}  // namespace trivet::exercise

// Hints
//   1. Begin with 1F1B, and split each backward pass: I for the input, W for the weights.
//   2. Rank 0 has the longest warm-up, and holds p micro-batches; its W have to follow their I. The last rank holds
//      only one: its W can run p - 1 micro-batches late, and fill the end, while the other ranks are still busy.
//   3. After each I, rank r runs the oldest W that waits, if more than r are waiting. The rest comes at the end.
// In the engine: parallel/pipeline/schedules.cc:zero_bubble_h. Paper: Qi et al. 2024.
