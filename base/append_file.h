// AppendFile: a file of records for people who watch the run. A disk that is full must not end a training run, so
// append() writes a record wholly or not at all, and the first failure is told once; later records are tried again.
// Used by one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace trivet {

class AppendFile {
 public:
  enum class Start { keep, empty };  // what becomes of a file that is already there
  using Warn = std::function<void(const std::string& message)>;

  // Throws IoError when the file cannot be opened: before training, that is a mistake to mend. A last record that
  // does not end in a newline (the writer was killed) is cut off.
  AppendFile(std::string path, Start start, Warn warn);
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  // REQUIRES: the record ends in a newline. False where it could not be written.
  bool append(std::string_view record);

  const std::string& path() const { return path_; }
  int64_t lost_records() const { return lost_; }

 private:
  void cut_torn_record();
  void warn_once(const std::string& why);

  std::string path_;
  Warn warn_;
  int fd_ = -1;
  bool regular_ = false;  // not a pipe or device: what was written can be cut off again
  int64_t lost_ = 0;
};

}  // namespace trivet
