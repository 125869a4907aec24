// File I/O for the data code: reads of exact ranges that never run past the end, and writes that appear under their
// final name either in full or not at all. A failing system call throws an IoError that names the path; a file shorter
// than expected throws a DataError.
//
// An InputFile may be read by many threads concurrently. An OutputFile or AppendFile belongs to one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trivet {

// Owns an open file descriptor, or none: -1.
class FileDescriptor {
 public:
  explicit FileDescriptor(int fd = -1) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileDescriptor();  // preserves errno
  operator int() const { return fd_; }

 private:
  int fd_;
};

class InputFile {
 public:
  explicit InputFile(std::string path);

  const std::string& path() const { return path_; }
  int64_t size() const { return size_; }  // when the file was opened

  // Fills `to` with the bytes from `offset`. Uses pread, not a mapping, so that a file that shrinks under us causes an
  // error and not a signal.
  void read_at(int64_t offset, std::span<std::byte> to) const;
  // Hints that these bytes will be read soon.
  void will_read(int64_t offset, int64_t bytes) const;

 private:
  std::string path_;
  FileDescriptor fd_;
  int64_t size_ = 0;
};

bool file_exists(const std::string& path);  // if not, errno says why
// The names in a directory, in no particular order.
std::vector<std::string> list_directory(const std::string& path);
void remove_file_if_exists(const std::string& path);
void make_folder(const std::string& path);   // and its parents
void empty_folder(const std::string& path);  // the same, and removes its contents

// The content of a small file. Throws DataError if it exceeds max_bytes.
std::string read_small_file(const std::string& path, int64_t max_bytes);
// Calls each(line, number from 1) for every complete line. A last line without a newline is torn; read only on request.
enum class TornLine { skip, read };
void for_each_line(const std::string& path, const std::function<void(const std::string& line, int64_t number)>& each,
                   TornLine torn = TornLine::skip);
// Calls each(line, "PATH:NUMBER") for the lines of a table in CSV, except blank ones and comments (#): without line
// ends and without UTF-8's byte order mark.
void for_each_csv_line(const std::string& path,
                       const std::function<void(const std::string& line, const std::string& place)>& each);

// Writes bytes to a file descriptor, waiting if it is non-blocking. Returns the number written; if that is less than
// all of them, errno says why.
size_t write_all(int fd, std::span<const char> bytes);
// Reads until `to` is full. Returns the number read; if that is less, errno is 0 (end of file) or says why.
size_t read_all(int fd, std::span<char> to);
// If false, errno says why. A file system without directory syncing is not a failure.
bool sync_directory(const std::string& path);

// Writes a temporary file; commit() makes it durable and renames it to PATH. Without commit(), the destructor
// removes it.
class OutputFile {
 public:
  // Writes PATH.tmp-RANDOM, always a new file. Removes the files of killed writers.
  explicit OutputFile(std::string path);
  // Writes to a known name: two writers exclude each other, and the file of a killed writer is overwritten except for
  // its first `kept_bytes`, which must exist; the file then stays, as after keep(). Does not follow links.
  OutputFile(std::string path, std::string temporary, int64_t kept_bytes = 0);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(const void* data, size_t bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  // Replaces bytes that were already written.
  void overwrite(int64_t offset, const void* data, size_t bytes);
  // Makes the data so far durable under the temporary name: after this only the rename can fail.
  void sync();
  // Like sync(); the data so far then stays under the temporary name whatever happens.
  void keep();
  void commit();
  // Like commit(), but the first writer wins: returns false if PATH already exists. The file stays open and locked for
  // the lifetime of this object.
  bool commit_as_first();
  const std::string& temporary() const { return temporary_; }

 private:
  void flush();
  bool lock();  // false: another process holds it, or has removed the file

  std::string path_;
  std::string temporary_;
  FileDescriptor fd_;
  bool ours_ = false;    // temporary_ is locked by us, and removed at the end
  bool synced_ = false;  // nothing has been written since sync()
  std::vector<char> buffer_;
};

// True if no process holds an OutputFile's lock on it; if false, errno says why. (A process in another container is
// invisible, but its lock is not.)
bool is_unlocked(const std::string& path);

// Writes a complete file, durable on return. Writes directly to a pipe or device, even through a link such as
// /dev/stdout; throws IoError for any other link.
void write_file(const std::string& path, std::string_view text);
// Call before long work. Empty paths are ignored. Throws IoError if a file cannot be created at one of the paths, and
// ConfigError if one of them, even through a link, is in `read` or occurs twice.
void check_writable(std::initializer_list<std::string> paths, const std::vector<std::string>& read = {});

// A file of records for people who monitor the run. A full disk must not end a training run, so append() writes a
// record in full or not at all. It warns at the first failure, and reports the number of missing records when it can
// write again, or at the end. If the file was removed, it warns and creates a new one, but only while `sibling`, if
// given, still exists: otherwise the folder is probably being deleted. Used by one thread.
class AppendFile {
 public:
  enum class Start { keep, empty };  // what happens to an existing file
  using Warn = std::function<void(const std::string& message)>;

  // Throws IoError if the file cannot be opened: before training, the user can fix this. A last record that
  // does not end in a newline (the writer was killed) is removed.
  AppendFile(std::string path, Start start, Warn warn, std::string sibling = {});
  ~AppendFile();
  AppendFile(AppendFile&&) = default;
  AppendFile& operator=(AppendFile&&) = default;

  // REQUIRES: the record ends in a newline. Returns false if it could not be written. The record then counts as lost,
  // unless `kept` says that the caller will append it again. Throws what `warn` throws.
  bool append(std::string_view record, bool kept = false);

  const std::string& path() const { return path_; }

 private:
  bool open(int flags);
  bool is_to_be_made_anew() const;
  void cut_torn_record();
  void warn(const std::string& what) const;

  std::string path_;
  Warn warn_;
  std::string sibling_;    // the name of another file in the folder, or ""
  FileDescriptor folder_;  // the file's folder; a new file is never created in another folder of that name
  FileDescriptor fd_;
  bool regular_ = false;  // not a pipe or device: a torn record can be removed again
  bool failing_ = false;  // the last record was not written
  int64_t lost_ = 0;      // records lost since the last record written
};

}  // namespace trivet
