// Finds which loss or gradient of a step is not finite.
#pragma once

#include <string>

#include "engine/train/rank.h"
#include "parallel/comm/host_world.h"

namespace trivet {

struct NonFinite {
  int rank = -1;       // the first rank with a bad number; -1: none
  std::string what{};  // whose loss; the parameter, its stage and rank, how many, and the first number
};

// Queues the search of this rank's gradients. It runs in a refused step only, before the next step overwrites them.
void search_non_finite(Rank& rank);

// The first rank's result of that search, on all ranks. own_loss: this rank's part of the loss; gradients are reduced,
// and so as bad on all ranks that share them. Collective.
NonFinite find_non_finite(const Rank& rank, float own_loss, HostWorld& host);

}  // namespace trivet
