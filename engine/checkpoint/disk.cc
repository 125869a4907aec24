#include "engine/checkpoint/disk.h"

#include <cerrno>
#include <fcntl.h>
#include <filesystem>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/check.h"
#include "base/files.h"
#include "base/host.h"

namespace trivet {
namespace {

std::string room(const std::string& path) {
  struct statvfs system;
  if (statvfs(std::filesystem::path(path).parent_path().c_str(), &system) != 0) return "";
  return fmt::format("; {} bytes are free there", static_cast<uint64_t>(system.f_bavail) * system.f_frsize);
}

// Returns 0, or -1 with errno set, as a system call does.
int result_of(const std::error_code& error) {
  errno = error.value();
  return error ? -1 : 0;
}

[[noreturn]] void fail_io(DiskOp op, const std::string& path, int reason, const std::string& detail = "") {
  const bool full = reason == ENOSPC || reason == EDQUOT;
  throw IoError(
      fmt::format("{}: cannot {} it{}: {}{}", path, name_of(op), detail, error_text(reason), full ? room(path) : ""));
}

}  // namespace

const char* name_of(DiskOp op) {
  constexpr const char* kNames[] = {"make",        "create", "reserve room for", "write",
                                    "synchronise", "rename", "exchange",         "remove"};
  return kNames[static_cast<size_t>(op)];
}

DiskFate Disk::begin(DiskOp op, const std::string& path) const {
  const DiskFate fate = fault_ ? fault_(op, path) : DiskFate::normal;
  if (fate == DiskFate::no_space) fail_io(op, path, ENOSPC);
  if (fate == DiskFate::io_error) fail_io(op, path, EIO);
  if (fate == DiskFate::read_only) fail_io(op, path, EROFS);
  return fate;
}

void Disk::finish(DiskOp op, const std::string& path, const std::function<int()>& call) const {
  begin(op, path);
  int result;
  do result = call();
  while (result < 0 && errno == EINTR);
  if (result < 0) fail_io(op, path, errno);
}

void Disk::make_directories(const std::string& path, Parents parents) const {
  std::vector<std::string> changed;  // directories that gain an entry, innermost first
  for (std::string made = path; !made.empty() && !file_exists(made);) {
    made = std::filesystem::path(made).parent_path().string();
    changed.push_back(made.empty() ? "." : made);
  }
  finish(DiskOp::make_directory, path, [&] {
    std::error_code error;
    if (parents == Parents::made) std::filesystem::create_directories(path, error);
    else std::filesystem::create_directory(path, error);
    return result_of(error);
  });
  for (const std::string& directory : changed)
    if (access(directory.c_str(), R_OK) == 0) sync_directory(directory);  // syncing must open it for reading
}

void Disk::rename(const std::string& from, const std::string& to) const {
  finish(DiskOp::rename, to, [&] { return ::rename(from.c_str(), to.c_str()); });
}

bool Disk::exchange(const std::string& a, const std::string& b) const {
  if (begin(DiskOp::exchange, b) == DiskFate::unsupported) return false;
  if (renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0) return true;
  if (errno != EINVAL && errno != ENOSYS) fail_io(DiskOp::exchange, b, errno);
  return false;
}

void Disk::remove_all(const std::string& path) const {
  finish(DiskOp::remove, path, [&] {
    std::error_code error;
    std::filesystem::remove_all(path, error);
    return result_of(error);
  });
}

void Disk::sync_directory(const std::string& path) const {
  finish(DiskOp::sync, path, [&] { return trivet::sync_directory(path) ? 0 : -1; });
}

void Disk::write_file(const std::string& path, const std::string& text) const {
  File file(*this, path, static_cast<int64_t>(text.size()));
  file.write(text);
  file.sync();
}

Disk::File::File(const Disk& disk, std::string path, int64_t bytes) : disk_(disk), path_(std::move(path)) {
  disk_.finish(DiskOp::create, path_, [&] {
    fd_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666);
    return fd_;
  });
  // Fails here if the disk is too small, before filling it. Not every file system can reserve space.
  try {
    disk_.finish(DiskOp::reserve, path_, [&] {
      if (bytes == 0 || fallocate(fd_, FALLOC_FL_KEEP_SIZE, 0, bytes) == 0) return 0;
      return errno == EOPNOTSUPP || errno == ENOSYS ? 0 : -1;
    });
  } catch (const IoError& error) {
    close(fd_);
    throw IoError(fmt::format("{}; {} bytes are needed", error.what(), bytes));
  }
}

Disk::File::~File() { close(fd_); }

void Disk::File::write(std::span<const char> bytes) {
  if (disk_.begin(DiskOp::write, path_) == DiskFate::torn) bytes = bytes.first(bytes.size() / 2);
  const size_t done = write_all(fd_, bytes);
  written_ += static_cast<int64_t>(done);
  if (done < bytes.size()) fail_io(DiskOp::write, path_, errno, fmt::format(" ({} more bytes)", bytes.size() - done));
  // Starts writeback of the accumulated bytes while the next ones arrive. A hint only: sync() makes them durable.
  constexpr int64_t kGathered = 16 << 20;
  if (written_ - started_ < kGathered) return;
  sync_file_range(fd_, started_, written_ - started_, SYNC_FILE_RANGE_WRITE);
  started_ = written_;
}

void Disk::File::sync() {
  disk_.finish(DiskOp::sync, path_, [&] { return fsync(fd_); });
}

void write_folder(const std::string& path, const std::function<void(const Disk&, const std::string&)>& fill) {
  std::string name = path;
  while (name.ends_with('/')) name.pop_back();
  const Disk disk;
  std::string above = std::filesystem::path(name).parent_path().string(), temporary;
  if (above.empty()) above = ".";
  if (!file_exists(above)) disk.make_directories(above);
  for (int number = 0;; ++number) {  // a name that neither another process nor the user has taken
    temporary = fmt::format("{}.tmp-{}-{}", name, getpid(), number);
    if (mkdir(temporary.c_str(), 0777) == 0) break;
    if (errno != EEXIST) fail_io(DiskOp::make_directory, name, errno);
  }
  try {
    fill(disk, temporary);
    disk.sync_directory(temporary);
    if (::rename(temporary.c_str(), name.c_str()) != 0) {  // replaces only an empty folder
      if (errno == ENOTEMPTY || errno == EEXIST || errno == ENOTDIR)
        throw IoError(name + ": another process created it meanwhile; it is left untouched");
      fail_io(DiskOp::rename, name, errno);
    }
  } catch (...) {
    std::error_code ignored;  // the first error is the one to report
    std::filesystem::remove_all(temporary, ignored);
    throw;
  }
  disk.sync_directory(above);
}

}  // namespace trivet
