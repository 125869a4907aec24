// The thread back end: ranks are threads of one process, and a group shares a board.
//
// A call publishes the rank's pointers on the board and waits for the others; then each rank reads its peers' memory
// directly, adds or copies its part, and waits again until all have read. Nothing is packed and nothing is allocated.
// A rank blocks on a condition variable, never on a busy loop: 8 ranks share 2 cores.
#pragma once

#include <memory>
#include <vector>

#include "parallel/comm/comm.h"

namespace trivet {

class ThreadWorld;

// The world group of `size` ranks: element r belongs to rank r.
std::vector<std::unique_ptr<Communicator>> create_thread_communicators(std::shared_ptr<ThreadWorld> world, int size);

}  // namespace trivet
