#include "base/stop_signal.h"

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <thread>
#include <unistd.h>

#include "base/host.h"

namespace trivet {
namespace {

struct Text {
  std::array<char, 300> bytes{};
  size_t size = 0;

  void operator=(std::string_view text) { size = text.copy(bytes.data(), bytes.size()); }
  std::string_view view() const { return {bytes.data(), size}; }
};

struct Texts {
  Text at_first, at_once;
};

// A signal handler can reach only globals.
std::atomic<int> received{0};
std::atomic<bool> on_terminal{false};  // the terminal's last line may be a progress bar, or ^C
std::atomic<int64_t> received_ns{0};   // 0: nothing was received
std::array<Texts, 2> texts;            // one is in use, the other can be written
std::atomic<int> in_use{0};
std::atomic<int> readers{0};  // handlers that read the messages in use, or those in use when they began
static_assert(std::atomic<int64_t>::is_always_lock_free && std::atomic<int>::is_always_lock_free &&
              std::atomic<bool>::is_always_lock_free);

int64_t monotonic_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * int64_t{1'000'000'000} + now.tv_nsec;
}

// A single write, because ranks share a terminal. Nothing here allocates or locks.
void report(int signal, std::string_view text) {
  if (text.empty() || !stderr_accepts()) return;
  std::array<char, 400> line;
  size_t size = 0;
  const char* const name = sigabbrev_np(signal);
  for (const std::string_view part :
       {std::string_view(on_terminal ? "\n" : ""), std::string_view("trivet: SIG"), std::string_view(name ? name : "?"),
        std::string_view(": "), text, std::string_view("\n")})
    size += part.copy(line.data() + size, line.size() - size);
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line.data(), size);
}

void handle(int signal) {
  const int reason = errno;
  ++readers;
  const Texts& say = texts[static_cast<size_t>(in_use.load())];
  const int64_t now = monotonic_ns();
  int64_t first = 0;
  if (received_ns.compare_exchange_strong(first, now)) {
    received = signal;
    report(signal, say.at_first.view());
  } else if (signal != SIGHUP && signal != SIGXCPU && now - first >= kImpatienceSeconds * int64_t{1'000'000'000}) {
    report(signal, say.at_once.view());
    --readers;
    if (getpid() == 1) _exit(128 + signal);  // a container's first process: raise() would not end it
    std::signal(signal, SIG_DFL);
    std::raise(signal);
    ++readers;
  }
  --readers;
  errno = reason;
}

}  // namespace

void watch_stop_signals(std::string_view at_first, std::string_view at_once) {
  set_stop_texts(at_first, at_once);
  on_terminal = isatty(STDERR_FILENO) != 0;
  struct sigaction action {};
  action.sa_handler = handle;
  action.sa_flags = SA_RESTART;
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1, SIGUSR2, SIGXCPU}) sigaction(signal, &action, nullptr);
  struct sigaction hangup {};
  sigaction(SIGHUP, nullptr, &hangup);
  if (hangup.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, nullptr);
}

int stop_signal() { return received; }

void set_stop_texts(std::string_view at_first, std::string_view at_once) {
  while (readers > 0) std::this_thread::yield();
  const int next = 1 - in_use.load();
  texts[static_cast<size_t>(next)].at_first = at_first;
  texts[static_cast<size_t>(next)].at_once = at_once;
  in_use = next;
}

}  // namespace trivet
