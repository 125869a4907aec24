#include "engine/fault/run_lock.h"

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <filesystem>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fstream>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/files.h"
#include "base/json.h"
#include "kernels/base/check.h"
#include "kernels/base/trace.h"

namespace trivet {
namespace {

constexpr int64_t kLargest = 65536;  // bytes of a lock

struct Holder {
  std::string host;
  int64_t pid = 0;
  int64_t start = 0;      // of the process, clock ticks after the boot: tells it from a later one with its number
  std::string processes;  // the namespace of its process numbers: a container has one of its own
  std::string job;        // of the scheduler; empty: none
  std::string since;
};

// Field 22 of /proc/PID/stat; -1: there is no such process.
int64_t start_of_process(int64_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string text;
  if (!std::getline(file, text)) return -1;
  const size_t name_end = text.rfind(')');  // the name may hold anything
  if (name_end == std::string::npos) return -1;
  const char* at = text.c_str() + name_end + 2;
  if (*at == 'Z' || *at == 'X') return -1;
  for (int field = 3; field < 22 && at; ++field)
    if ((at = std::strchr(at, ' '))) ++at;
  return at ? std::atoll(at) : -1;
}

Holder me() {
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  const char* job = std::getenv("SLURM_JOB_ID");
  std::error_code ignored;
  const std::string processes = std::filesystem::read_symlink("/proc/self/ns/pid", ignored).string();
  return {host,      getpid(),       start_of_process(getpid()),
          processes, job ? job : "", fmt::format("{:%F %T}", fmt::localtime(std::time(nullptr)))};
}

// False: there is none, or it is gone again, or half written by somebody who was killed (then `holder` has no host).
bool read_holder(const std::string& path, Holder& holder) {
  try {
    const auto json = parse_json(read_small_file(path, kLargest));
    holder = {json.at("host"), json.at("pid"),  json.at("process_start"), json.value("processes", ""),
              json.at("job"),  json.at("since")};
    return true;
  } catch (const nlohmann::json::exception&) {
    return file_exists(path);
  } catch (const Error&) {
    return file_exists(path);
  }
}

// A process of another container cannot be seen, but the system keeps what it has locked as long as it lives.
bool nobody_has_open(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const bool nobody = fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) == 0;
  if (fd >= 0) close(fd);
  return nobody;
}

// Why the holder cannot be at work any more; empty: it may be.
std::string why_stale(const Holder& holder, const Holder& mine, const std::string& path, const std::string& own_file) {
  if (holder.host == mine.host && (holder.processes.empty() || holder.processes == mine.processes)) {
    const int64_t start = start_of_process(holder.pid);
    if (start < 0 || start != holder.start) return "whose process is gone";
    return "";
  }
  if (holder.host == mine.host && nobody_has_open(path)) return "whose process is gone";
  if (!holder.job.empty() && holder.job == mine.job) return "an earlier attempt of this job";
  struct stat theirs, now;  // both times are the file server's
  if (stat(path.c_str(), &theirs) == 0 && stat(own_file.c_str(), &now) == 0 &&
      now.st_mtime - theirs.st_mtime > RunLock::kStale)
    return fmt::format("who has not touched it for {} s", now.st_mtime - theirs.st_mtime);
  return "";
}

}  // namespace

RunLock::RunLock(const std::string& run_dir) : path_(run_dir + "/lock") {
  const Holder mine = me();
  const std::string own = fmt::format("{}.{}-{}-{}", path_, mine.host, mine.pid, mine.start);
  {
    text_ = nlohmann::ordered_json{{"host", mine.host},           {"pid", mine.pid}, {"process_start", mine.start},
                                   {"processes", mine.processes}, {"job", mine.job}, {"since", mine.since}}
                .dump() +
            "\n";
    OutputFile file(own);
    file.write(text_);
    file.commit();
  }
  open_.fd = open(own.c_str(), O_RDWR | O_CLOEXEC);
  if (open_.fd >= 0) flock(open_.fd, LOCK_EX | LOCK_NB);  // see nobody_has_open()
  bool stale_failed = false;
  for (int attempt = 0; attempt < 3; ++attempt) {
    if (link(own.c_str(), path_.c_str()) == 0) {
      unlink(own.c_str());
      touched_ns_ = now_ns();
      return;
    }
    const int reason = errno;
    Holder holder;
    if (reason != EEXIST) {
      unlink(own.c_str());
      throw IoError(fmt::format("{}: {}", path_, std::strerror(reason)));
    }
    if (!read_holder(path_, holder)) continue;  // released meanwhile
    const std::string stale = why_stale(holder, mine, path_, own);
    const std::string who =
        fmt::format("process {} on {}{}, since {}", holder.pid, holder.host.empty() ? "an unknown host" : holder.host,
                    holder.job.empty() ? "" : ", job " + holder.job, holder.since.empty() ? "?" : holder.since);
    if (stale.empty()) {
      unlink(own.c_str());
      throw ConfigError(
          fmt::format("train.run_dir {}: another run is at work in it ({}); expected a folder of one's "
                      "own, or remove {} where that run is gone",
                      run_dir, who, path_));
    }
    // Of several that take it over, one renames it.
    const std::string aside = own + ".stale";
    if (rename(path_.c_str(), aside.c_str()) != 0) continue;
    Holder renamed;
    read_holder(aside, renamed);
    const bool same = renamed.host == holder.host && renamed.pid == holder.pid && renamed.start == holder.start;
    if (same) taken_from_ = who + ", " + stale;
    else if (link(aside.c_str(), path_.c_str()) != 0) stale_failed = true;  // two others at once: give up
    unlink(aside.c_str());
    if (stale_failed) break;
  }
  unlink(own.c_str());
  throw ConfigError(fmt::format("train.run_dir {}: several runs start in it at the same time", run_dir));
}

std::string RunLock::in_the_file() const noexcept {
  try {
    return read_small_file(path_, kLargest);
  } catch (const std::exception&) {
    return {};
  }
}

void RunLock::check() const {
  // One that somebody has removed is nobody else's.
  if (const std::string text = in_the_file(); !text.empty() && text != text_)
    throw ConfigError(fmt::format("{}: another run has taken the folder over: {}", path_, text));
}

RunLock::~RunLock() {
  if (in_the_file() == text_) unlink(path_.c_str());
}

RunLock::OpenFile::~OpenFile() {
  if (fd >= 0) close(fd);
}

void RunLock::touch() noexcept {
  const int64_t now = now_ns();
  if (now - touched_ns_ < kTouch * int64_t{1'000'000'000}) return;
  touched_ns_ = now;
  if (in_the_file() == text_) utimensat(AT_FDCWD, path_.c_str(), nullptr, 0);
}

}  // namespace trivet
