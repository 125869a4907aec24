// Diagnosis of wrong numbers: which loss or gradient is not finite, and which data-parallel replica differs.
#pragma once

#include <string>
#include <vector>

#include "engine/train/rank.h"
#include "parallel/comm/host_world.h"

namespace trivet {

// The non-finite numbers of one rank, as ranks exchange them. Gradients are identified by the place of the first
// bad one in the order in which the backward pass makes them, the same on all ranks; kNone: all are finite.
struct RankNumbers {
  static constexpr int64_t kNone = INT64_MAX;
  int64_t replica = 0;                       // the rank's place among the data-parallel ranks
  int64_t weight = 0, loss = 0;              // 1: one, or the rank's part of it, is not finite
  int64_t local_grad = kNone, grad = kNone;  // before the sums over ranks, and after them
};

// The first of these numbers to appear. Weights precede the step; NaN spreads over the ranks of a replica with the
// activations and their gradients, and over replicas only with the sums.
struct NonFiniteSource {
  enum Kind { weight, loss, local_grad, grad, none } kind = none;
  std::vector<int> ranks;    // that have it; more than one: which of them was first cannot be known
  std::vector<int> replica;  // of loss and local_grad: all ranks of the first one's replica
  int replicas = 0;          // of them: those with such numbers
};
NonFiniteSource find_source(const std::vector<RankNumbers>& ranks);

struct NonFinite {
  int rank = -1;            // of the source; -1: cannot be known
  bool in_weights = false;  // since before the step: skipping it mends nothing
  std::string what{};       // whose loss or weight; the parameter, its stage and rank, how many, and the first number
};

// Queues the search of this rank's reduced gradients. It runs in a refused step only, before the next step overwrites
// them. Before their reduction GradSync has searched them in any step.
void search_non_finite(Rank& rank);

// The source of the numbers that the searches found, on all ranks. own_loss: this rank's part of the loss. Collective.
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
