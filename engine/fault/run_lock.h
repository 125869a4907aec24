// RunLock: RUN_DIR/lock, so that two jobs do not write into one folder. It names its holder: host, process, start time
// and scheduler job. The directory itself is locked too, so that removing the lock file lets no other job in. A stale
// lock is taken over, but never where flock() finds file or directory held: on this host where the process does not
// exist, or is of another container; from another host where the same scheduler job holds it, from an earlier attempt,
// or where it was not touched for kStale. The holder touches it every kTouch.
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

  // Throws ConfigError, naming the holder, where another job has it; IoError.
  explicit RunLock(const std::string& run_dir);
  ~RunLock();  // does not remove a lock that another run has taken over
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  // Now and then; any one thread. now: in ns, as now_ns() has it.
  void touch(int64_t now = now_ns()) noexcept;
  const std::string& text() const { return text_; }  // of the lock: no other has the same
  // The previous holder of a lock that was taken over; empty: none.
  const std::string& taken_from() const { return taken_from_; }

 private:
  std::string path_;
  std::string text_;  // of the lock
  std::string taken_from_;
  RunDirectory folder_;
  OutputFile file_;  // open, and locked, as long as this process lives
  int64_t touched_ns_ = 0;
};

}  // namespace trivet
