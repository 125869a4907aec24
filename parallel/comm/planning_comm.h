// A communicator without peers, for the ranks of a plan: groups are what their members say, and calls move nothing and
// wait for nobody. So one thread builds a rank of a world of any size.
#pragma once

#include <memory>

#include "parallel/comm/comm.h"

namespace trivet {

// Rank `rank` of a world of `ranks`, for tensors of `device`, which outlives it.
std::unique_ptr<Communicator> create_planning_communicator(Device& device, int rank, int ranks);

}  // namespace trivet
