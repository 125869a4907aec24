// A communicator without peers: calls move nothing and never wait, so that one thread can plan a rank of a world of any
// size.
#pragma once

#include <memory>

#include "parallel/comm/comm.h"

namespace trivet {

// Rank `rank` of a world of `ranks`, for tensors of `device`, which outlives it.
std::unique_ptr<Communicator> create_planning_communicator(Device& device, int rank, int ranks);

}  // namespace trivet
