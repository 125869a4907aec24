// Runs a point of a study as a process of its own: `trivet train`, or mpirun of it. Its folder OUT/runs/ID-REPEAT keeps
// what a run writes, and its output in stdout.log and stderr.log.
#pragma once

#include <functional>
#include <string>

#include "engine/study/runner.h"

namespace trivet {

// `program`: the path of trivet. `stop_asked`: ends a run early.
RunPoint process_runner(const Study& study, std::string program, std::function<bool()> stop_asked);

// The command that runs a point, with `run_dir` as its folder.
std::vector<std::string> command_of(const Study& study, const Point& point, const std::string& program,
                                    const std::string& run_dir);

// "Intel(R) Xeon(R) …, 2 cores": of this machine.
std::string machine_text();

// Why a program failed, from what it wrote to stderr: its own last message (a line that begins with "trivet:" or
// "[rank"); or the first line of the last box that mpirun drew with dashes; or the last line that has a letter in it.
std::string failure_reason(const std::string& stderr_text);

}  // namespace trivet
