#include "tools/study/launch.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fmt/ranges.h>
#include <sstream>
#include <unistd.h>

#include "base/scalar.h"
#include "engine/config/config.h"
#include "kernels/base/device.h"
#include "parallel/comm/nccl_comm.h"
#include "parallel/comm/world.h"

namespace trivet {
namespace {

struct LaunchKey {
  enum Takes { arguments, launcher, integer, number };

  std::string_view name;
  Takes takes;
  double low = 0, high = 0;
};

constexpr LaunchKey kLaunchKeys[] = {
    {"ranks", LaunchKey::integer, 1, 65536},         {"launcher", LaunchKey::launcher},
    {"mpirun_arguments", LaunchKey::arguments},      {"srun_arguments", LaunchKey::arguments},
    {"netlab.gbps", LaunchKey::number, 8e-6, 1e6},  // netlab's minimum
    {"netlab.delay_us", LaunchKey::integer, 0, 1e6},
};
constexpr std::string_view kVariable = "env.";

const LaunchKey* find_launch_key(std::string_view key) {
  const auto* found = std::ranges::find(kLaunchKeys, key, &LaunchKey::name);
  return found == std::end(kLaunchKeys) ? nullptr : found;
}

// If an environment variable's name is invalid, what was expected instead; "" if it is valid.
std::string name_problem(std::string_view name) {
  const auto is_letter = [](char c) { return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  const bool good = !name.empty() && name.size() <= 100 && is_letter(name[0]) &&
                    std::ranges::all_of(name, [&](char c) { return is_letter(c) || (c >= '0' && c <= '9'); });
  if (!good) return "the name of an environment variable: letters, digits and _, such as env.NCCL_ALGO";
  for (const std::string_view own : {"OMPI_COMM_WORLD_", "PMIX_", "PMI_", "SLURM_PROCID", "SLURM_STEP_"})
    if (name.starts_with(own)) return "another variable: the launcher sets this one for each rank";
  return "";
}

bool is_in_path(const std::string& program) {
  const char* path = std::getenv("PATH");
  std::istringstream folders(path ? path : "");
  for (std::string folder; std::getline(folders, folder, ':');)
    if (::access((folder + "/" + program).c_str(), X_OK) == 0) return true;
  return false;
}

// netlab.sh in the working directory, or next to the program's folder, as in a source tree; "" if neither exists.
std::string netlab_path() {
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  for (const std::filesystem::path& folder : {std::filesystem::path(), program.parent_path().parent_path()})
    if (const auto script = folder / "launch/netlab/netlab.sh"; std::filesystem::exists(script, error)) return script;
  return "";
}

std::string netlab_problem(const Launch& launch) {
  if (launch.arguments.empty())
    return "netlab.gbps is required by launcher netlab: the rate of each rank's cable, in Gbit/s";
  if (launch.ranks > 99) return fmt::format("launcher netlab takes at most 99 ranks, found {}", launch.ranks);
  if (netlab_path().empty())
    return "launcher netlab: launch/netlab/netlab.sh is neither in the working directory nor next to the program's "
           "folder; call trivet study in the source tree";
  if (::geteuid() != 0) return "launcher netlab needs root to create network namespaces: call trivet study with sudo";
  return "";
}

// Why the ranks would not read the NCCL variables that are set; "" if they would. mpirun and srun may use other hosts.
std::string nccl_problem(const Launch& launch, const Config& config) {
  const auto variable = std::ranges::find_if(
      launch.environment, [](const auto& entry) { return entry.second && entry.first.starts_with("NCCL_"); });
  if (variable == launch.environment.end()) return "";
  std::string_view lack;
  if (!built_with_nccl()) lack = "this program is built without NCCL";
  else if (config.device.kind == DeviceKind::cpu) lack = "device.kind is cpu";
  else if (!config.device.kind && cuda_device_count() == 0)
    lack = "this machine has no GPU (set device.kind: cuda if the ranks' machines have some)";
  else return "";
  return fmt::format("env.{} only affects ranks on GPUs, and {}; leave it out", variable->first, lack);
}

// env -u NAME … NAME=VALUE …, or nothing.
std::vector<std::string> environment_command(const Launch& launch) {
  std::vector<std::string> command;
  for (const auto& [name, value] : launch.environment)
    if (!value) command.insert(command.end(), {"-u", name});
  for (const auto& [name, value] : launch.environment)
    if (value) command.push_back(name + "=" + *value);
  if (!command.empty()) command.insert(command.begin(), "env");
  return command;
}

std::vector<std::string> launcher_arguments(Launcher launcher, const std::map<std::string, std::string>& values) {
  std::vector<std::string> arguments;
  if (launcher == Launcher::netlab && values.contains("netlab.gbps"))
    return {"--gbps", fmt::format("{:f}", *parse_number(values.at("netlab.gbps"))), "--delay-us",
            values.at("netlab.delay_us"), "--"};
  if (const auto found = values.find(fmt::format("{}_arguments", word_of(launcher))); found != values.end()) {
    std::istringstream lines(found->second);
    for (std::string line; std::getline(lines, line);) arguments.push_back(line);
  }
  return arguments;
}

}  // namespace

bool is_launch_key(std::string_view key) { return key.starts_with(kVariable) || find_launch_key(key); }

std::vector<std::string_view> launch_keys() {
  std::vector<std::string_view> names;
  for (const LaunchKey& key : kLaunchKeys) names.push_back(key.name);
  return names;
}

bool takes_arguments(std::string_view key) {
  const LaunchKey* found = find_launch_key(key);
  return found && found->takes == LaunchKey::arguments;
}

std::string launch_key_problem(std::string_view key, const std::string& value) {
  if (key.starts_with(kVariable)) return name_problem(key.substr(kVariable.size()));
  const auto& [name, takes, low, high] = *find_launch_key(key);
  if (takes == LaunchKey::arguments) return "";
  if (takes == LaunchKey::launcher)
    return parse_word<Launcher>(value) ? "" : fmt::format("one of {}", fmt::join(words_of(Launcher()), ", "));
  const auto number = parse_number(value);
  const bool whole = takes == LaunchKey::number || parse_integer(value);
  if (number && whole && *number >= low && *number <= high) return "";
  return fmt::format("{} from {} to {}", takes == LaunchKey::number ? "a number" : "an integer", low, high);
}

Launch launch_of(const Study& study, const Choice& choice) {
  Launch launch;
  std::map<std::string, std::string> values = {{"ranks", "0"},
                                               {"launcher", "threads"},
                                               {"mpirun_arguments", "--oversubscribe\n--bind-to\nnone\n"},
                                               {"srun_arguments", "--mpi=pmix\n--kill-on-bad-exit=1\n"},
                                               {"netlab.delay_us", "0"}};
  const auto apply = [&](const std::vector<Setting>& settings, bool chosen) {
    for (const auto& [key, value] : settings)
      if (key.starts_with(kVariable))
        launch.environment[key.substr(kVariable.size())] = chosen ? std::optional(value) : std::nullopt;
      else if (chosen && is_launch_key(key)) values[key] = value;
  };
  for (const Factor& factor : study.factors)
    for (const Level& level : factor.levels) apply(level.settings, false);
  apply(study.launch, true);
  apply(study.set, true);
  for (size_t i = 0; i < choice.size(); ++i) apply(study.factors[i].levels[choice[i]].settings, true);
  launch.ranks = static_cast<int>(*parse_integer(values["ranks"]));
  launch.launcher = *parse_word<Launcher>(values["launcher"]);
  launch.arguments = launcher_arguments(launch.launcher, values);
  return launch;
}

std::string launch_problem(const Launch& launch, const Config& config) {
  if (launch.launcher != Launcher::threads) {
    const std::string_view word = word_of(launch.launcher);
    if (!built_with_mpi())
      return fmt::format("launcher {} starts MPI ranks, and this program is built without MPI", word);
    const std::string program(launch.launcher == Launcher::srun ? "srun" : "mpirun");
    if (!is_in_path(program)) return fmt::format("launcher {}: there is no {} in PATH; install it", word, program);
  }
  if (launch.launcher == Launcher::netlab)
    if (std::string problem = netlab_problem(launch); !problem.empty()) return problem;
  return nccl_problem(launch, config);
}

std::string launch_text(const Launch& launch) {
  std::string text;
  for (const std::string& argument : launch.arguments) text += argument + '\n';
  for (const auto& [name, value] : launch.environment)
    if (value) text += fmt::format("env.{}={}\n", name, *value);
  return text;
}

std::vector<std::string> launch_command(const Launch& launch, const std::vector<std::string>& program) {
  std::vector<std::string> command;
  const auto add = [&](const std::vector<std::string>& words) {
    command.insert(command.end(), words.begin(), words.end());
  };
  const std::string ranks = std::to_string(launch.ranks);
  add(environment_command(launch));
  if (launch.launcher == Launcher::netlab) add({netlab_path(), "--ranks", ranks});
  else if (launch.launcher != Launcher::threads) add({std::string(word_of(launch.launcher)), "-n", ranks});
  add(launch.arguments);
  if (launch.launcher != Launcher::threads) add(environment_command(launch));
  add(program);
  if (launch.launcher == Launcher::threads) add({"--ranks", ranks});
  return command;
}

}  // namespace trivet
