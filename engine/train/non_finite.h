// Where the numbers of a step went wrong.
#pragma once

#include <string>

#include "engine/train/rank_state.h"

namespace trivet {

struct NonFinite {
  int rank = -1;       // the first rank that has one; -1: none does
  std::string what{};  // the loss of which rank; the parameter, its stage and rank, how many, and the numbers around
};

// Every rank looks through its own gradients and its own part of the loss; the first that has found something tells
// all. After the reduction a gradient is as bad on all ranks that share it; a loss is its rank's own. Collective over
// `world`; overwrites the optimizer's norm.
NonFinite find_non_finite(RankState& state, int pipeline_rank, float own_loss, Communicator& world, Device& device,
                          Stream& stream);

}  // namespace trivet
