// CrashWatch: what happens between a fatal signal (SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT) and the end of the
// process: a backtrace goes to stderr, then the watchdogs of the process's ranks get a moment to write down what they
// know, in ordinary code; then the signal takes its usual course, so that a launcher sees it.
//
// A signal's handler has no argument to find its data by: the one place with process-wide state.
#pragma once

#include <sys/types.h>

namespace trivet {

// One a rank, made by its main thread, used by its watchdog. The first of the process installs the handlers, the last
// takes them away.
class CrashWatch {
 public:
  CrashWatch();
  ~CrashWatch();
  CrashWatch(const CrashWatch&) = delete;
  CrashWatch& operator=(const CrashWatch&) = delete;

  int signal() const;                       // that ends the process now; 0: none
  bool in_my_thread() const;                // it hit the thread that made this object
  pid_t thread() const { return thread_; }  // that made it
  void served();                            // this rank has said what it had to say

 private:
  const pid_t thread_;
  bool served_ = false;
};

}  // namespace trivet
