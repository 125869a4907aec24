#include <fmt/format.h>

#include "engine/config/problems.h"
#include "launch/commands.h"
#include "parallel/comm/world.h"

namespace trivet {

void run_ranks(std::optional<CommBackend> backend, int asked, int needed,
               const std::function<void(Communicator& world)>& rank_main) {
  const int launched = launched_world_size();
  const auto main = [&](Communicator& world) { naming_keys([&] { rank_main(world); }); };
  // nccl and staged say how GPUs talk, not who the ranks are.
  if (backend == CommBackend::mpi || (backend != CommBackend::thread && launched > 0)) {
    if (asked > 0 && launched > 0 && asked != launched)
      throw ConfigError(
          fmt::format("--ranks {} under a launcher that started {} ranks: leave --ranks out there", asked, launched));
    // Without a launcher MPI would make a world of this process alone.
    if (built_with_mpi() && !has_mpi_launcher())
      throw ConfigError(
          fmt::format("comm.backend is mpi, but no launcher started this process; expected mpirun -n {0} trivet …, "
                      "without --ranks, or comm.backend thread for {0} rank{1} in this process",
                      asked > 0 ? asked : needed, (asked > 0 ? asked : needed) == 1 ? "" : "s"));
    return naming_keys([&] { run_mpi_rank(main); });
  }
  if (launched > 1)
    throw ConfigError(
        fmt::format("comm.backend is thread, but a launcher started {} processes: each would run a "
                    "model of its own",
                    launched));
  run_thread_ranks(asked > 0 ? asked : needed, main);
}

}  // namespace trivet
