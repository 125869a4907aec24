// RunDirectory: whether train.run_dir still names the directory that this run opened. A directory that is deleted,
// renamed or replaced would get the files of two runs: this one's, and those of a run that is started at the same path
// later.
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
  explicit RunDirectory(std::string path, const char* what = "train.run_dir", std::vector<std::string> marks = {});

  // Why it is another one now; empty: it is the same, or its file system does not answer. Any thread.
  std::string problem() const;
  // Nobody else has the directory open as a run's, by flock(): true also where the file system knows no locks.
  bool try_lock();

 private:
  std::string path_;
  const char* what_;
  std::vector<std::string> marks_;
  FileDescriptor fd_;
  dev_t device_ = 0;
  ino_t inode_ = 0;  // 0: not seen
};

}  // namespace trivet
