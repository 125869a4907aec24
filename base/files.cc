#include "base/files.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <poll.h>
#include <random>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/host.h"
#include "base/host_memory.h"
#include "base/piece.h"

namespace trivet {
namespace {

constexpr size_t kBufferBytes = piece(1 << 20, 512);

[[noreturn]] void fail_io(const std::string& path, std::string_view doing) {
  throw IoError(fmt::format("{}: cannot {}: {}", path, doing, error_text(errno)));
}

std::string folder_of(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

void sync_directory_of(const std::string& path) {
  const std::string directory = folder_of(path);
  if (!sync_directory(directory)) fail_io(directory, "synchronise the directory");
}

// True if the call should be retried: a signal interrupted it, or the pipe or terminal, which another process may have
// made non-blocking for all processes that share it, is ready again.
bool call_again(int fd, short event) {
  if (errno == EINTR) return true;
  pollfd ready{fd, event, 0};
  return errno == EAGAIN && (poll(&ready, 1, -1) > 0 || errno == EINTR);
}

}  // namespace

size_t write_all(int fd, std::span<const char> bytes) {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = ::write(fd, bytes.data() + done, bytes.size() - done);
    if (n < 0 && call_again(fd, POLLOUT)) continue;
    if (n <= 0) break;
    done += static_cast<size_t>(n);
  }
  return done;
}

size_t read_all(int fd, std::span<char> to) {
  size_t done = 0;
  errno = 0;
  while (done < to.size()) {
    const ssize_t n = ::read(fd, to.data() + done, to.size() - done);
    if (n < 0 && call_again(fd, POLLIN)) continue;
    if (n == 0) errno = 0;
    if (n <= 0) break;
    done += static_cast<size_t>(n);
  }
  return done;
}

FileDescriptor::~FileDescriptor() {
  const int reason = errno;
  if (fd_ >= 0) close(fd_);
  errno = reason;
}

bool sync_directory(const std::string& path) {
  const FileDescriptor fd(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  return fd >= 0 && (fsync(fd) == 0 || errno == EINVAL);  // EINVAL: there is nothing to synchronise
}

InputFile::InputFile(std::string path) : path_(std::move(path)) {
  // Check before opening: if the path is a pipe, open() would wait for a writer.
  struct stat status;
  if (stat(path_.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) throw DataError(path_ + ": not a regular file");
  fd_ = FileDescriptor(open(path_.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd_ < 0) fail_io(path_, "open it");
  if (fstat(fd_, &status) != 0) fail_io(path_, "stat it");
  size_ = status.st_size;
}

void InputFile::read_at(int64_t offset, std::span<std::byte> to) const {
  while (!to.empty()) {
    const ssize_t n = pread(fd_, to.data(), to.size(), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_io(path_, fmt::format("read {} bytes at offset {}", to.size(), offset));
    if (n == 0)
      throw DataError(fmt::format("{}: ends at byte {}, expected {} more bytes there (it had {} when it was opened)",
                                  path_, offset, to.size(), size_));
    to = to.subspan(static_cast<size_t>(n));
    offset += n;
  }
}

void InputFile::will_read(int64_t offset, int64_t bytes) const {
  posix_fadvise(fd_, offset, bytes, POSIX_FADV_WILLNEED);
}

bool file_exists(const std::string& path) {
  struct stat status;
  return stat(path.c_str(), &status) == 0;
}

std::vector<std::string> list_directory(const std::string& path) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator at(path, error), end; !error && at != end; at.increment(error))
    names.push_back(at->path().filename().string());
  if (error) throw IoError(fmt::format("{}: cannot list it: {}", path, error.message()));
  return names;
}

void remove_file_if_exists(const std::string& path) {
  if (unlink(path.c_str()) != 0 && errno != ENOENT) fail_io(path, "remove it");
}

void make_folder(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) throw IoError(fmt::format("{}: cannot be created: {}", path, error.message()));
}

void empty_folder(const std::string& path) {
  std::error_code error;
  std::filesystem::remove_all(path, error);
  if (error) throw IoError(fmt::format("{}: cannot be emptied: {}", path, error.message()));
  make_folder(path);
}

std::string read_small_file(const std::string& path, int64_t max_bytes) {
  const InputFile file(path);
  if (file.size() > max_bytes)
    throw DataError(fmt::format("{}: has {} bytes, expected at most {}", path, file.size(), max_bytes));
  const MemoryPurpose purpose("the content of", path);
  std::string text(static_cast<size_t>(file.size()), '\0');
  file.read_at(0, std::as_writable_bytes(std::span(text)));
  return text;
}

void for_each_line(const std::string& path, const std::function<void(const std::string& line, int64_t number)>& each,
                   TornLine torn) {
  const InputFile regular(path);
  std::ifstream file(path, std::ios::binary);
  if (!file) fail_io(path, "open it");
  std::string line;
  for (int64_t number = 1; std::getline(file, line); ++number)
    if (!file.eof() || torn == TornLine::read) each(line, number);
  if (file.bad()) fail_io(path, "read it");
}

void for_each_csv_line(const std::string& path,
                       const std::function<void(const std::string& line, const std::string& place)>& each) {
  const auto read = [&](std::string line, int64_t number) {
    if (number == 1 && line.starts_with("\xef\xbb\xbf")) line.erase(0, 3);
    if (line.ends_with('\r')) line.pop_back();
    if (!line.empty() && line[0] != '#') each(line, fmt::format("{}:{}", path, number));
  };
  for_each_line(path, read, TornLine::read);
}

namespace {

// Flags to open a file for writing without following symlinks that others may have planted. Only the kernel and root
// create the links in /dev and /proc, such as /dev/stdout.
int opened_for_writing(const std::string& path) {
  std::error_code ignored;
  const std::string folder = std::filesystem::canonical(folder_of(path), ignored).string();
  return O_CLOEXEC | O_NOCTTY | (folder == "/dev" || folder.starts_with("/proc/") ? 0 : O_NOFOLLOW);
}

// Removes files named START plus a random number that no live OutputFile holds.
void remove_abandoned(const std::string& start) {
  std::error_code error;  // the files stay if the folder cannot be listed
  const std::string first = std::filesystem::path(start).filename().string();
  for (std::filesystem::directory_iterator at(folder_of(start), error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    const bool ours = name.starts_with(first) && name.size() == first.size() + 8 &&
                      name.find_first_not_of("0123456789abcdef", first.size()) == std::string::npos;
    if (ours && is_unlocked(at->path())) unlink(at->path().c_str());
  }
}

}  // namespace

OutputFile::OutputFile(std::string path) : path_(std::move(path)) {
  remove_abandoned(path_ + ".tmp-");
  std::random_device random;
  while (!ours_) {
    temporary_ = fmt::format("{}.tmp-{:08x}", path_, random());
    fd_ = FileDescriptor(open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (fd_ < 0 && errno != EEXIST) fail_io(path_, "create it");
    ours_ = fd_ >= 0 && lock();  // if not, another writer of this path considered the file abandoned
  }
  buffer_.reserve(kBufferBytes);
}

// Only the lock holder may write, and only while the name refers to its file; without file locks, the last writer wins.
bool OutputFile::lock() {
  struct stat mine, named;
  const bool refused = flock(fd_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  return !refused && fstat(fd_, &mine) == 0 && lstat(temporary_.c_str(), &named) == 0 && mine.st_ino == named.st_ino;
}

OutputFile::OutputFile(std::string path, std::string temporary, int64_t kept_bytes)
    : path_(std::move(path)), temporary_(std::move(temporary)) {
  fd_ =
      FileDescriptor(open(temporary_.c_str(), O_WRONLY | O_CREAT | O_NONBLOCK | opened_for_writing(temporary_), 0666));
  if (fd_ < 0) fail_io(temporary_, "create it");
  if (struct stat status; fstat(fd_, &status) != 0 || !S_ISREG(status.st_mode) || status.st_nlink > 1)
    throw IoError(temporary_ + ": is not a regular file, or has other hard links; expected no file");
  if (!lock()) throw IoError(fmt::format("{}: another process is writing it", temporary_));
  ours_ = kept_bytes == 0;
  if (ftruncate(fd_, kept_bytes) != 0 || lseek(fd_, kept_bytes, SEEK_SET) < 0) {
    const int reason = errno;
    if (ours_) unlink(temporary_.c_str());
    errno = reason;
    fail_io(temporary_, fmt::format("truncate it to {} bytes", kept_bytes));
  }
  buffer_.reserve(kBufferBytes);
}

bool is_unlocked(const std::string& path) {
  const FileDescriptor fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  return fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) == 0;
}

OutputFile::~OutputFile() {
  if (ours_) unlink(temporary_.c_str());
}

void OutputFile::write(const void* data, size_t bytes) {
  const char* from = static_cast<const char*>(data);
  synced_ = false;
  while (bytes > 0) {
    const size_t n = std::min(bytes, kBufferBytes - buffer_.size());
    buffer_.insert(buffer_.end(), from, from + n);
    from += n;
    bytes -= n;
    if (buffer_.size() == kBufferBytes) flush();
  }
}

void OutputFile::overwrite(int64_t offset, const void* data, size_t bytes) {
  flush();
  synced_ = false;
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = pwrite(fd_, from, bytes, offset);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail_io(temporary_, fmt::format("write {} bytes", bytes));
    from += n;
    offset += n;
    bytes -= static_cast<size_t>(n);
  }
}

void OutputFile::flush() {
  const size_t done = write_all(fd_, buffer_);
  if (done < buffer_.size()) fail_io(temporary_, fmt::format("write {} bytes", buffer_.size() - done));
  buffer_.clear();
}

void OutputFile::sync() {
  if (synced_) return;
  flush();
  if (fsync(fd_) != 0) fail_io(temporary_, "synchronise it");
  synced_ = true;
}

void OutputFile::keep() {
  sync();
  ours_ = false;
}

void OutputFile::commit() {
  if (struct stat old; lstat(path_.c_str(), &old) == 0 && S_ISREG(old.st_mode)) fchmod(fd_, old.st_mode & 0777);
  sync();
  if (rename(temporary_.c_str(), path_.c_str()) != 0) fail_io(temporary_, "rename it to " + path_);
  ours_ = false;
  sync_directory_of(path_);
}

bool OutputFile::commit_as_first() {
  sync();
  // link(), not rename(), which would replace an existing file.
  const bool first = link(temporary_.c_str(), path_.c_str()) == 0;
  if (!first && errno != EEXIST) fail_io(temporary_, "link it to " + path_);
  if (!first) return false;
  unlink(temporary_.c_str());
  ours_ = false;
  sync_directory_of(path_);
  return true;
}

namespace {

// False for a pipe or device. Throws IoError for a link.
bool is_or_can_be_a_file(const std::string& path) {
  std::error_code error;
  const auto type = std::filesystem::symlink_status(path, error).type();
  if (type == std::filesystem::file_type::symlink && (opened_for_writing(path) & O_NOFOLLOW))
    throw IoError(path + ": is a symbolic link; expected a file, or a new name");
  return type == std::filesystem::file_type::regular || type == std::filesystem::file_type::not_found;
}

}  // namespace

void write_file(const std::string& path, std::string_view text) {
  if (is_or_can_be_a_file(path)) {
    OutputFile file(path);
    file.write(text);
    return file.commit();
  }
  const FileDescriptor fd(open(path.c_str(), O_WRONLY | O_TRUNC | opened_for_writing(path)));
  if (fd < 0) fail_io(path, "open it");
  if (write_all(fd, text) < text.size()) fail_io(path, "write it");
}

void check_writable(std::initializer_list<std::string> paths, const std::vector<std::string>& read) {
  std::vector<std::string> others = read;
  for (const std::string& path : paths) {
    if (path.empty()) continue;
    std::error_code none;
    for (const std::string& other : others)
      if (path == other || std::filesystem::equivalent(path, other, none))
        throw ConfigError(path +
                          ": is both read and written, or written twice; expected a different name for the output");
    others.push_back(path);
    if (is_or_can_be_a_file(path)) const OutputFile can_be_made(path);
  }
}

AppendFile::AppendFile(std::string path, Start start, Warn warn, std::string sibling)
    : path_(std::move(path)), warn_(std::move(warn)), sibling_(std::move(sibling)) {
  folder_ = FileDescriptor(::open(folder_of(path_).c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (folder_ < 0 || !open(start == Start::empty ? O_TRUNC : 0))
    throw IoError(path_ + ": cannot be opened for writing: " + error_text(errno));
  if (regular_) cut_torn_record();
}

AppendFile::~AppendFile() {
  if (lost_ > 0) warn(fmt::format("{} records are missing at its end", lost_));
}

bool AppendFile::open(int flags) {
  const std::string name = std::filesystem::path(path_).filename().string();
  FileDescriptor fd(
      ::openat(folder_, name.c_str(), O_RDWR | O_CREAT | O_APPEND | opened_for_writing(path_) | flags, 0666));
  if (fd < 0) return false;
  struct stat status = {};
  regular_ = ::fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
  fd_ = std::move(fd);
  return true;
}

bool AppendFile::is_to_be_made_anew() const {
  struct stat status = {};
  return regular_ && ::fstat(fd_, &status) == 0 && status.st_nlink == 0 &&
         (sibling_.empty() || ::faccessat(folder_, sibling_.c_str(), F_OK, 0) == 0);
}

void AppendFile::cut_torn_record() {
  off_t end = ::lseek(fd_, 0, SEEK_END);
  char last = 0;
  while (end > 0 && ::pread(fd_, &last, 1, end - 1) == 1 && last != '\n') --end;
  if (::ftruncate(fd_, end) != 0) warn(fmt::format("cannot remove a torn record: {}", error_text(errno)));
}

bool AppendFile::append(std::string_view record, bool kept) {
  if (is_to_be_made_anew() && open(0)) warn("was removed; continuing in a new file, without the earlier records");
  const off_t end = regular_ ? ::lseek(fd_, 0, SEEK_END) : 0;
  const size_t written = write_all(fd_, record);
  if (written == record.size()) {
    if (std::exchange(failing_, false))
      warn(fmt::format("can be written again; {} records before this one are missing", std::exchange(lost_, 0)));
    return true;
  }
  const std::string why = error_text(errno);
  const bool torn = regular_ && written > 0 && ::ftruncate(fd_, end) != 0;
  if (!std::exchange(failing_, true))
    warn(fmt::format("cannot be written: {}{}; the number of lost records follows once it can", why,
                     torn ? ", and one is torn" : ""));
  lost_ += !kept;
  return false;
}

void AppendFile::warn(const std::string& what) const {
  if (warn_) warn_(path_ + ": " + what);
}

}  // namespace trivet
