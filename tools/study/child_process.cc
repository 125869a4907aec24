#include "tools/study/child_process.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"
#include "base/host.h"

namespace trivet {
namespace {

constexpr double kGraceSeconds = 5;  // from SIGTERM to SIGKILL

int open_log(const std::string& path) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666);
  if (fd < 0) throw IoError(path + ": cannot be opened for writing: " + std::strerror(errno));
  return fd;
}

// In the child, between fork and exec: only async-signal-safe calls.
[[noreturn]] void become(char* const* arguments, int out, int err, pid_t parent) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != parent) ::_exit(127);  // the parent died before prctl()
  const int in = ::open("/dev/null", O_RDONLY);
  for (const int signal : {SIGPIPE, SIGXFSZ}) std::signal(signal, SIG_DFL);  // which the study ignores
  ::dup2(in, 0);
  ::dup2(out, 1);
  ::dup2(err, 2);
  ::execvp(arguments[0], arguments);
  const char* why = std::strerror(errno);
  for (const char* text : {static_cast<const char*>(arguments[0]), ": cannot be started: ", why, "\n"})
    if (::write(2, text, std::strlen(text)) < 0) break;
  ::_exit(127);
}

bool never() { return false; }

// True if the process ended in time and before a stop was requested.
bool wait_for_end(int pidfd, double seconds, const std::function<bool()>& stop_asked) {
  const double deadline = now_seconds() + seconds;
  while (!stop_asked()) {
    const double left = deadline - now_seconds();
    if (left <= 0) return false;
    pollfd process{pidfd, POLLIN, 0};
    const int ready = ::poll(&process, 1, static_cast<int>(std::min(left * 1000 + 1, 100.)));
    if (ready < 0 && errno != EINTR) throw IoError(std::string("poll: ") + std::strerror(errno));
    if (ready > 0) return true;
  }
  return false;
}

}  // namespace

ChildEnd run_child(const ChildCommand& command, const std::function<bool()>& stop_asked) {
  std::vector<char*> arguments;
  for (const std::string& argument : command.arguments) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  const int out = open_log(command.stdout_path), err = open_log(command.stderr_path);
  const pid_t parent = ::getpid(), child = ::fork();
  if (child == 0) become(arguments.data(), out, err, parent);
  ::close(out);
  ::close(err);
  if (child < 0) throw IoError(std::string("fork: ") + std::strerror(errno));
  ::setpgid(child, child);  // in both processes: either may run first
  const int pidfd = static_cast<int>(::syscall(SYS_pidfd_open, child, 0));
  if (pidfd < 0) {
    const std::string why = std::strerror(errno);
    ::kill(-child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    throw IoError("pidfd_open: " + why);
  }

  ChildEnd end;
  if (!wait_for_end(pidfd, command.timeout_seconds > 0 ? command.timeout_seconds : HUGE_VAL, stop_asked)) {
    end.how = stop_asked() ? ChildEnd::stopped : ChildEnd::timed_out;
    ::kill(-child, SIGTERM);
    wait_for_end(pidfd, kGraceSeconds, never);
  }
  if (end.how != ChildEnd::exited) ::kill(-child, SIGKILL);  // the rest of its process group
  ::close(pidfd);
  int status = 0;
  rusage usage{};
  while (::wait4(child, &status, 0, &usage) < 0 && errno == EINTR) continue;
  end.peak_rss_bytes = usage.ru_maxrss * 1024;
  if (end.how != ChildEnd::exited) return end;
  if (WIFSIGNALED(status)) end.how = ChildEnd::signalled;
  end.code = WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
  return end;
}

std::string shell_text(const std::vector<std::string>& arguments) {
  constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./=,:+@%";
  std::string text;
  for (const std::string& argument : arguments) {
    if (!text.empty()) text += ' ';
    if (!argument.empty() && argument.find_first_not_of(kPlain) == std::string::npos) {
      text += argument;
      continue;
    }
    text += '\'';
    for (const char c : argument) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
    text += '\'';
  }
  return text;
}

}  // namespace trivet
