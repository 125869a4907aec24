#include "base/sink_queue.h"

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/files.h"
#include "base/host.h"
#include "base/stop_signal.h"
#include "tests/support/temp_dir.h"

namespace trivet {
namespace {

struct Taken {
  std::atomic<bool> accepts = false;
  std::atomic<int> refused = 0;
  std::vector<std::string> pieces;  // owned by the queue's thread until drained
};

SinkQueue::Sink into(const std::shared_ptr<Taken>& taken, double patience_s = 0) {
  return {.write =
              [taken](const std::string& piece) {
                if (!taken->accepts) return ++taken->refused, false;
                taken->pieces.push_back(piece);
                return true;
              },
          .gap = [](int64_t pieces) { return fmt::format("{} missing", pieces); },
          .patience_s = patience_s};
}

std::string piece(int number) {
  std::string text = fmt::format("{} ", number);
  return text.append((1 << 16) - text.size(), 'x');
}
constexpr int kFits = static_cast<int>(SinkQueue::kBytes >> 16);

TEST(SinkQueue, LosesNothingThatFitsWhileItsSinkIsStopped) {
  const auto taken = std::make_shared<Taken>();
  SinkQueue queue(into(taken));
  for (int i = 0; i < kFits; ++i) queue.push(piece(i));
  EXPECT_FALSE(queue.drain());
  EXPECT_GE(queue.stalled_s(), SinkQueue::kWait / 2);
  taken->accepts = true;
  ASSERT_TRUE(queue.drain());
  EXPECT_EQ(queue.stalled_s(), 0);
  ASSERT_EQ(taken->pieces.size(), static_cast<size_t>(kFits));
  for (int i = 0; i < kFits; ++i) EXPECT_EQ(taken->pieces[static_cast<size_t>(i)], piece(i));
}

TEST(SinkQueue, CountsWhatItDropsAndSaysSoWhereItIsMissing) {
  const auto taken = std::make_shared<Taken>();
  SinkQueue queue(into(taken));
  for (int i = 0; i < kFits + 3; ++i) queue.push(piece(i));
  taken->accepts = true;
  ASSERT_TRUE(queue.drain());
  queue.push("later");
  ASSERT_TRUE(queue.drain());
  ASSERT_EQ(taken->pieces.size(), static_cast<size_t>(kFits) + 2);
  EXPECT_EQ(taken->pieces[static_cast<size_t>(kFits)], "3 missing");
  EXPECT_EQ(taken->pieces.back(), "later");
}

TEST(SinkQueue, WithPatienceDropsNothingThatItsSinkTakesInTime) {
  const auto taken = std::make_shared<Taken>();
  SinkQueue queue(into(taken, 3600));
  for (int i = 0; i < kFits; ++i) queue.push(piece(i));
  std::thread sink([&] {
    const int before = taken->refused;
    while (taken->refused < before + 2) std::this_thread::yield();
    taken->accepts = true;
  });
  for (int i = kFits; i < 2 * kFits; ++i) queue.push(piece(i));
  sink.join();
  ASSERT_TRUE(queue.drain());
  EXPECT_EQ(taken->pieces.size(), 2 * static_cast<size_t>(kFits));
}

// Ten thousand short writes per second keep a launcher from handling a signal.
TEST(SinkQueue, WritesShortPiecesTogether) {
  const auto taken = std::make_shared<Taken>();
  SinkQueue queue(into(taken));
  std::string expected;
  for (int i = 0; i < 1000; ++i) {
    queue.push(fmt::format("{}\n", i));
    expected += fmt::format("{}\n", i);
  }
  taken->accepts = true;
  ASSERT_TRUE(queue.drain());
  EXPECT_LE(taken->pieces.size(), 2U);
  EXPECT_EQ(fmt::format("{}", fmt::join(taken->pieces, "")), expected);
}

// A pipe with a slow reader accepts nothing until a whole page is free.
TEST(SinkQueue, ASinkWhoseReaderReadsIsNotStalled) {
  const auto taken = std::make_shared<Taken>();
  const auto unread = std::make_shared<std::atomic<int64_t>>(4096);
  SinkQueue::Sink sink = into(taken);
  sink.unread = [unread] { return unread->load(); };
  SinkQueue queue(sink);
  queue.push("a row");
  queue.push("another");
  ASSERT_FALSE(queue.drain());
  EXPECT_GE(queue.stalled_s(), SinkQueue::kWait / 2);
  *unread -= 150;
  EXPECT_LT(queue.stalled_s(), SinkQueue::kWait / 2);
  taken->accepts = true;
}

TEST(SinkQueue, LeavesAStuckSinkBehindAndCountsWhatIsLost) {
  int pipes[2];
  ASSERT_EQ(pipe(pipes), 0);
  auto queue = std::make_unique<SinkQueue>(
      SinkQueue::Sink{.write = [fd = pipes[1]](const std::string& text) { return write_all(fd, text) == text.size(); },
                      .gap = [](int64_t) { return ""; }});
  for (int i = 0; i < 4; ++i) queue->push(piece(i));
  EXPECT_EQ(queue->close().size(), 3U) << "a pipe holds 64 KiB";
  queue.reset();
  std::string text(1 << 17, ' ');
  EXPECT_EQ(read_all(pipes[0], text), text.size());  // the queue's thread ends with the piece that it was writing
}

// A writer also waits if another process made the pipe non-blocking.
TEST(WriteAll, WaitsForANonBlockingPipe) {
  int pipes[2];
  ASSERT_EQ(pipe2(pipes, O_NONBLOCK), 0);
  const std::string text(1 << 20, 'y');
  std::string found(text.size(), ' ');
  size_t got = 0;
  std::thread reader([&] { got = read_all(pipes[0], found); });
  EXPECT_EQ(write_all(pipes[1], text), text.size());
  reader.join();
  EXPECT_EQ(got, text.size());
  EXPECT_EQ(found, text);
}

// A paused `2>&1 | less` must block neither a rank that writes a message nor a signal handler.
TEST(StopSignal, OfAProcessWhoseErrorsNobodyReads) {
  EXPECT_EXIT(
      {
        int pipes[2];
        if (pipe(pipes) != 0) std::_Exit(2);
        dup2(pipes[1], STDERR_FILENO);
        for (fcntl(pipes[1], F_SETFL, O_NONBLOCK); write(pipes[1], "x", 1) == 1;) continue;
        fcntl(pipes[1], F_SETFL, 0);
        watch_stop_signals("the run ends", "");
        alarm(60);
        std::raise(SIGTERM);
        write_stderr("two seconds\n");
        write_stderr("none\n");
        std::_Exit(stop_signal() == SIGTERM ? 75 : 1);
      },
      testing::ExitedWithCode(75), "");
}

// ---- OutputLog

TEST(OutputLog, HasTheLinesOfATerminalWithoutWhatIsDrawnAgain) {
  const TempDir dir;
  OutputLog log;
  log.add("banner\n");
  log.add("\r\033[K[=>  ]  1/2");  // a progress bar
  log.open(dir / "log");
  log.add("\r\033[Kstep 1\n\r\033[K[==> ]  1/2");
  log.add("\r\033[Kstep 2\nno end");
  log.close();
  const std::string text = read_text(dir / "log");
  EXPECT_TRUE(text.starts_with("---- 2")) << text;
  EXPECT_EQ(text.substr(text.find('\n') + 1), "banner\nstep 1\nstep 2\nno end\n");
}

TEST(OutputLog, IsBounded) {
  const TempDir dir;
  {
    OutputLog log(/*most_bytes=*/1000);
    log.open(dir / "log");
    for (int i = 0; i < 100; ++i) {
      log.add(fmt::format("{:<98}|\n", i));
      ASSERT_TRUE(log.drain());
    }
  }
  const std::string last = read_text(dir / "log"), before = read_text(dir / "log.1");
  EXPECT_LE(last.size(), 1000u);
  EXPECT_LE(before.size(), 1000u);
  EXPECT_TRUE(last.ends_with(fmt::format("{:<98}|\n", 99)));
  const int first_of_last = std::stoi(last), last_of_before = std::stoi(before.substr(before.size() - 100));
  EXPECT_EQ(first_of_last, last_of_before + 1) << "nothing is lost between them";
}

TEST(OutputLog, OfADiskThatTakesNothingEndsNothing) {
  const TempDir dir;
  OutputLog log;
  log.open(dir / "missing/log");
  log.add("line\n");
  EXPECT_FALSE(log.drain());
}

}  // namespace
}  // namespace trivet
