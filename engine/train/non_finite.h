// Where the numbers of a step went wrong.
#pragma once

#include <string>

#include "parallel/comm/host_world.h"
#include "engine/train/rank_state.h"

namespace trivet {

struct NonFinite {
  int rank = -1;       // the first rank that has one; -1: none does
  std::string what{};  // the loss of which rank; the parameter, its stage and rank, how many, and the numbers around
};

// Queues the search of this rank's gradients, which finds nothing to do in a step that is taken: by the time the host
// reads that one was not, the next step's gradients are in their place.
void search_non_finite(RankState& state, Ops& ops, Stream& stream);

// What that search has found, on any rank: the first one tells all. own_loss: this rank's part of the loss. After the
// reduction a gradient is as bad on all ranks that share it; a loss is its rank's own. Collective.
NonFinite find_non_finite(const RankState& state, int pipeline_rank, float own_loss, HostWorld& host, Device& device,
                          Stream& stream);

}  // namespace trivet
