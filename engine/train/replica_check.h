// The replica check: data-parallel ranks that hold the same weights must hold the same bits. After a memory or compute
// fault on one rank training continues, and averaged gradients hide the difference; hashes show it.
#pragma once

#include <string>
#include <vector>

#include "engine/train/rank.h"
#include "parallel/comm/host_world.h"

namespace trivet {

struct ReplicaMismatch {
  int rank = -1;       // the first rank of the data-parallel group that differs from the majority; -1: all agree
  std::string what{};  // the tensor, and which ranks differ
};

// Compares replicated weights parameter by parameter, and where the optimizer is not sharded its main weights and
// moments. REQUIRES: weights are whole (ParamGather::finish). Collective over `data`, the ranks of one data-parallel
// group, with one result. world_ranks: of the group, for the text.
ReplicaMismatch compare_replicas(const Rank& rank, HostWorld& data, const std::vector<int>& world_ranks);

}  // namespace trivet
