// RunLock: RUN_DIR/lock, so that two jobs do not write into one folder. It says who holds it: host, process, its start,
// and the scheduler's job. A lock whose holder is gone is taken over: on this host one sees whether the process is
// there, or, from another container, whether it has the file open; one of the same scheduler job is an earlier attempt
// of it; elsewhere a lock is gone when nobody has touched it for kStale, which its holder does every kTouch.
#pragma once

#include <cstdint>
#include <string>

#include "base/files.h"

namespace trivet {

class RunLock {
 public:
  static constexpr int kStale = 300, kTouch = 30;  // seconds

  // Throws ConfigError, naming the holder, where another job has it; IoError.
  explicit RunLock(const std::string& run_dir);
  ~RunLock();  // leaves a lock alone that another run has taken over meanwhile
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  void touch() noexcept;  // now and then; any one thread
  // Throws ConfigError where another run has taken it over: from one that was suspended, or cut off, for kStale.
  void check() const;
  // Of whom the lock was taken over; empty: nobody.
  const std::string& taken_from() const { return taken_from_; }

 private:
  std::string path_;
  std::string text_;  // of the lock
  std::string taken_from_;
  OutputFile file_;  // open, and locked, as long as this process lives
  int64_t touched_ns_ = 0;
};

}  // namespace trivet
