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

// A communication span that waits for its peers until `wire`, then is on the wire until `until` (-1: the span's end).
// `wire` 0: its transport does not report it.
Span comm(Category category, int64_t start, int64_t wire, int64_t end, int64_t bytes = 0, int64_t until = -1) {
  return {{.name = "x", .category = category, .cost = {.bytes = bytes, .hops = bytes > 0 ? 1 : 0, .queues = true}},
          start,
          end,
          wire,
          wire == 0    ? 0
          : until >= 0 ? until
                       : end};
}

using Rows = std::vector<std::vector<Span>>;

StepStats measure_step(const Rows& rows, int64_t start, int64_t end) { return StepMeter().measure(rows, start, end); }

// Counts by the definitions, nanosecond by nanosecond.
StepStats by_counting(const Rows& rows, int64_t start, int64_t end) {
  StepStats stats;
  stats.window = end - start;
  for (int64_t t = start; t < end; ++t) {
    bool on[4] = {}, wire[3] = {}, wait[3] = {};
    for (const auto& row : rows)
      for (const Span& s : row) {
        const bool inside = s.start_ns <= t && t < s.end_ns;
        if (!is_comm(s.info.category)) {
          on[static_cast<size_t>(s.info.category)] |= inside;
          continue;
        }
        const size_t k = class_of(s.info.category);
        const bool told = s.wire_start_ns != 0;
        if (told ? s.wire_start_ns <= t && t < s.wire_end_ns : inside) wire[k] = true;
        else if (inside && t < s.wire_start_ns) wait[k] = true;
        else if (inside) on[static_cast<size_t>(host)] = true;
      }
    const auto is = [&](Category c) { return on[static_cast<size_t>(c)]; };
    const int first_wire = wire[0] ? 0 : wire[1] ? 1 : wire[2] ? 2 : -1;
    const int first_wait = wait[0] ? 0 : wait[1] ? 1 : wait[2] ? 2 : -1;
    for (size_t k = 0; k < 3; ++k) {
      stats.wire[k] += wire[k];
      stats.hidden[k] += wire[k] && (is(compute) || is(optimizer));
    }
    stats.any_wire += first_wire >= 0;
    if (is(compute)) ++stats.compute;
    else if (is(optimizer)) ++stats.optimizer;
    else if (first_wire >= 0) ++stats.exposed[static_cast<size_t>(first_wire)];
    else if (first_wait >= 0) ++stats.wait[static_cast<size_t>(first_wait)];
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
  EXPECT_EQ(a.hidden, b.hidden);
  EXPECT_EQ(a.any_wire, b.any_wire);
  EXPECT_EQ(a.exposed, b.exposed);
  EXPECT_EQ(a.wait, b.wait);
  EXPECT_EQ(a.idle, b.idle);
  EXPECT_EQ(a.host, b.host);
}

int64_t parts(const StepStats& s) {
  return s.compute + s.optimizer + StepStats::sum(s.exposed) + StepStats::sum(s.wait) + s.host + s.idle;
}

TEST(StepStats, ByHand) {
  // given: a window of 100, in which compute and optimizer leave 30..50 and 80..100 free
  const Rows rows = {
      {span(compute, 0, 30), span(compute, 50, 70), span(optimizer, 65, 80), span(phase, 0, 100)},
      {comm(tensor, 20, 25, 40, 7)},                                   // wire: 5 hidden, 10 exposed
      {comm(pipeline, 0, 43, 45, 8), comm(pipeline, 80, 0, 82)},       // wait 40..43, wire 43..45; one has no wire time
      {comm(data, 60, 62, 85, 3), comm(data, 75, 88, 90, 2)},          // wire 62..85 and 88..90, wait 85..88
      {comm(data, 48, 46, 50, 1, 47), comm(data, 95, 95, 97, 0, 95)},  // on the wire before the call; a buffered send
      {span(host, 0, 48), span(host, 92, 95)},                         // 45..48 and 92..95, in addition to the copies
  };
  // when
  const StepStats stats = measure_step(rows, 0, 100);
  // then
  EXPECT_EQ(stats.window, 100);
  EXPECT_EQ(stats.compute, 50);
  EXPECT_EQ(stats.optimizer, 10);
  EXPECT_EQ(stats.wire, (ByClass{15, 0, 4, 26}));
  EXPECT_EQ(stats.hidden, (ByClass{5, 0, 0, 18}));
  EXPECT_EQ(stats.any_wire, 43) << "80..82 once";
  EXPECT_EQ(stats.exposed, (ByClass{10, 0, 4, 6})) << "80..82 is the pipeline's";
  EXPECT_EQ(stats.wait, (ByClass{0, 0, 3, 3}));
  EXPECT_EQ(stats.host, 9);
  EXPECT_EQ(stats.idle, 5);
  EXPECT_EQ(parts(stats), stats.window);
  EXPECT_EQ(stats.wire_bytes, (ByClass{7, 0, 8, 6}));
  EXPECT_DOUBLE_EQ(stats.bubble_fraction(), 0.08);
  EXPECT_DOUBLE_EQ(stats.overlap_ratio().value(), 23.0 / 43);
  EXPECT_DOUBLE_EQ(stats.overlap_ratio(class_of(comm_of("data"))).value(), 18.0 / 26);
}

// One nanosecond per byte, and a latency of 10.
TEST(StepStats, FloorsOfCallsOnAKnownLink) {
  const Link link{.latency_us = 0.01, .gbps = 8};
  const auto floors = [&](const Rows& rows) { return StepMeter({link, {}, {}, link}).measure(rows, 1000, 2000).floor; };
  EXPECT_EQ(floors({{comm(data, 1000, 1100, 1180, 50)}}), (ByClass{0, 0, 0, 60})) << "whatever it took";
  EXPECT_EQ(floors({{comm(pipeline, 1000, 1100, 1180, 50)}}), (ByClass{})) << "the link is not known";
  EXPECT_EQ(floors({{comm(data, 1000, 1100, 1180, 50)}, {comm(data, 1000, 1100, 1250, 50)}}), (ByClass{0, 0, 0, 110}))
      << "one behind the other, the latency of the first beside the second";
  EXPECT_EQ(floors({{comm(data, 1000, 1100, 1180, 50)}, {comm(data, 1000, 1300, 1350, 20)}}), (ByClass{0, 0, 0, 90}));
  EXPECT_EQ(floors({{comm(tensor, 1000, 1980, 2100, 50), comm(tensor, 900, 990, 1050, 20)}}), (ByClass{40, 0, 0, 0}))
      << "cut to the window, as the wire is";
  Span transfer = comm(tensor, 1000, 1100, 1160, 50);
  transfer.info.cost.queues = false;
  EXPECT_EQ(floors({{transfer}, {transfer}}), (ByClass{60, 0, 0, 0})) << "from two ranks at once";
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
  EXPECT_TRUE(std::isnan(stats.bubble_fraction()));
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
        const int64_t matched = random() % 3 == 0 ? 0 : start + static_cast<int64_t>(random() % 30) - 5;
        const int64_t until = random() % 3 == 0 ? std::max(matched, end - static_cast<int64_t>(random() % 20)) : end;
        row.push_back(is_comm(category) ? comm(category, start, matched, end, 0, std::max(matched, until))
                                        : span(category, start, end));
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
  EXPECT_DOUBLE_EQ(sum.of_window(sum.exposed[0]), 0.05);
  EXPECT_DOUBLE_EQ(sum.overlap_ratio().value(), 0.8);
}

TEST(TimeTable, MeansOfStepsAfterTheFirst) {
  TimeTable table(2, {Link{.gbps = 1}});
  const Rows rows = {{span(compute, 0, 60'000'000), comm(tensor, 50'000'000, 55'000'000, 80'000'000, 3'000'000)},
                     {span(host, 80'000'000, 90'000'000)}};
  StepStats both = StepMeter({Link{.gbps = 1}}).measure(rows, 0, 100'000'000);
  both += both;
  table.add(measure_step({}, 0, 5'000'000'000));
  for (int i = 0; i < 3; ++i) table.add(both);
  EXPECT_EQ(render(table.describe()),
            "time of a step, the mean of 3 steps (the first is left out) and 2 ranks\n"
            "                 ms   share\n"
            "  compute     60.00   60.0%\n"
            "  optimizer    0.00    0.0%\n"
            "  exposed     20.00   20.0%\n"
            "  wait         0.00    0.0%\n"
            "  host        10.00   10.0%\n"
            "  idle        10.00   10.0%\n"
            "  step       100.00  100.0%\n"
            "communication of a step\n"
            "                bytes  floor ms  wire ms  hidden ms  exposed ms  shared ms  wait ms  overlap\n"
            "  tensor     2.86 MiB     24.00    25.00       5.00       20.00       0.00     0.00    20.0%\n");
}

TEST(TimeTable, ARowARank) {
  TimeTable table(2);
  const StepStats first = measure_step(
      {{span(compute, 0, 60'000'000)}, {comm(data, 60'000'000, 70'000'000, 80'000'000, 8)}}, 0, 100'000'000);
  const StepStats second = measure_step({{span(compute, 0, 70'000'000)}}, 0, 100'000'000);
  StepStats both = first;
  both += second;
  table.add({}, both);  // the first step does not count
  for (int i = 0; i < 3; ++i) table.add(both, first);
  StepStats three = second;
  three += second, three += second;
  EXPECT_EQ(table.own().compute, 180'000'000);
  const std::vector<TextBlock> blocks =
      table.describe(std::vector<RankTime>{{"rank 0", table.own()}, {"rank 1", three}});
  EXPECT_EQ(render({blocks.back()}),
            "milliseconds of a step, by rank\n"
            "          compute  optimizer  data exposed  data wait  host   idle    step\n"
            "  rank 0    60.00       0.00         10.00      10.00  0.00  20.00  100.00\n"
            "  rank 1    70.00       0.00          0.00       0.00  0.00  30.00  100.00\n");
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
  EXPECT_EQ(speed.recent_step_seconds(), 2);
}

TEST(RunningSpeed, IsTheMedianOfTheLastSteps) {
  RunningSpeed speed;
  for (int step = 0; step < 100; ++step) speed.add(1);
  for (int step = 0; step < 16; ++step) speed.add(6);  // 16 of the last 31
  speed.add(1000);
  EXPECT_EQ(speed.recent_step_seconds(), 6);
}

}  // namespace
}  // namespace trivet
