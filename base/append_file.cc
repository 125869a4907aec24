#include "base/append_file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/files.h"
#include "kernels/base/check.h"

namespace trivet {

AppendFile::AppendFile(std::string path, Start start, Warn warn) : path_(std::move(path)), warn_(std::move(warn)) {
  const int flags = O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | (start == Start::empty ? O_TRUNC : 0);
  fd_ = ::open(path_.c_str(), flags, 0666);
  if (fd_ < 0) throw IoError(path_ + ": cannot be opened for writing: " + std::strerror(errno));
  struct stat status = {};
  regular_ = ::fstat(fd_, &status) == 0 && S_ISREG(status.st_mode);
  if (regular_) cut_torn_record();
}

AppendFile::~AppendFile() { ::close(fd_); }

void AppendFile::cut_torn_record() {
  off_t end = ::lseek(fd_, 0, SEEK_END);
  char block[4096];
  bool whole = end == 0;
  while (!whole && end > 0) {
    const size_t n = std::min<size_t>(sizeof block, static_cast<size_t>(end));
    if (::pread(fd_, block, n, end - static_cast<off_t>(n)) != static_cast<ssize_t>(n)) return;
    size_t keep = n;
    while (keep > 0 && block[keep - 1] != '\n') --keep;
    whole = keep > 0;
    end -= static_cast<off_t>(n - keep);
  }
  if (::ftruncate(fd_, end) != 0) warn_once(std::strerror(errno));
}

bool AppendFile::append(std::string_view record) {
  const off_t end = regular_ ? ::lseek(fd_, 0, SEEK_END) : 0;
  const size_t written = write_all(fd_, record);
  if (written == record.size()) return true;
  const int error = errno;
  ++lost_;
  if (regular_ && written > 0 && ::ftruncate(fd_, end) != 0) warn_once("a torn record could not be cut off");
  warn_once(std::strerror(error));
  return false;
}

void AppendFile::warn_once(const std::string& why) {
  if (warn_) warn_(path_ + ": cannot be written: " + why + "; training goes on without these records");
  warn_ = nullptr;
}

}  // namespace trivet
