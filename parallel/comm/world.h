// World: who the ranks of this run are, and how an error on one of them ends all.
//
//   run_thread_ranks(8, rank_main)    ranks are threads of this process
//   run_mpi_rank(rank_main)           this process is one rank of mpirun's or srun's world
#pragma once

#include <exception>
#include <functional>

#include "parallel/comm/comm.h"

namespace trivet {

// Runs rank_main(world) on n threads and returns when all have ended. When one throws, the others' collectives throw
// too; the first failure is rethrown with its rank in front ("rank 3: …"), of the same Error type.
void run_thread_ranks(int n, const std::function<void(Communicator& world)>& rank_main);

// How many ranks a launcher promised to this process's world: from OMPI_COMM_WORLD_SIZE, PMIX/PMI or SLURM_NTASKS;
// 0 when it was started by hand.
int launched_world_size();

// Initialises MPI, runs rank_main on the calling thread and finalises. When it throws, the message goes to stderr
// with the rank in front and the whole job is aborted with the error's exit code. A world of another size than the
// launcher promised is a ConfigError. In a build without MPI (no_mpi.cc): ConfigError.
void run_mpi_rank(const std::function<void(Communicator& world)>& rank_main);
bool built_with_mpi();

// Declare it after a rank's streams. When an exception unwinds the rank, it ends the calls that those streams still
// wait in, which may wait for this very rank; else the streams' destructors would wait for ever.
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
