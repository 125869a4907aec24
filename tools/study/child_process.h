// A child process with a timeout, for single-threaded programs that wait for it. Ctrl-C reaches only the parent, which
// then terminates the child's whole process group. The child is also terminated if its parent dies, so that no run
// disturbs the next study.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace trivet {

struct ChildCommand {
  std::vector<std::string> arguments;  // first the program's path, or its name in PATH
  std::string stdout_path, stderr_path;
  double timeout_seconds = 0;  // 0: none
};

struct ChildEnd {
  enum How { exited, signalled, timed_out, stopped } how = exited;
  int code = 0;                // exit code, or signal
  int64_t peak_rss_bytes = 0;  // the largest resident set of the child, or of a process that it waited for
};

// `stop_asked`: if it returns true, the child is terminated; polled after each signal and ten times a second. If the
// program cannot be started, the exit code is 127 and the stderr file contains the reason. Throws IoError.
ChildEnd run_child(const ChildCommand& command, const std::function<bool()>& stop_asked);

// The arguments, quoted for a shell.
std::string shell_text(const std::vector<std::string>& arguments);

}  // namespace trivet
