#include "base/host.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <poll.h>
#include <sched.h>
#include <sstream>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <thread>
#include <unistd.h>

namespace trivet {

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double unix_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string host_name() {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  return name;
}

int usable_cores() {
  cpu_set_t usable;
  const int online = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  return sched_getaffinity(0, sizeof usable, &usable) == 0 ? CPU_COUNT(&usable) : online;
}

std::string boot_id() {
  std::string id;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), id);
  return id;
}

namespace {
int64_t number_of(const std::string& id) { return static_cast<int64_t>(std::hash<std::string>{}(id) >> 1); }
}  // namespace

int64_t boot_number() { return number_of(boot_id()); }

int64_t clock_number() {
  std::error_code unknown;  // there is no such link before Linux 5.6
  return number_of(boot_id() + std::filesystem::read_symlink("/proc/self/ns/time", unknown).string());
}

std::string error_text(int error) {
  const auto with_limit = [&](auto resource, const char* what, const char* option) {
    rlimit limit = {};
    const bool limited = getrlimit(resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
    return std::strerror(error) + (limited ? "; the limit is " + std::to_string(limit.rlim_cur) + what + option : "");
  };
  if (error == EFBIG) return with_limit(RLIMIT_FSIZE, " bytes per file", " (ulimit -f)");
  if (error == EMFILE) return with_limit(RLIMIT_NOFILE, " open files per process", " (ulimit -n)");
  return std::strerror(error);
}

bool stderr_accepts(int milliseconds) noexcept {
  pollfd ready{STDERR_FILENO, POLLOUT, 0};
  int found;
  do found = poll(&ready, 1, milliseconds);
  while (found < 0 && errno == EINTR);
  return found > 0;
}

void write_stderr(std::string_view text) noexcept {
  static std::atomic<bool> stalled = false;
  while (!text.empty()) {
    if (stalled = !stderr_accepts(stalled ? 0 : 2000); stalled) return;
    const ssize_t n = write(STDERR_FILENO, text.data(), std::min<size_t>(text.size(), PIPE_BUF));
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (n <= 0) return;
    text.remove_prefix(static_cast<size_t>(n));
  }
}

int terminal_columns(int fd) {
  winsize size = {};
  return isatty(fd) && ioctl(fd, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

ProcessState process_state(const std::string& folder) {
  std::ifstream file(folder + "/stat");
  std::string text;
  std::getline(file, text);
  const size_t name_end = text.rfind(')');  // the name may contain any character
  if (name_end == std::string::npos) return {};
  std::istringstream fields(text.substr(name_end + 1));
  ProcessState found;
  fields >> found.state;
  std::string skipped;
  for (int field = 4; field < 22; ++field) fields >> skipped;
  if (!(fields >> found.start)) return {};
  return found;
}

}  // namespace trivet
