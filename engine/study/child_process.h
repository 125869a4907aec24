// A child process with a time-out, for programs with one thread that waits for it. Ctrl-C reaches the parent only,
// which ends the child's whole process group; and a parent that dies takes the child with it, so that nothing goes on
// computing beside the next study.
#pragma once

#include <string>
#include <vector>

namespace trivet {

// While it lives, SIGINT and SIGTERM do not end this process but are noted. Declare it before threads are started,
// which inherit the mask.
class StopSignals {
 public:
  StopSignals();  // throws IoError
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  bool asked();                   // since the beginning
  int fd() const { return fd_; }  // readable when there is a signal that asked() has not seen

 private:
  int fd_ = -1;
  bool asked_ = false;
};

struct ChildCommand {
  std::vector<std::string> arguments;  // the program's path, or its name in PATH, first
  std::string stdout_path, stderr_path;
  double timeout_seconds = 0;  // 0: none
};

struct ChildEnd {
  enum How { exited, signalled, timed_out, stopped } how = exited;
  int code = 0;  // exit code, or signal
};

// `stop`: null, or ends the child where a stop is asked. A program that cannot be started exits with 127 and says why
// in its stderr file. Throws IoError.
ChildEnd run_child(const ChildCommand& command, StopSignals* stop);

// The arguments as a shell would take them.
std::string shell_text(const std::vector<std::string>& arguments);

}  // namespace trivet
