// Disk: all file system operations of a checkpoint. Each calls `fault` first, so that a test or --inject can make any
// of them fail, lie about success, or be the process's last.
//
// A failed operation throws IoError naming the operation, the path and the reason. Thread-safe; `fault` must be, too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

namespace trivet {

enum class DiskOp { make_directory, create, reserve, write, sync, rename, exchange, remove };
const char* name_of(DiskOp op);

// The outcome of an operation. torn: a write reports success but writes only half; unsupported: the file system cannot
// exchange names (NFS).
enum class DiskFate { normal, no_space, io_error, read_only, torn, unsupported };

class Disk {
 public:
  using Fault = std::function<DiskFate(DiskOp op, const std::string& path)>;
  Disk() = default;
  explicit Disk(Fault fault) : fault_(std::move(fault)) {}

  // make_directories() makes the new names durable.
  enum class Parents { made, expected };  // expected: a missing parent is an error
  void make_directories(const std::string& path, Parents parents = Parents::made) const;
  void rename(const std::string& from, const std::string& to) const;
  // Swaps two names atomically. False if the file system cannot.
  bool exchange(const std::string& a, const std::string& b) const;
  void remove_all(const std::string& path) const;
  void sync_directory(const std::string& path) const;
  // Writes a small file under its final name, and makes its content durable.
  void write_file(const std::string& path, const std::string& text) const;

  // A file of known size, written sequentially.
  class File {
   public:
    File(const Disk& disk, std::string path, int64_t bytes);
    ~File();
    File(const File&) = delete;
    File& operator=(const File&) = delete;
    void write(std::span<const char> bytes);
    void sync();

   private:
    const Disk& disk_;
    std::string path_;
    int fd_ = -1;
    int64_t written_ = 0, started_ = 0;  // bytes written; bytes whose writeback has started
  };

 private:
  // Asks `fault` for the operation's outcome; throws if it is an error.
  DiskFate begin(DiskOp op, const std::string& path) const;
  // Performs the operation: `call` is a system call, repeated if a signal interrupts it. Throws if it fails.
  void finish(DiskOp op, const std::string& path, const std::function<int()>& call) const;

  Fault fault_;
};

// Calls fill(disk, temporary) on a new folder next to `path`, then renames it to `path`, which must not exist or must
// be an empty folder. The folder appears durably with all its files, or not at all. If another process creates `path`
// in the meantime, that folder stays and this throws IoError. Exceptions from fill() propagate.
void write_folder(const std::string& path, const std::function<void(const Disk&, const std::string&)>& fill);

}  // namespace trivet
