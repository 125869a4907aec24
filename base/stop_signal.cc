#include "base/stop_signal.h"

#include <atomic>
#include <csignal>

namespace trivet {
namespace {

// A handler can reach nothing but a global.
std::atomic<int> received{0};
static_assert(std::atomic<int>::is_always_lock_free);

void handle(int signal) {
  int none = 0;
  if (received.compare_exchange_strong(none, signal)) return;
  if (signal == SIGHUP) return;  // a terminal that closes sends it twice: the shell to its jobs, and the kernel
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

}  // namespace

void watch_stop_signals() {
  struct sigaction action {};
  action.sa_handler = handle;
  action.sa_flags = SA_RESTART;
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1}) sigaction(signal, &action, nullptr);
  struct sigaction hangup {};
  sigaction(SIGHUP, nullptr, &hangup);
  if (hangup.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, nullptr);
}

int stop_signal() { return received; }

}  // namespace trivet
