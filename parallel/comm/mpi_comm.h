// The MPI back end: every rank is a process on the CPU, started by mpirun or srun.
//
// Calls block the thread that runs the stream while the process's MpiProgress moves the messages, so calls of several
// groups on several streams proceed side by side.
#pragma once

#include <memory>

#include "parallel/comm/comm.h"
#include "parallel/comm/mpi_progress.h"
#include "parallel/comm/mpi_transfer.h"

namespace trivet {

// Shared by the groups of a process. Outlives them.
struct MpiProcess {
  MpiProgress progress;
  MpiSendPool sends{progress};
  std::atomic<int> next_group = 2;  // group 1 is the world
};

std::unique_ptr<Communicator> create_mpi_communicator(MpiProcess& process);  // of the world

}  // namespace trivet
