#include "base/stop_signal.h"

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <gtest/gtest.h>
#include <string>
#include <thread>

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
        std::raise(SIGHUP);  // a terminal that closes is no impatience
        std::raise(SIGINT);
        std::_Exit(1);
      },
      testing::KilledBySignal(SIGINT), "^trivet: SIGTERM: the run ends\ntrivet: SIGINT: lost: steps 8 to 9\n$");
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
