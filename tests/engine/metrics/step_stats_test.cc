#include "engine/metrics/step_stats.h"

#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>
#include <random>

#include "engine/metrics/step_report.h"
#include "engine/metrics/time_table.h"

namespace trivet {
namespace {

constexpr auto compute = Category::compute, optimizer = Category::optimizer, tensor = comm_of("tensor"),
               pipeline = comm_of("pipeline"), data = comm_of("data"), host = Category::host, phase = Category::phase;

Span span(Category category, int64_t start, int64_t end) { return {{.name = "x", .category = category}, start, end}; }

// A communication that waits for its peers until `matched`.
Span comm(Category category, int64_t start, int64_t matched, int64_t end, int64_t bytes = 0) {
  return {{.name = "x", .category = category, .bytes = bytes}, start, end, matched};
}

using Rows = std::vector<std::vector<Span>>;

StepStats measure_step(const Rows& rows, int64_t start, int64_t end) { return StepMeter().measure(rows, start, end); }

// The definitions, nanosecond by nanosecond.
StepStats by_counting(const Rows& rows, int64_t start, int64_t end) {
  StepStats stats;
  stats.window = end - start;
  for (int64_t t = start; t < end; ++t) {
    bool on[7] = {}, wire[3] = {}, wait[3] = {};
    for (const auto& row : rows)
      for (const Span& s : row) {
        if (!(s.start_ns <= t && t < s.end_ns)) continue;
        const auto c = static_cast<size_t>(s.info.category);
        on[c] = true;
        if (is_comm(s.info.category)) (t < s.matched_ns ? wait : wire)[class_of(s.info.category)] = true;
      }
    const auto is = [&](Category c) { return on[static_cast<size_t>(c)]; };
    const int first_wire = wire[0] ? 0 : wire[1] ? 1 : wire[2] ? 2 : -1;
    const int first_wait = wait[0] ? 0 : wait[1] ? 1 : wait[2] ? 2 : -1;
    if (first_wire >= 0) ++stats.wire[static_cast<size_t>(first_wire)];
    if (is(compute)) ++stats.compute;
    else if (is(optimizer)) ++stats.optimizer;
    else if (first_wire >= 0) ++stats.exposed_wire[static_cast<size_t>(first_wire)];
    else if (first_wait >= 0) ++stats.exposed_wait[static_cast<size_t>(first_wait)];
    else if (is(host)) ++stats.host;
    else ++stats.idle;
  }
  return stats;
}

void expect_equal(const StepStats& a, const StepStats& b) {
  EXPECT_EQ(a.window, b.window);
  EXPECT_EQ(a.compute, b.compute);
  EXPECT_EQ(a.optimizer, b.optimizer);
  EXPECT_EQ(a.wire, b.wire);
  EXPECT_EQ(a.exposed_wire, b.exposed_wire);
  EXPECT_EQ(a.exposed_wait, b.exposed_wait);
  EXPECT_EQ(a.idle, b.idle);
  EXPECT_EQ(a.host, b.host);
}

int64_t parts(const StepStats& s) {
  return s.compute + s.optimizer + StepStats::sum(s.exposed_wire) + StepStats::sum(s.exposed_wait) + s.host + s.idle;
}

TEST(StepStats, ByHand) {
  // given: a window of 100, in which compute and optimizer leave 30..50 and 80..100 free
  const Rows rows = {
      {span(compute, 0, 30), span(compute, 50, 70), span(optimizer, 65, 80), span(phase, 0, 100)},
      {comm(tensor, 20, 25, 40, 7)},                              // wire: 5 hidden, 10 exposed
      {comm(pipeline, 0, 43, 45, 8), comm(pipeline, 80, 0, 82)},  // wait 40..43, wire 43..45, and a send
      {comm(data, 60, 62, 85, 3), comm(data, 75, 88, 90, 2)},     // wire 62..85 and 88..90, wait 85..88
      {span(host, 0, 48), span(host, 92, 95)},                    // 45..48 and 92..95
  };
  // when
  const StepStats stats = measure_step(rows, 0, 100);
  // then
  EXPECT_EQ(stats.window, 100);
  EXPECT_EQ(stats.compute, 50);
  EXPECT_EQ(stats.optimizer, 10);
  EXPECT_EQ(stats.wire, (ByClass{15, 4, 23}));  // 80..82 is the pipeline's
  EXPECT_EQ(stats.exposed_wire, (ByClass{10, 4, 5}));
  EXPECT_EQ(stats.exposed_wait, (ByClass{0, 3, 3}));
  EXPECT_EQ(stats.host, 6);
  EXPECT_EQ(stats.idle, 9);
  EXPECT_EQ(parts(stats), stats.window);
  EXPECT_EQ(stats.bytes, (ByClass{7, 8, 5}));
  EXPECT_DOUBLE_EQ(stats.bubble_fraction(), 0.12);
  EXPECT_DOUBLE_EQ(stats.overlap_ratio().value(), 23.0 / 42);
  EXPECT_DOUBLE_EQ(stats.overlap_ratio(class_of(comm_of("data"))).value(), 18.0 / 23);
}

TEST(StepStats, SpansAreCutToTheWindow) {
  const Rows rows = {{span(compute, -50, 10), span(compute, 90, 500), span(compute, 20, 20), span(compute, 40, 30)},
                     {span(tensor, 100, 200), span(data, -20, 0)}};
  const StepStats stats = measure_step(rows, 0, 100);
  EXPECT_EQ(stats.compute, 20);
  EXPECT_EQ(StepStats::sum(stats.wire), 0);
  EXPECT_EQ(stats.idle, 80);
  EXPECT_EQ(stats.overlap_ratio(), std::nullopt);
}

TEST(StepStats, NothingHappened) {
  const StepStats stats = measure_step({}, 5, 5);
  EXPECT_EQ(stats.window, 0);
  EXPECT_EQ(stats.bubble_fraction(), 0);
  expect_equal(measure_step(Rows(3), 0, 10), by_counting({}, 0, 10));
}

TEST(StepStats, AgreesWithTheDefinitionOnRandomSpans) {
  std::mt19937 random(7);
  StepMeter meter;
  for (int i = 0; i < 200; ++i) {
    Rows rows(1 + random() % 4);
    for (auto& row : rows) {
      for (int n = static_cast<int>(random() % 12); n > 0; --n) {
        const int64_t start = static_cast<int64_t>(random() % 140) - 20;
        const int64_t end = start + static_cast<int64_t>(random() % 40) - 2;
        const auto category = static_cast<Category>(random() % 7);
        const int64_t matched =
            random() % 3 == 0 ? 0
                              : std::clamp(start + static_cast<int64_t>(random() % 30), start, std::max(start, end));
        row.push_back(is_comm(category) ? comm(category, start, matched, end) : span(category, start, end));
      }
    }
    const StepStats stats = meter.measure(rows, 0, 100);
    expect_equal(stats, by_counting(rows, 0, 100));
    EXPECT_EQ(parts(stats), stats.window);
  }
}

TEST(StepStats, AddUpOverRanks) {
  StepStats sum = measure_step(Rows{{span(compute, 0, 50), span(tensor, 40, 60)}}, 0, 100);
  sum += measure_step(Rows{{span(compute, 0, 100), span(tensor, 0, 30)}}, 0, 100);
  EXPECT_EQ(sum.window, 200);
  EXPECT_DOUBLE_EQ(sum.of_window(sum.exposed_wire[0]), 0.05);
  EXPECT_DOUBLE_EQ(sum.overlap_ratio().value(), 0.8);
}

TEST(TimeTable, MeansOfStepsAfterTheFirst) {
  TimeTable table(2);
  const Rows rows = {{span(compute, 0, 60'000'000), comm(tensor, 50'000'000, 55'000'000, 80'000'000, 2048)},
                     {span(host, 80'000'000, 90'000'000)}};
  StepStats both = measure_step(rows, 0, 100'000'000);
  both += both;
  table.add(measure_step({}, 0, 5'000'000'000));
  for (int i = 0; i < 3; ++i) table.add(both);
  EXPECT_EQ(render(table.describe()),
            "time of a step, the mean of 3 steps and 2 ranks\n"
            "                    ms   share\n"
            "  compute        60.00   60.0%\n"
            "  optimizer       0.00    0.0%\n"
            "  exposed wire   20.00   20.0%\n"
            "  exposed wait    0.00    0.0%\n"
            "  host           10.00   10.0%\n"
            "  idle           10.00   10.0%\n"
            "  step          100.00  100.0%\n"
            "communication of a step\n"
            "                   bytes  wire ms  hidden ms  exposed ms  wait ms  overlap\n"
            "  tensor        2.00 KiB    25.00       5.00       20.00     0.00    20.0%\n");
}

TEST(TimeTable, ARowARank) {
  TimeTable table(2);
  const StepStats first = measure_step(
      {{span(compute, 0, 60'000'000)}, {comm(data, 60'000'000, 70'000'000, 80'000'000, 8)}}, 0, 100'000'000);
  const StepStats second = measure_step({{span(compute, 0, 70'000'000)}}, 0, 100'000'000);
  StepStats both = first;
  both += second;
  table.add({}, both);  // does not count
  for (int i = 0; i < 3; ++i) table.add(both, first);
  StepStats three = second;
  three += second, three += second;
  EXPECT_EQ(table.own().compute, 180'000'000);
  const std::vector<TextBlock> blocks =
      table.describe(std::vector<RankTime>{{"rank 0", table.own()}, {"rank 1", three}});
  EXPECT_EQ(render({blocks.back()}),
            "milliseconds of a step, by rank\n"
            "          compute  optimizer  data wire   wait  host   idle    step\n"
            "  rank 0    60.00       0.00      10.00  10.00  0.00  20.00  100.00\n"
            "  rank 1    70.00       0.00       0.00   0.00  0.00  30.00  100.00\n");
  EXPECT_EQ(table.describe(std::vector<RankTime>(33)).size(), 2u) << "too many to read";
}

TEST(StepReport, Speed) {
  StepReport report;
  report_speed(report, {.tokens = 1000, .flops = 4e12, .ranks = 2, .peak_tflops = 2}, 0.5,
               measure_step(Rows{{span(compute, 0, 75), comm(pipeline, 75, 80, 85)}}, 0, 100));
  EXPECT_DOUBLE_EQ(report.tokens_per_second, 2000);
  EXPECT_DOUBLE_EQ(report.model_tflops_per_rank, 4);
  EXPECT_DOUBLE_EQ(report.mfu, 2);
  EXPECT_EQ(report.stats.compute, 75);
  EXPECT_EQ(report.stats.window, 100);
  EXPECT_DOUBLE_EQ(report.bubble_fraction, 0.2);

  report_speed(report, {.tokens = 1000, .flops = 4e12}, 0.5, {});
  EXPECT_TRUE(std::isnan(report.mfu)) << "no peak, no MFU";
}

TEST(RunningSpeed, ForgetsTheFirstStepOnceThereIsAnother) {
  RunningSpeed speed;
  EXPECT_TRUE(std::isnan(speed.recent_step_seconds()));
  speed.add(100);
  EXPECT_EQ(speed.recent_step_seconds(), 100);
  speed.add(1);
  EXPECT_EQ(speed.recent_step_seconds(), 1);
  speed.add(3);
  EXPECT_GT(speed.recent_step_seconds(), 1);
  EXPECT_LT(speed.recent_step_seconds(), 3);
}

}  // namespace
}  // namespace trivet
