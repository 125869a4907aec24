// RunDirectory: whether train.run_dir is still this run's. A directory that is deleted, renamed or replaced, or whose
// lock another run has taken over, would get the files of two runs.
#pragma once

#include <string>
#include <sys/types.h>
#include <vector>

#include "base/files.h"

namespace trivet {

class RunDirectory {
 public:
  // `path`: a directory that exists; one that this host does not see is never missed. `what` it is, for messages.
  // `marks`: files that it has as long as it is one's; without all of them it was emptied, as a deletion begins.
  // `lock`: the content of its file `lock`; "": it has none. `holds`: this rank wrote it, and takes it away last of
  // all.
  explicit RunDirectory(std::string path, const char* what = "train.run_dir", std::vector<std::string> marks = {},
                        std::string lock = {}, bool holds = true);

  // The reason why it is no longer this run's; empty: it is, or its file system does not answer. Any thread.
  std::string problem() const;
  // True if another run works in it, and has all that this one saved. A removed lock has no other holder, unless
  // an outcome is there.
  bool taken_over() const;
  // True if no other process holds the directory's flock(), or the file system has no locks.
  bool try_lock();

 private:
  std::string path_;
  const char* what_;
  std::vector<std::string> marks_;
  std::string lock_;
  bool holds_;
  FileDescriptor fd_;
  dev_t device_ = 0;
  ino_t inode_ = 0;  // 0: not seen
};

// The content of a small file; empty if it cannot be read.
std::string text_of(const std::string& path) noexcept;

}  // namespace trivet
