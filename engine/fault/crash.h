// CrashWatch: on a fatal signal (SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT) the handler writes a backtrace to stderr and
// waits for the watchdogs of the process's ranks to write their reports in ordinary code. On SIGQUIT and SIGALRM,
// unless ignored, the process continues until those reports are written. The signal then takes its default action, so
// that a launcher sees it. A signal handler takes no user argument, so the state is process-wide.
#pragma once

#include <sys/types.h>

namespace trivet {

// One per rank, created by its main thread and used by its watchdog. The first in a process installs the handlers, the
// last restores the previous ones.
class CrashWatch {
 public:
  CrashWatch();
  ~CrashWatch();
  CrashWatch(const CrashWatch&) = delete;
  CrashWatch& operator=(const CrashWatch&) = delete;

  int signal() const;                       // the fatal signal; 0: none
  bool in_my_thread() const;                // true if thread() received it
  pid_t thread() const { return thread_; }  // the thread that created this object
  void served();                            // to be called once this rank's report is written

 private:
  const pid_t thread_;
  bool served_ = false;
};

}  // namespace trivet
