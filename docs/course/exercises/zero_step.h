// zero_step: chapter 5, 30 minutes
//
// One step of SGD with momentum, sharded as in ZeRO 1. All d ranks have the same n weights, and each has the gradients
// of its own samples. Momentum is sharded: rank r has it for its part, elements r n / d to (r + 1) n / d. With g
// the mean of the gradients over ranks:
//     momentum = 0.9 momentum + g;   weights -= rate momentum
// At the end, all ranks have all new weights.
#pragma once

#include <span>

#include "docs/course/exercises/support/ranks.h"

namespace trivet::exercise {

// weights, grads: [n]; momentum: [n / d]
void zero_step(Communicator& data, std::span<float> weights, std::span<float> grads, std::span<float> momentum,
               float rate, Stream& stream);

}  // namespace trivet::exercise

// Hints
//   1. reduce_scatter gives a rank its part of the mean. Reduce::average is the mean, Reduce::sum is not.
//   2. Only the rank's own part of the weights is updated: weights.subspan(r n / d, n / d).
//   3. all_gather collects the parts of all ranks in place: its shard may be a part of the whole.
// In the engine: parallel/data/grad_sync.cc, optimizer.cc and param_gather.cc, each overlapped with computation.
