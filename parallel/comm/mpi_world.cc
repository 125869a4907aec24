// run_mpi_rank: this process is one rank of an MPI world.
#include <cstdio>

#include "parallel/comm/mpi_comm.h"
#include "parallel/comm/world.h"

namespace trivet {

bool built_with_mpi() { return true; }

void run_mpi_rank(const std::function<void(Communicator& world)>& rank_main) {
  MpiProcess process;
  MpiProgress& progress = process.progress;
  if (const int promised = launched_world_size(); promised != 0 && promised != progress.size()) {
    progress.finish();
    throw ConfigError("the launcher started " + std::to_string(promised) + " ranks, but MPI sees a world of " +
                      std::to_string(progress.size()) +
                      "; the MPI library does not understand this launcher (under srun it needs PMIx: try srun "
                      "--mpi=pmix, or mpirun inside the allocation)");
  }
  const auto report = [&](const char* what) {
    const std::string line = "[rank " + std::to_string(progress.rank()) + "] " + what + "\n";
    std::fwrite(line.data(), 1, line.size(), stderr);  // in one piece: the ranks share a terminal
    std::fflush(stderr);
  };
  try {
    const auto world = create_mpi_communicator(process);
    rank_main(*world);
    progress.finish();
  } catch (const Error& e) {
    report(e.what());
    progress.abort_job(e.exit_code());
  } catch (const std::exception& e) {
    report(e.what());
    progress.abort_job(Error("").exit_code());
  }
}

}  // namespace trivet
