// launched_world_size: what the launchers say in the environment.
#include <cstdlib>
#include <string>

#include "parallel/comm/world.h"

namespace trivet {
namespace {

// The number in an environment variable; 0 when it is not there or is no number.
long long environment_number(const char* name) {
  const char* text = std::getenv(name);
  return text ? std::atoll(text) : 0;
}

// The tasks of the srun step that this process belongs to; 0 outside of one. The shell of salloc and the script of
// sbatch have SLURM_NTASKS too, but srun has not started them: they have no step, or one of the reserved numbers.
long long srun_tasks() {
  constexpr long long kFirstReservedStep = 0xfffffff0;
  if (!std::getenv("SLURM_STEP_ID") || environment_number("SLURM_STEP_ID") >= kFirstReservedStep) return 0;
  const char* tasks = std::getenv("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
  return environment_number(tasks) > 1 ? environment_number(tasks) : 0;
}

}  // namespace

int launched_world_size() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE"})
    if (const long long size = environment_number(name); size > 0) return static_cast<int>(size);
  return static_cast<int>(srun_tasks());
}

}  // namespace trivet
