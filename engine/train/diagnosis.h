// Diagnosis of numerical faults: which loss or gradient is not finite, and which data-parallel replica differs.
#pragma once

#include <string>
#include <vector>

#include "engine/train/rank.h"
#include "parallel/comm/host_world.h"

namespace trivet {

// The non-finite values of one rank, in the form that ranks exchange. For gradients: the index of the first bad one in
// backward order, an order that is the same on all ranks; kNone: all are finite.
struct RankNumbers {
  static constexpr int64_t kNone = INT64_MAX;
  int64_t replica = 0;                       // the rank's index among the data-parallel ranks
  int64_t weight = 0, loss = 0;              // 1: a weight, or the rank's part of the loss, is not finite
  int64_t local_grad = kNone, grad = kNone;  // before the sums over ranks, and after them
};

// The first non-finite value to appear. Weights precede the step; NaNs spread across the ranks of a replica through
// activations and their gradients, but across replicas only through the gradient sums.
struct NonFiniteSource {
  enum Kind { weight, loss, local_grad, grad, none } kind = none;
  std::vector<int> ranks;    // those that found it; if several, which was first is unknown
  std::vector<int> replica;  // for loss and local_grad: all ranks of the first such replica
  int replicas = 0;          // for loss and local_grad: the number of replicas with such values
};
NonFiniteSource find_source(const std::vector<RankNumbers>& ranks);

struct NonFinite {
  int rank = -1;            // the source's rank; -1: cannot be known
  bool in_weights = false;  // bad before the step: skipping it repairs nothing
  std::string what{};       // whose weight or loss; for gradients, the parameter, stage, rank, count and first bad one
};

// Queues a search of this rank's reduced gradients. It runs only in a rejected step, before the next step overwrites
// them. GradSync searches the gradients before their reduction in every step.
void search_non_finite(Rank& rank);

// The source of the non-finite values found; same on all ranks. own_loss: this rank's part of the loss. Collective.
NonFinite find_non_finite(const Rank& rank, float own_loss, HostWorld& host);

struct ReplicaMismatch {
  int rank = -1;       // the first rank of the data-parallel group that differs from the majority; -1: all agree
  std::string what{};  // the tensor, and which ranks differ
};

// Data-parallel ranks that replicate weights must hold the same bits. After a memory or compute fault on one rank,
// training continues and averaged gradients hide the difference; hashes reveal it.
//
// Compares replicated weights parameter by parameter and, if the optimizer is not sharded, its main weights and
// moments. REQUIRES: weights are whole (ParamGather::finish). Collective over `data`, the ranks of one data-parallel
// group, which all get the same result. world_ranks: the group's, for the message.
ReplicaMismatch compare_replicas(const Rank& rank, HostWorld& data, const std::vector<int>& world_ranks);

}  // namespace trivet
