#include "engine/fault/run_directory.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <filesystem>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>

namespace trivet {

RunDirectory::RunDirectory(std::string path, const char* what, std::vector<std::string> marks, std::string lock,
                           bool holds)
    : path_(std::move(path)),
      what_(what),
      marks_(std::move(marks)),
      lock_(std::move(lock)),
      holds_(holds),
      fd_(open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  struct stat status;
  if (fd_ < 0 || stat(path_.c_str(), &status) != 0) return;
  device_ = status.st_dev;
  inode_ = status.st_ino;
}

std::string RunDirectory::problem() const {
  if (inode_ == 0) return {};
  struct stat now;
  const bool found = stat(path_.c_str(), &now) == 0;
  if (!found && errno != ENOENT && errno != ENOTDIR) return {};
  if (taken_over())
    return fmt::format("{} {}: another run has taken the folder over: {}; this run ends and writes nothing more", what_,
                       path_, file_exists(path_ + "/lock") ? text_of(path_ + "/lock") : "it has ended by now");
  const auto is_gone = [&](const std::string& mark) { return !file_exists(path_ + "/" + mark) && errno == ENOENT; };
  if (found && now.st_dev == device_ && now.st_ino == inode_)
    return marks_.empty() || !std::ranges::all_of(marks_, is_gone)
               ? std::string()
               : fmt::format("{} {}: the directory of this run was emptied while the run was writing to it", what_,
                             path_);
  // Its current path according to the kernel; for a deleted directory, its old path followed by " (deleted)".
  std::error_code ignored;
  const std::string place =
      std::filesystem::read_symlink(fmt::format("/proc/self/fd/{}", static_cast<int>(fd_)), ignored).string();
  return fmt::format("{} {}: the directory of this run was {}{}", what_, path_,
                     place.empty() || place.ends_with(" (deleted)") ? "deleted" : "renamed to " + place,
                     found ? ", and another one is in its place" : " while the run was writing to it");
}

bool RunDirectory::taken_over() const {
  if (lock_.empty()) return false;
  const std::string text = text_of(path_ + "/lock");
  if (!text.empty()) return text != lock_;
  // Another run that has ended removed its lock and left its outcome. (Once this run's lock holder has ended, ranks
  // that end later find this run's own outcome.)
  return holds_ && !file_exists(path_ + "/lock") && errno == ENOENT && file_exists(path_ + "/outcome.json");
}

bool RunDirectory::try_lock() { return fd_ < 0 || flock(fd_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK; }

std::string text_of(const std::string& path) noexcept {
  try {
    return read_small_file(path, 65536);
  } catch (const std::exception&) {
    return {};
  }
}

}  // namespace trivet
