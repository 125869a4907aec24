// World: the ranks of a run, and how an error on one of them ends them all.
//
//   run_thread_ranks(8, rank_main)    ranks are threads of this process
//   run_mpi_rank(rank_main)           this process is one rank of mpirun's or srun's world
#pragma once

#include <exception>
#include <functional>

#include "parallel/comm/comm.h"

namespace trivet {

// Runs rank_main(world) on n threads and returns when all have ended. When one throws, the others' collectives throw
// too; the first failure is rethrown as the same Error type, prefixed with its rank ("rank 3: …").
void run_thread_ranks(int n, const std::function<void(Communicator& world)>& rank_main);

// The number of ranks that the launcher announced (OMPI_COMM_WORLD_SIZE, PMI_SIZE, SLURM_NTASKS, …); 0: no launcher.
int launched_world_size();
// This process's rank, as the launcher announced it; 0: no launcher.
int launched_rank();
// True if this process was started by a launcher through which MPI finds its ranks, even one whose world size is
// unknown before MPI is initialised.
bool has_mpi_launcher();

// Initialises MPI, runs rank_main on the calling thread and finalises MPI. If it throws, the message goes to stderr,
// prefixed with the rank, and the whole job is aborted with the error's exit code. Throws ConfigError if the world's
// size differs from what the launcher announced, and in a build without MPI (no_mpi.cc).
void run_mpi_rank(const std::function<void(Communicator& world)>& rank_main);
bool built_with_mpi();

// Declare it after a rank's streams. When an exception unwinds the rank, it aborts the calls in which those streams
// still wait, perhaps for this rank; otherwise the streams' destructors would block forever.
class FailureGuard {
 public:
  explicit FailureGuard(Communicator& world) : world_(world), exceptions_(std::uncaught_exceptions()) {}
  ~FailureGuard() {
    if (std::uncaught_exceptions() > exceptions_) world_.abort("an exception ends the rank");
  }
  FailureGuard(const FailureGuard&) = delete;
  FailureGuard& operator=(const FailureGuard&) = delete;

 private:
  Communicator& world_;
  int exceptions_;
};

}  // namespace trivet
