// launched_world_size and launched_rank, read from the launchers' environment variables.
#include <algorithm>
#include <array>
#include <cstdlib>

#include "parallel/comm/world.h"

namespace trivet {
namespace {

// 0 if the variable is not set or is not a number.
long long environment_number(const char* name) {
  const char* text = std::getenv(name);
  return text ? std::atoll(text) : 0;
}

// The number of tasks in this process's srun step; 0 outside a step, or if it has only one. salloc's shell and sbatch's
// script also have SLURM_NTASKS set, but no step ID or a reserved one, because srun did not start them.
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

int launched_rank() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK"})
    if (std::getenv(name)) return static_cast<int>(environment_number(name));
  return srun_tasks() > 0 ? static_cast<int>(environment_number("SLURM_PROCID")) : 0;
}

bool has_mpi_launcher() {
  // Set by PMIx, the older PMI, Flux, Cray's PALS and IBM's jsrun.
  constexpr std::array kNames = {"PMIX_RANK",      "PMI_RANK",    "PMI_FD",
                                 "FLUX_TASK_RANK", "PALS_RANKID", "JSM_NAMESPACE_RANK"};
  return launched_world_size() > 0 ||
         std::ranges::any_of(kNames, [](const char* name) { return std::getenv(name) != nullptr; });
}

}  // namespace trivet
