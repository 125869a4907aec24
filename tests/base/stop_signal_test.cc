#include "base/stop_signal.h"

#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <string>
#include <thread>
#include <unistd.h>

namespace trivet {
namespace {

void wait_until_impatient() { std::this_thread::sleep_for(std::chrono::milliseconds(1000 * kImpatienceSeconds + 100)); }

// timeout(1) and schedulers send a signal to the process and again to its group.
TEST(StopSignal, SeveralAtOnceAreOne) {
  EXPECT_EXIT(
      {
        watch_stop_signals("the run ends", "the run ends at once");
        for (const int signal : {SIGTERM, SIGTERM, SIGINT, SIGUSR1}) std::raise(signal);
        std::_Exit(stop_signal() == SIGTERM ? 75 : 1);
      },
      testing::ExitedWithCode(75), "^trivet: SIGTERM: the run ends\n$");
}

TEST(StopSignal, ALaterOneEndsTheProcessAtOnceAndSaysWhatIsLost) {
  EXPECT_EXIT(
      {
        watch_stop_signals("the run ends", "");
        set_stop_texts("the run ends", "lost: steps 8 to 9");
        std::raise(SIGTERM);
        wait_until_impatient();
        std::raise(SIGHUP);  // a closing terminal is not a second request
        std::raise(SIGINT);
        std::_Exit(1);
      },
      testing::KilledBySignal(SIGINT), "^trivet: SIGTERM: the run ends\ntrivet: SIGINT: lost: steps 8 to 9\n$");
}

// The kernel repeats SIGXCPU every second.
TEST(StopSignal, OfSchedulersAndLimitsAskAlike) {
  for (const int signal : {SIGUSR2, SIGXCPU})
    EXPECT_EXIT(
        {
          watch_stop_signals("the run ends", "the run ends at once");
          std::raise(signal);
          wait_until_impatient();
          std::raise(SIGXCPU);
          std::_Exit(stop_signal() == signal ? 75 : 1);
        },
        testing::ExitedWithCode(75), "^trivet: SIG(USR2|XCPU): the run ends\n$");
}

// Prints the message that a SIGINT writes if standard error is a terminal, then exits.
[[noreturn]] void interrupt_on_a_terminal() {
  const int terminal = posix_openpt(O_RDWR | O_NOCTTY);
  if (terminal < 0 || grantpt(terminal) != 0 || unlockpt(terminal) != 0) std::_Exit(2);
  const int kept = dup(STDERR_FILENO);
  dup2(open(ptsname(terminal), O_RDWR | O_NOCTTY), STDERR_FILENO);
  watch_stop_signals("the run ends", "");
  std::raise(SIGINT);
  std::array<char, 200> shown{};
  const ssize_t size = read(terminal, shown.data(), shown.size());
  std::_Exit(size > 0 && write(kept, shown.data(), static_cast<size_t>(size)) == size ? 0 : 1);
}

// The terminal's last line may hold a progress bar, and ^C.
TEST(StopSignal, BeginsALineOfATerminal) {
  EXPECT_EXIT(interrupt_on_a_terminal(), testing::ExitedWithCode(0), "^\r\ntrivet: SIGINT: the run ends\r\n$");
}

TEST(StopSignal, LongTextsAreCutOffAndNoneIsNotWritten) {
  EXPECT_EXIT(
      {
        watch_stop_signals(std::string(1000, 'x'), "");
        std::raise(SIGTERM);
        wait_until_impatient();
        std::raise(SIGTERM);
      },
      testing::KilledBySignal(SIGTERM), "^trivet: SIGTERM: x+\n$");
}

}  // namespace
}  // namespace trivet
