// Replaces mpi_comm.cc in a build without MPI.
#include "parallel/comm/world.h"

namespace trivet {

bool built_with_mpi() { return false; }

void run_mpi_rank(const std::function<void(Communicator& world)>&) {
  throw ConfigError(
      "MPI is not in this build; install an MPI library (libopenmpi-dev) and configure with -DTRIVET_MPI=ON, or run "
      "the ranks as threads",
      Lack::mpi);
}

}  // namespace trivet
