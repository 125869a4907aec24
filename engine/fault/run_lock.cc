#include "engine/fault/run_lock.h"

#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <fcntl.h>
#include <filesystem>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/host.h"
#include "base/json.h"

namespace trivet {
namespace {

struct Holder {
  std::string host;
  int64_t pid = 0;
  int64_t process_start = 0;  // distinguishes the process from a later one with the same pid
  std::string processes;      // its pid namespace: each container has its own
  std::string job;            // scheduler job; empty: none
  std::string since;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(Holder, host, pid, process_start, processes, job, since)

// -1 if there is no such process.
int64_t start_of_process(int64_t pid) {
  const ProcessState process = process_state(fmt::format("/proc/{}", pid));
  return process.state == 'Z' || process.state == 'X' ? -1 : process.start;
}

Holder me() {
  const char* job = std::getenv("SLURM_JOB_ID");
  if (job == nullptr) job = std::getenv("PBS_JOBID");
  std::error_code ignored;
  const std::string processes = std::filesystem::read_symlink("/proc/self/ns/pid", ignored).string();
  return {host_name(), getpid(),       start_of_process(getpid()),
          processes,   job ? job : "", fmt::format("{:%F %T}", fmt::localtime(std::time(nullptr)))};
}

// The result has no host if a killed process left the lock half written.
Holder parse_holder(const std::string& text) {
  try {
    return parse_json(text).get<Holder>();
  } catch (const std::exception&) {
    return {};
  }
}

std::string describe(const Holder& holder) {
  return fmt::format("process {} on {}{}, since {}", holder.pid, holder.host.empty() ? "an unknown host" : holder.host,
                     holder.job.empty() ? "" : ", job " + holder.job, holder.since.empty() ? "?" : holder.since);
}

// Why the lock is stale; empty: it may still be held. `own_file`: a file that this process has just written.
std::string why_stale(const Holder& holder, const Holder& mine, const std::string& path, const std::string& own_file) {
  const bool unlocked = is_unlocked(path);
  if (!unlocked && errno == EWOULDBLOCK) return "";
  if (holder.host == mine.host) {
    const bool seen = holder.processes.empty() || holder.processes == mine.processes;
    const int64_t start = seen ? start_of_process(holder.pid) : -1;
    if (seen ? start < 0 || start != holder.process_start : unlocked) return "which has ended";
    if (seen) return "";
  }
  if (!holder.job.empty() && holder.job == mine.job) return "an earlier attempt of this job";
  struct stat theirs, now;  // both times are the file server's
  if (stat(path.c_str(), &theirs) == 0 && stat(own_file.c_str(), &now) == 0 &&
      now.st_mtime - theirs.st_mtime > RunLock::kStale)
    return fmt::format("which has not touched it for {} s", now.st_mtime - theirs.st_mtime);
  return "";
}

}  // namespace

RunLock::RunLock(const std::string& run_dir)
    : path_(run_dir + "/lock"), text_(nlohmann::json(me()).dump() + "\n"), folder_(run_dir), file_(path_) {
  const auto refuse = [&](const std::string& whose) {
    throw ConfigError(fmt::format("train.run_dir {}: another run is using it{}", run_dir, whose));
  };
  const auto holder_text = [&] {
    return fmt::format(" ({}); give each run its own folder, or remove {} if that run is gone",
                       describe(parse_holder(text_of(path_))), path_);
  };
  if (!folder_.try_lock())
    refuse(file_exists(path_) ? holder_text()
                              : fmt::format(", whose {} was removed; give each run its own folder", path_));
  file_.write(text_);
  for (int attempt = 0; attempt < 3; ++attempt) {
    if (file_.commit_as_first()) {
      touched_ns_ = now_ns();
      return;
    }
    const std::string text = text_of(path_);
    if (!file_exists(path_)) continue;  // just released
    const Holder holder = parse_holder(text);
    const std::string stale = why_stale(holder, parse_holder(text_), path_, file_.temporary());
    if (stale.empty()) refuse(holder_text());
    // If several processes take the lock over, only one renames it. A lock that is new by then gets its name back.
    const std::string aside = OutputFile(path_).temporary();
    if (rename(path_.c_str(), aside.c_str()) != 0) continue;
    const bool taken = text_of(aside) == text, given_back = !taken && link(aside.c_str(), path_.c_str()) == 0;
    unlink(aside.c_str());
    if (taken) taken_from_ = describe(holder) + ", " + stale;
    else if (!given_back) break;  // two other runs are starting: give up
  }
  throw ConfigError(fmt::format("train.run_dir {}: several runs are starting in it at the same time", run_dir));
}

RunLock::~RunLock() {
  if (text_of(path_) == text_) unlink(path_.c_str());
}

void RunLock::touch(int64_t now) noexcept {
  if (now - touched_ns_ < kTouch * int64_t{1'000'000'000}) return;
  touched_ns_ = now;
  if (text_of(path_) == text_) utimensat(AT_FDCWD, path_.c_str(), nullptr, 0);
}

}  // namespace trivet
