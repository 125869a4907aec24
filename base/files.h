// Files as the data code needs them: reads of exact ranges that never run past the end, and writes that appear
// under their name whole or not at all. A failing system call is an IoError naming the path; a file that is shorter
// than expected is a DataError.
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

// Owns an open file, or nothing: -1.
class FileDescriptor {
 public:
  explicit FileDescriptor(int fd = -1) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileDescriptor();  // leaves errno as it is
  operator int() const { return fd_; }

 private:
  int fd_;
};

class InputFile {
 public:
  explicit InputFile(std::string path);

  const std::string& path() const { return path_; }
  int64_t size() const { return size_; }  // when it was opened

  // Fills `to` with the bytes from `offset`. By pread and not through a mapping, so that a file that shrinks under us
  // is an error and not a signal.
  void read_at(int64_t offset, std::span<std::byte> to) const;
  // A hint that these bytes are wanted soon.
  void will_read(int64_t offset, int64_t bytes) const;

 private:
  std::string path_;
  FileDescriptor fd_;
  int64_t size_ = 0;
};

bool file_exists(const std::string& path);  // if not, errno says why
// The names in a directory, in no order.
std::vector<std::string> list_directory(const std::string& path);
void remove_file_if_exists(const std::string& path);
void make_folder(const std::string& path);   // and those above it
void empty_folder(const std::string& path);  // the same, and removes its contents

// The content of a small file; one of more than max_bytes is a DataError.
std::string read_small_file(const std::string& path, int64_t max_bytes);
// Calls each(line, number from 1) for every line that has its end: a last one without was cut off, and read if asked.
enum class TornLine { skip, read };
void for_each_line(const std::string& path, const std::function<void(const std::string& line, int64_t number)>& each,
                   TornLine torn = TornLine::skip);

// Writes bytes to a file descriptor, waiting for one that is non-blocking. The number written: less than all of them
// where errno says why.
size_t write_all(int fd, std::span<const char> bytes);
// Reads until `to` is full. The number read: less than all of them at the end (errno is 0), or where errno says why.
size_t read_all(int fd, std::span<char> to);
// False where errno says why. A file system that has nothing to synchronise for directories is no reason.
bool sync_directory(const std::string& path);

// Writes a temporary file; commit() makes it durable and renames it to PATH. Without commit() the destructor removes
// it.
class OutputFile {
 public:
  // PATH.tmp-RANDOM: a new file, whatever others put next to PATH. Removes those of killed writers.
  explicit OutputFile(std::string path);
  // A name that can be found again: two writers exclude each other, and the file of a killed one is overwritten, except
  // its first `kept_bytes`, which have to be there and then stay, as after keep(). No link is followed.
  OutputFile(std::string path, std::string temporary, int64_t kept_bytes = 0);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(const void* data, size_t bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  // In the place of bytes that were written.
  void overwrite(int64_t offset, const void* data, size_t bytes);
  // Makes the data so far durable under the temporary name: after this only the rename can fail.
  void sync();
  // sync(), and the data so far stays under the temporary name whatever happens.
  void keep();
  void commit();
  // The same, but the first to come keeps the name: false if PATH is there already. The file stays open, and locked,
  // as long as this lives.
  bool commit_as_first();
  const std::string& temporary() const { return temporary_; }

 private:
  void flush();
  bool lock();  // false: another process has it, or has removed it

  std::string path_;
  std::string temporary_;
  FileDescriptor fd_;
  bool ours_ = false;    // temporary_ is locked by us, and removed at the end
  bool synced_ = false;  // nothing was written since sync()
  std::vector<char> buffer_;
};

// No process holds an OutputFile's lock on it; if not, errno says why. (A process of another container is invisible,
// but its lock is not.)
bool is_unlocked(const std::string& path);

// A whole file, durable when this returns. A pipe or device takes the text as it is, so does /dev/stdout; another link
// is an IoError.
void write_file(const std::string& path, std::string_view text);
// For before long work. "" is none. Throws IoError if no file can be made at one of them, and ConfigError if one
// is among `read`, also by a link, or another of them.
void check_writable(std::initializer_list<std::string> paths, const std::vector<std::string>& read = {});

// A file of records for people who watch the run. A disk that is full must not end a training run, so append() writes a
// record wholly or not at all. It warns at the first failure, and with the number of records that are missing when one
// can be written again, or at the end; and where the file was removed, which it makes anew, but only while `sibling`,
// if one is given, is still there: the folder may be on its way out. Used by one thread.
class AppendFile {
 public:
  enum class Start { keep, empty };  // what becomes of a file that is already there
  using Warn = std::function<void(const std::string& message)>;

  // Throws IoError when the file cannot be opened: before training, that is a mistake to mend. A last record that
  // does not end in a newline (the writer was killed) is cut off.
  AppendFile(std::string path, Start start, Warn warn, std::string sibling = {});
  ~AppendFile();
  AppendFile(AppendFile&&) = default;
  AppendFile& operator=(AppendFile&&) = default;

  // REQUIRES: the record ends in a newline. False if it could not be written; it counts as lost, unless `kept` says
  // that it will be offered again. Throws what `warn` throws.
  bool append(std::string_view record, bool kept = false);

  const std::string& path() const { return path_; }

 private:
  bool open(int flags);
  bool is_to_be_made_anew() const;
  void cut_torn_record();
  void warn(const std::string& what) const;

  std::string path_;
  Warn warn_;
  std::string sibling_;    // the name of another file of the folder, or ""
  FileDescriptor folder_;  // of the file, which is never made in another folder of that name
  FileDescriptor fd_;
  bool regular_ = false;  // not a pipe or device: what was written can be cut off again
  bool failing_ = false;  // the last record was not written
  int64_t lost_ = 0;      // records, since the last one that was written
};

}  // namespace trivet
