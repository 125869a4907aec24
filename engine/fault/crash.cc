#include "engine/fault/crash.h"

#include <array>
#include <atomic>
#include <csignal>
#include <ctime>
#include <execinfo.h>
#include <mutex>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/host.h"

namespace trivet {
namespace {

constexpr std::array kSignals = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGQUIT, SIGALRM};
constexpr int kPatience = 200;  // in units of 10 ms: how long to wait for the watchdogs

// Sent from outside the process: the interrupted thread is not at fault, and may hold a lock that the watchdogs need.
bool is_request(int signal) { return signal == SIGQUIT || signal == SIGALRM; }

struct Crash {
  std::atomic<int> signal = 0;
  std::atomic<pid_t> thread = 0;
  std::atomic<int> watches = 0, served = 0;
  std::mutex mutex;  // guards the members below; the handler must not take it
  int installed = 0;
  std::array<struct sigaction, kSignals.size()> before{};
} crash;

pid_t this_thread() { return static_cast<pid_t>(syscall(SYS_gettid)); }

void pause_ms(int ms) {
  const timespec time{.tv_sec = 0, .tv_nsec = ms * 1'000'000L};
  nanosleep(&time, nullptr);
}

void end_by(int signal) {
  ::signal(signal, SIG_DFL);
  raise(signal);  // in a handler: delivered when the handler returns
}

void on_fatal_signal(int signal) {
  int none = 0;
  if (!crash.signal.compare_exchange_strong(none, signal)) {
    // A second crashing thread waits for the process to end. A crash in the handler ends it immediately, and so do two
    // signals of which either is a request.
    while (!is_request(signal) && !is_request(none) && crash.thread != this_thread()) pause_ms(10);
    return end_by(signal);
  }
  if (is_request(signal)) return;  // the thread continues until the last watchdog has served it
  crash.thread = this_thread();
  void* frames[64];
  if (stderr_accepts()) backtrace_symbols_fd(frames, backtrace(frames, 64), STDERR_FILENO);
  for (int i = 0; i < kPatience && crash.served < crash.watches; ++i) pause_ms(10);
  end_by(signal);
}

}  // namespace

CrashWatch::CrashWatch() : thread_(this_thread()) {
  std::lock_guard lock(crash.mutex);
  ++crash.watches;
  if (crash.installed++ > 0) return;
  void* frame;
  backtrace(&frame, 1);  // loads backtrace's library, which a handler must not do
  struct sigaction action = {};
  action.sa_handler = on_fatal_signal;
  for (size_t i = 0; i < kSignals.size(); ++i) {
    sigaction(kSignals[i], &action, &crash.before[i]);
    if (crash.before[i].sa_handler == SIG_IGN) sigaction(kSignals[i], &crash.before[i], nullptr);  // e.g. the shell's &
  }
}

CrashWatch::~CrashWatch() {
  std::lock_guard lock(crash.mutex);
  --crash.watches;
  if (--crash.installed > 0) return;
  for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &crash.before[i], nullptr);
  if (crash.signal != 0) end_by(crash.signal);  // after the last watchdog's last poll
}

int CrashWatch::signal() const { return crash.signal; }
bool CrashWatch::in_my_thread() const { return crash.thread == thread_; }
void CrashWatch::served() {
  if (served_) return;
  served_ = true;
  if (++crash.served == crash.watches && is_request(crash.signal)) end_by(crash.signal);
}

}  // namespace trivet
