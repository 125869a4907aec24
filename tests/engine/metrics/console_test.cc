#include "engine/metrics/console.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <fstream>
#include <gtest/gtest.h>
#include <sstream>

namespace trivet {
namespace {

StepReport some_step(int64_t step) {
  StepReport r;
  r.step = step;
  r.total_steps = 2000;
  r.loss = 10.8123456789;
  r.grad_norm = 2.41;
  r.learning_rate = 1.2e-5;
  r.step_seconds = 0.5123;
  r.remaining_seconds = 209;
  r.tokens_per_second = 15998.4;
  r.model_tflops_per_rank = 0.5234;
  r.mfu = 0.412;
  r.stats.window = 1000;
  r.stats.exposed = {31};
  r.stats.wait = {12};
  r.bubble_fraction = 0.004;
  return r;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

// The screen of a terminal of unlimited width after `output`; fails on an unknown escape sequence.
std::vector<std::string> screen_after(const std::string& output) {
  std::vector<std::string> rows(1);
  size_t column = 0;
  for (size_t i = 0; i < output.size(); ++i) {
    const char c = output[i];
    if (c == '\n') rows.emplace_back(), column = 0;
    else if (c == '\r') column = 0;
    else if (c == '\033') {
      EXPECT_EQ(output.substr(i, 3), "\033[K");
      rows.back().resize(column);
      i += 2;
    } else {
      rows.back().resize(std::max(rows.back().size(), column + 1));
      rows.back()[column++] = c;
    }
  }
  return rows;
}

TEST(Console, StepLinesAreAlignedUnderTheirHeader) {
  std::ostringstream out;
  Console console(out, nullptr);
  console.step(some_step(3));
  StepReport odd = some_step(1234);
  odd.loss = std::nan("");
  odd.remaining_seconds = StepReport::kUnknown;
  odd.mfu = StepReport::kUnknown;
  odd.model_tflops_per_rank = 412.53;
  odd.tokens_per_second = 1234567;
  console.step(odd);
  const auto lines = lines_of(out.str());
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0],
            "     step         loss  grad norm  learning rate        ms     tokens/s   TFLOP/s    MFU  exposed    wait "
            " bubble   left");
  EXPECT_EQ(lines[1],
            "   3/2000    10.812346      2.410     1.2000e-05     512.3       15,998     0.523  41.2%     3.1%    1.2% "
            "   0.4%   3:29");
  EXPECT_EQ(lines[2],
            "1234/2000          nan      2.410     1.2000e-05     512.3    1,234,567     412.5      -     3.1%    1.2% "
            "   0.4%      -");
  EXPECT_LE(lines[0].size(), 120u);
}

TEST(Console, ANarrowTerminalLeavesColumnsOutInTheStatedOrder) {
  int width = 80;
  std::ostringstream out;
  Console console(out, [&width] { return width; });
  console.step(some_step(3));
  for (width = 79; width > 0; --width) console.step(some_step(3));
  const auto lines = lines_of(out.str());
  EXPECT_EQ(lines[0], "     step         loss  grad norm  learning rate        ms     tokens/s    MFU");
  EXPECT_EQ(lines[1], "   3/2000    10.812346      2.410     1.2000e-05     512.3       15,998  41.2%");
  // then: each column dropped prints a new header, and the last three stay
  std::vector<std::string> headers;
  for (const std::string& line : lines)
    if (line.find("step") != std::string::npos && (headers.empty() || headers.back() != line)) headers.push_back(line);
  ASSERT_EQ(headers.size(), 5u);
  EXPECT_EQ(headers[1], "     step         loss  grad norm        ms     tokens/s    MFU");
  EXPECT_EQ(headers[2], "     step         loss        ms     tokens/s    MFU");
  EXPECT_EQ(headers[3], "     step         loss        ms     tokens/s");
  EXPECT_EQ(headers[4], "     step         loss        ms");
}

TEST(Console, TheHeaderComesBackNowAndThen) {
  std::ostringstream out;
  Console console(out, nullptr);
  for (int i = 1; i <= 100; ++i) console.step(some_step(i));
  const auto lines = lines_of(out.str());
  EXPECT_EQ(std::count(lines.begin(), lines.end(), lines[0]), 3);
}

TEST(Console, WithoutATerminalThereIsNoBarAndNoControlCharacter) {
  std::ostringstream out;
  {
    Console console(out, [] { return 0; });
    console.progress(10, 100, 1.0);
    console.evaluation({.step = 10, .loss = 4.0, .samples = 1234, .seconds = 2.5});
    console.note("saved");
  }
  EXPECT_EQ(out.str(),
            "evaluation at step 10: validation loss 4.000000, perplexity 54.60, 1,234 samples in 2.5 s\nsaved\n");
}

TEST(Console, TheBarStaysBelowTheLines) {
  std::ostringstream out;
  Console console(out, [] { return 60; });
  console.progress(25, 100, 2.0);
  EXPECT_EQ(screen_after(out.str()),
            (std::vector<std::string>{"[=======>                      ]  25/100  25.0%  2:30 left"}));
  console.note("first");
  console.note("second");
  EXPECT_EQ(
      screen_after(out.str()),
      (std::vector<std::string>{"first", "second", "[=======>                      ]  25/100  25.0%  2:30 left"}));
  console.progress(100, 100, 2.0);
  console.note("done");
  EXPECT_EQ(screen_after(out.str()), (std::vector<std::string>{"first", "second", "done", ""}));
}

// A first step of many micro-batches takes minutes.
TEST(Console, ShowsHowFarAStepIs) {
  std::ostringstream out, pipe;
  Console console(out, [] { return 80; });
  console.progress(0.25, 10, 60.0, "128/512 micro-batches");
  EXPECT_EQ(screen_after(out.str()), (std::vector<std::string>{"[>" + std::string(29, ' ') +
                                                               "]  0/10  2.5%  128/512 micro-batches  9:45 left"}));
  Console quiet(
      pipe, [] { return 0; }, 0);
  quiet.progress(1.25, 10, 60.0, "128/512 micro-batches");
  quiet.progress(2, 10, 60.0);
  EXPECT_EQ(pipe.str(), "step 2: 128/512 micro-batches\n");
  std::ostringstream nothing;
  Console not_yet(nothing, nullptr);
  not_yet.progress(1.25, 10, 60.0, "128/512 micro-batches");
  EXPECT_EQ(nothing.str(), "");
}

TEST(Console, TheBarIsNeverWiderThanTheTerminal) {
  for (int width = 0; width < 200; ++width) {
    std::ostringstream out;
    Console console(out, [width] { return width; });
    console.progress(3, 1000, 3600.0);
    const auto screen = screen_after(out.str());
    EXPECT_EQ(screen.size(), 1u);
    EXPECT_LT(static_cast<int>(screen[0].size()), std::max(1, width));
    EXPECT_EQ(screen[0].empty(), width < 45) << width;
  }
}

TEST(Console, ABarIsTakenAwayAtTheEnd) {
  std::ostringstream out;
  {
    Console console(out, [] { return 80; });
    console.progress(1, 10, 1.0);
  }
  EXPECT_EQ(screen_after(out.str()), (std::vector<std::string>{""}));
}

}  // namespace
}  // namespace trivet
