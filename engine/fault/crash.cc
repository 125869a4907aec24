#include "engine/fault/crash.h"

#include <array>
#include <atomic>
#include <csignal>
#include <ctime>
#include <execinfo.h>
#include <mutex>
#include <sys/syscall.h>
#include <unistd.h>

namespace trivet {
namespace {

constexpr std::array kSignals = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGQUIT, SIGALRM};
constexpr int kPatience = 200;  // times 10 ms, for the watchdogs

struct Crash {
  std::atomic<int> signal = 0;
  std::atomic<pid_t> thread = 0;
  std::atomic<int> watches = 0, served = 0;
  std::mutex mutex;  // of what follows; not for the handler
  int installed = 0;
  std::array<struct sigaction, kSignals.size()> before{};
} crash;

pid_t this_thread() { return static_cast<pid_t>(syscall(SYS_gettid)); }

void pause_ms(int ms) {
  const timespec time{.tv_sec = 0, .tv_nsec = ms * 1'000'000L};
  nanosleep(&time, nullptr);
}

void on_fatal_signal(int signal) {
  int none = 0;
  if (!crash.signal.compare_exchange_strong(none, signal)) {
    // Another crashing thread waits for the end of the process; a crash in the handler ends it at once.
    while (crash.thread != this_thread()) pause_ms(10);
    ::signal(signal, SIG_DFL);
    raise(signal);
    return;
  }
  crash.thread = this_thread();
  void* frames[64];
  backtrace_symbols_fd(frames, backtrace(frames, 64), STDERR_FILENO);
  for (int i = 0; i < kPatience && crash.served < crash.watches; ++i) pause_ms(10);
  ::signal(signal, SIG_DFL);
  raise(signal);  // delivered when this returns
}

}  // namespace

CrashWatch::CrashWatch() : thread_(this_thread()) {
  std::lock_guard lock(crash.mutex);
  ++crash.watches;
  if (crash.installed++ > 0) return;
  void* frame;
  backtrace(&frame, 1);  // loads its library, which a handler must not
  struct sigaction action = {};
  action.sa_handler = on_fatal_signal;
  for (size_t i = 0; i < kSignals.size(); ++i) {
    sigaction(kSignals[i], &action, &crash.before[i]);
    if (crash.before[i].sa_handler == SIG_IGN) sigaction(kSignals[i], &crash.before[i], nullptr);  // as the shell's &
  }
}

CrashWatch::~CrashWatch() {
  std::lock_guard lock(crash.mutex);
  --crash.watches;
  if (--crash.installed > 0) return;
  for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &crash.before[i], nullptr);
}

int CrashWatch::signal() const { return crash.signal; }
bool CrashWatch::in_my_thread() const { return crash.thread == thread_; }
void CrashWatch::served() {
  if (!served_) ++crash.served;
  served_ = true;
}

}  // namespace trivet
