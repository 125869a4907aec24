#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <string>
#include <unistd.h>
#include <vector>

#include "base/host.h"
#include "engine/config/problems.h"
#include "kernels/base/device.h"
#include "launch/commands.h"
#include "parallel/comm/nccl_comm.h"
#include "parallel/comm/world.h"

namespace trivet {

void start_processes(const Config& config, int ranks) {
  const std::optional<CommBackend> backend = config.comm.backend;
  if (launched_world_size() > 0 || ranks == 1 || (backend && backend != CommBackend::nccl) || !built_with_nccl() ||
      config.device.kind == DeviceKind::cpu || cuda_device_count() < ranks)
    return;
  const std::string want = fmt::format("comm.backend is {}: each of the {} ranks gets a process and a GPU, but ",
                                       backend ? "nccl" : "auto", ranks);
  constexpr auto kExpected = "; expected thread for ranks in this process";
  if (!built_with_mpi()) throw ConfigError(want + "this build has no MPI" + kExpected);
  // The same command again; each instance will be a rank.
  std::vector<std::string> words = {"mpirun",    "-n",   std::to_string(ranks),
                                    "--bind-to", "none", std::filesystem::read_symlink("/proc/self/exe")};
  std::ifstream command("/proc/self/cmdline");  // each word ends with a NUL
  std::string word;
  std::getline(command, word, '\0');  // the program's name
  while (std::getline(command, word, '\0')) words.push_back(word);
  std::vector<char*> argv;
  for (std::string& each : words) argv.push_back(each.data());
  argv.push_back(nullptr);
  // Open MPI asks root to confirm; starting trivet as root is the confirmation.
  setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 0);
  setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 0);
  execvp(argv[0], argv.data());
  throw ConfigError(want + "mpirun cannot be started: " + error_text(errno) + kExpected);
}

void run_ranks(std::optional<CommBackend> backend, int asked, int needed,
               const std::function<void(Communicator& world)>& rank_main) {
  const int launched = launched_world_size();
  const auto main = [&](Communicator& world) { naming_keys([&] { rank_main(world); }); };
  // nccl and staged are transports between GPUs, not launchers of ranks.
  if (backend == CommBackend::mpi || (backend != CommBackend::thread && launched > 0)) {
    if (asked > 0 && launched > 0 && asked != launched)
      throw ConfigError(
          fmt::format("--ranks {} under a launcher that started {} ranks: leave --ranks out there", asked, launched));
    // Without a launcher, MPI's world would be this process alone.
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
