// Launch: how the ranks of a point are started: by whom, with which arguments, over which links, in which environment.
//
//   key                              value
//   ranks                            an integer
//   launcher                         threads | mpirun | srun | netlab (launch/netlab/netlab.sh: MPI ranks, each on a
//                                    host of its own, which is a network namespace with one rate-limited cable)
//   mpirun_arguments, srun_arguments a list of arguments
//   netlab.gbps, netlab.delay_us     rate (10^9 bits a second) and delay of each cable
//   env.NAME                         an environment variable of the launcher and the ranks: env.NCCL_ALGO
//
// Levels set any of them; a study's `set` all but those that are keys of the file. A variable that some level sets is
// unset where no level does, whatever the shell of the study has it at.
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
  int ranks = 0;  // 0: as many as one model needs
  Launcher launcher = Launcher::threads;
  std::vector<std::string> arguments = {};                             // of the launcher, between -n RANKS and program
  std::map<std::string, std::optional<std::string>> environment = {};  // empty: unset

  bool on_this_machine() const { return launcher == Launcher::threads || launcher == Launcher::netlab; }
  bool operator==(const Launch&) const = default;
};

bool is_launch_key(std::string_view key);
// Those without env.NAME, for messages.
std::vector<std::string_view> launch_keys();
// True if its value is a list of arguments, which a Setting holds with a newline after each.
bool takes_arguments(std::string_view key);
// The expected value in place of `value`, or of an environment variable's name; "": it is valid.
std::string launch_key_problem(std::string_view key, const std::string& value);
// The launch of a point: the file's, overridden by `set` and by the levels.
Launch launch_of(const Study& study, const Choice& choice);

// Why it cannot be on this machine, with this program and this configuration; "": it can.
std::string launch_problem(const Launch& launch, const Config& config);

// The part that matters to a run, as in the point's id. Empty for threads in the study's own environment.
std::string launch_text(const Launch& launch);

// The command that starts `program` (with its arguments, of which more may follow) as the ranks: environment, launcher,
// program. The variables are set twice: for the launcher, whose own ones (OMPI_MCA_…, SLURM_…) act there, and on the
// hosts of the ranks.
std::vector<std::string> launch_command(const Launch& launch, const std::vector<std::string>& program);

}  // namespace trivet
