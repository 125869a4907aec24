// Which ranks a command runs on: threads of this process, or processes that a launcher has started.
#pragma once

#include <functional>
#include <optional>

#include "engine/config/choices.h"
#include "parallel/comm/comm.h"

namespace trivet {

// Runs rank_main on the ranks: under a launcher, or with the backend mpi, this process is one of its ranks; else
// `asked` threads (--ranks; 0: not given, then `needed`). Throws ConfigError where the two disagree.
void run_ranks(std::optional<CommBackend> backend, int asked, int needed,
               const std::function<void(Communicator& world)>& rank_main);

}  // namespace trivet
