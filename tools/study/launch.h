// Launch: how a point's ranks are started: launcher, launcher arguments, links between hosts, environment.
//
//   key                              value
//   ranks                            an integer
//   launcher                         threads | mpirun | srun | netlab (launch/netlab/netlab.sh: MPI ranks, each on
//                                    an emulated host: a network namespace with one rate-limited cable)
//   mpirun_arguments, srun_arguments a list of arguments
//   netlab.gbps, netlab.delay_us     rate (10^9 bits per second) and delay of each cable
//   env.NAME                         an environment variable of the launcher and the ranks, such as env.NCCL_ALGO
//
// Levels may set any of these; a study's `set` may not set those that are top-level keys of the file. A variable set by
// some level is unset at points where no level sets it, whatever its value in the study's shell.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/study/study.h"

namespace trivet {

struct Config;

struct Launch {
  int ranks = 0;  // 0: the number that one model replica needs
  Launcher launcher = Launcher::threads;
  std::vector<std::string> arguments = {};                             // the launcher's, between -n RANKS and program
  std::map<std::string, std::optional<std::string>> environment = {};  // nullopt: unset the variable

  bool on_this_machine() const { return launcher == Launcher::threads || launcher == Launcher::netlab; }
  bool operator==(const Launch&) const = default;
};

bool is_launch_key(std::string_view key);
// All launch keys except env.NAME, for messages.
std::vector<std::string_view> launch_keys();
// True if the key's value is an argument list; a Setting stores it with a newline after each argument.
bool takes_arguments(std::string_view key);
// If the value or the environment variable's name is invalid, what was expected instead; "" if valid.
std::string launch_key_problem(std::string_view key, const std::string& value);
// The launch of a point: the file's, overridden by `set` and by the levels.
Launch launch_of(const Study& study, const Choice& choice);

// Why the launch is impossible on this machine, with this program and this configuration; "" if possible.
std::string launch_problem(const Launch& launch, const Config& config);

// The launcher's arguments and the variables, as part of the point's id. Empty for threads in the study's environment.
std::string launch_text(const Launch& launch);

// The command that starts the ranks: environment, launcher, `program` with its arguments (more may be appended). The
// variables are set twice: for the launcher, which reads some itself (OMPI_MCA_…, SLURM_…), and on the ranks' hosts.
std::vector<std::string> launch_command(const Launch& launch, const std::vector<std::string>& program);

}  // namespace trivet
