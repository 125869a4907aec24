#include "launch/ranks.h"

#include <fmt/format.h>

#include "parallel/comm/world.h"

namespace trivet {

void run_ranks(const std::string& backend, int asked, int needed,
               const std::function<void(Communicator& world)>& rank_main) {
  const int launched = launched_world_size();
  if (backend == "mpi" || (backend == "auto" && launched > 0)) {
    if (asked > 0 && launched > 0 && asked != launched)
      throw ConfigError(
          fmt::format("--ranks {} under a launcher that started {} ranks: leave --ranks out there", asked, launched));
    return run_mpi_rank(rank_main);
  }
  if (launched > 1)
    throw ConfigError(
        fmt::format("comm.backend is thread, but a launcher started {} processes: each would run a "
                    "model of its own",
                    launched));
  run_thread_ranks(asked > 0 ? asked : needed, rank_main);
}

}  // namespace trivet
