// RunDirectory: checks that train.run_dir still belongs to this run. If it is deleted, renamed or replaced, or another
// run takes over its lock, the files of two runs could mix.
#pragma once

#include <string>
#include <sys/types.h>
#include <vector>

#include "base/files.h"

namespace trivet {

class RunDirectory {
 public:
  // `path`: an existing directory; if this host cannot see it, it is never reported missing. `what`: its name in
  // messages. `marks`: files that exist as long as the run owns it; if all are missing, it was emptied (a deletion
  // starts with that). `lock`: the content of its lock file; "": no lock file. `holds`: this rank wrote the lock and
  // removes it at the very end.
  explicit RunDirectory(std::string path, const char* what = "train.run_dir", std::vector<std::string> marks = {},
                        std::string lock = {}, bool holds = true);

  // Why the directory no longer belongs to this run; empty: it does, or its file system does not respond. Any thread.
  std::string problem() const;
  // True if another run now owns it, with everything that this run saved. A missing lock counts only if there is an
  // outcome.
  bool taken_over() const;
  // Locks it by flock(). False: another process holds that lock. Also true if the file system does not support locks.
  bool try_lock();

 private:
  std::string path_;
  const char* what_;
  std::vector<std::string> marks_;
  std::string lock_;
  bool holds_;
  FileDescriptor fd_;
  dev_t device_ = 0;
  ino_t inode_ = 0;  // 0: not visible
};

// The content of a small file; empty if it cannot be read.
std::string text_of(const std::string& path) noexcept;

}  // namespace trivet
