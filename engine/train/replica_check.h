// The replica check: data-parallel ranks that hold the same weights must hold the same bits. A rank whose memory or
// arithmetic has gone wrong trains on, and the mean of the gradients hides it; a hash does not.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "parallel/comm/host_world.h"
#include "kernels/base/device.h"
#include "parallel/data/adam.h"
#include "parallel/data/flat_buffer.h"

namespace trivet {

struct ReplicaMismatch {
  int rank = -1;       // of the data-parallel group: the first that differs from most; -1: all agree
  std::string what{};  // the tensor, and who differs
};

// Compares the weights that are kept whole, parameter by parameter, and where the optimizer is not shared its main
// weights and moments. Nothing that is shared out has a replica. REQUIRES: weights are whole (ParamGather::finish).
// Collective over `data`, the ranks of one data-parallel group; the same result on
// all of them. world_ranks: of the group, for the text.
ReplicaMismatch compare_replicas(const FlatBuffer& flat, const Adam& adam, HostWorld& data,
                                 const std::vector<int>& world_ranks, Device& device, Stream& stream);

}  // namespace trivet
