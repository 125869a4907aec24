// Diagnosis of wrong numbers: which loss or gradient is not finite, and which data-parallel replica differs.
#pragma once

#include <string>
#include <vector>

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

struct ReplicaMismatch {
  int rank = -1;       // the first rank of the data-parallel group that differs from the majority; -1: all agree
  std::string what{};  // the tensor, and which ranks differ
};

// Data-parallel ranks that hold the same weights must hold the same bits. After a memory or compute fault on one rank
// training continues, and averaged gradients hide the difference; hashes show it.
//
// Compares replicated weights parameter by parameter, and where the optimizer is not sharded its main weights and
// moments. REQUIRES: weights are whole (ParamGather::finish). Collective over `data`, the ranks of one data-parallel
// group, with one result. world_ranks: of the group, for the text.
ReplicaMismatch compare_replicas(const Rank& rank, HostWorld& data, const std::vector<int>& world_ranks);

}  // namespace trivet
