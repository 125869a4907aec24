// The MPI back end: every rank is a process on the CPU, started by mpirun or srun.
//
// Calls block the thread that runs the stream while the process's MpiProgress moves the messages, so calls of several
// groups on several streams proceed concurrently.
#pragma once

#include <memory>

#include "parallel/comm/comm.h"
#include "parallel/comm/mpi_progress.h"
#include "parallel/comm/mpi_transfer.h"

namespace trivet {

// Shared by all groups of a process; must outlive them.
struct MpiProcess {
  MpiProgress progress;
  MpiSendPool sends{progress};
  std::atomic<int> next_group = 2;  // group 1 is the world
};

std::unique_ptr<Communicator> create_mpi_communicator(MpiProcess& process);  // over the world

}  // namespace trivet
