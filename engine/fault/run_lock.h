// RunLock: RUN_DIR/lock, which keeps two jobs from writing to one folder. It names its holder: host, process, start
// time and scheduler job. The directory itself is locked too, so removing the lock file does not admit another job. A
// stale lock is taken over, unless flock() shows that the file or folder is held. A lock from this host is stale if its
// process has ended or is in another container; a lock from another host, if an earlier attempt of the same scheduler
// job holds it or it has not been touched for kStale. The holder touches it every kTouch.
#pragma once

#include <cstdint>
#include <string>

#include "base/files.h"
#include "engine/fault/run_directory.h"
#include "kernels/base/trace.h"

namespace trivet {

class RunLock {
 public:
  static constexpr int kStale = 300, kTouch = 30;  // seconds

  // Throws ConfigError, naming the holder, if another job holds it; IoError.
  explicit RunLock(const std::string& run_dir);
  ~RunLock();  // does not remove a lock that another run has taken over
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  // Call periodically, always from the same thread. now: as returned by now_ns().
  void touch(int64_t now = now_ns()) noexcept;
  const std::string& text() const { return text_; }  // content of the lock, unique to this holder
  // The previous holder of a lock that was taken over; empty: none.
  const std::string& taken_from() const { return taken_from_; }

 private:
  std::string path_;
  std::string text_;  // of the lock
  std::string taken_from_;
  RunDirectory folder_;
  OutputFile file_;  // open and locked for the life of this process
  int64_t touched_ns_ = 0;
};

}  // namespace trivet
