#include "engine/metrics/step_stats.h"

#include <cmath>
#include <gtest/gtest.h>
#include <random>

#include "engine/metrics/step_report.h"

namespace trivet {
namespace {

constexpr auto compute = Category::compute, optimizer = Category::optimizer, tensor = Category::comm_tensor,
               pipeline = Category::comm_pipeline, data = Category::comm_data, host = Category::host,
               phase = Category::phase;

Span span(Category category, int64_t start, int64_t end) { return {{.name = "x", .category = category}, start, end}; }

using Rows = std::vector<std::vector<Span>>;

StepStats measure_step(const Rows& rows, int64_t start, int64_t end) { return StepMeter().measure(rows, start, end); }

// The definitions, nanosecond by nanosecond.
StepStats by_counting(const Rows& rows, int64_t start, int64_t end) {
  StepStats stats;
  stats.window = end - start;
  for (int64_t t = start; t < end; ++t) {
    bool on[7] = {};
    for (const auto& row : rows)
      for (const Span& s : row)
        if (s.start_ns <= t && t < s.end_ns) on[static_cast<size_t>(s.info.category)] = true;
    const auto is = [&](Category c) { return on[static_cast<size_t>(c)]; };
    const bool work = is(compute) || is(optimizer);
    stats.compute += work;
    stats.optimizer += is(optimizer);
    const int k = is(tensor) ? 0 : is(pipeline) ? 1 : is(data) ? 2 : -1;
    if (k >= 0) {
      stats.comm[static_cast<size_t>(k)] += 1;
      stats.exposed[static_cast<size_t>(k)] += !work;
    }
    stats.idle += !work && k < 0;
    stats.host += !work && k < 0 && is(host);
  }
  return stats;
}

void expect_equal(const StepStats& a, const StepStats& b) {
  EXPECT_EQ(a.window, b.window);
  EXPECT_EQ(a.compute, b.compute);
  EXPECT_EQ(a.optimizer, b.optimizer);
  EXPECT_EQ(a.comm, b.comm);
  EXPECT_EQ(a.exposed, b.exposed);
  EXPECT_EQ(a.idle, b.idle);
  EXPECT_EQ(a.host, b.host);
}

TEST(StepStats, ByHand) {
  // given: a window of 100, in which compute leaves 30..50 and 80..100 free
  const Rows rows = {
      {span(compute, 0, 30), span(compute, 50, 70), span(optimizer, 70, 80), span(phase, 0, 100)},
      {span(tensor, 20, 40)},                    // 10 hidden, 10 exposed
      {span(pipeline, 35, 45)},                  // 5 belong to tensor, 5 exposed
      {span(data, 60, 85), span(data, 75, 90)},  // 30 in all, of which 10 exposed
      {span(host, 0, 48), span(host, 92, 95)},   // 3 + 3 of them explain idle time
  };
  // when
  const StepStats stats = measure_step(rows, 0, 100);
  // then
  EXPECT_EQ(stats.window, 100);
  EXPECT_EQ(stats.compute, 60);
  EXPECT_EQ(stats.optimizer, 10);
  EXPECT_EQ(stats.comm, (std::array<int64_t, 3>{20, 5, 30}));
  EXPECT_EQ(stats.exposed, (std::array<int64_t, 3>{10, 5, 10}));
  EXPECT_EQ(stats.idle, 15);
  EXPECT_EQ(stats.host, 6);
  EXPECT_EQ(stats.compute + stats.total_exposed() + stats.idle, stats.window);
  EXPECT_DOUBLE_EQ(stats.exposed_fraction(), 0.25);
  EXPECT_DOUBLE_EQ(stats.exposed_fraction(CommClass::data), 0.1);
  EXPECT_DOUBLE_EQ(stats.bubble_fraction(), 0.2);
  EXPECT_DOUBLE_EQ(stats.overlap_ratio().value(), 30.0 / 55);
}

TEST(StepStats, SpansAreCutToTheWindow) {
  const Rows rows = {{span(compute, -50, 10), span(compute, 90, 500), span(compute, 20, 20), span(compute, 40, 30)},
                     {span(tensor, 100, 200), span(data, -20, 0)}};
  const StepStats stats = measure_step(rows, 0, 100);
  EXPECT_EQ(stats.compute, 20);
  EXPECT_EQ(stats.total_comm(), 0);
  EXPECT_EQ(stats.idle, 80);
  EXPECT_EQ(stats.overlap_ratio(), std::nullopt);
}

TEST(StepStats, NothingHappened) {
  const StepStats stats = measure_step({}, 5, 5);
  EXPECT_EQ(stats.window, 0);
  EXPECT_EQ(stats.exposed_fraction(), 0);
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
        row.push_back(
            span(static_cast<Category>(random() % 7), start, start + static_cast<int64_t>(random() % 40) - 2));
      }
    }
    const StepStats stats = meter.measure(rows, 0, 100);
    expect_equal(stats, by_counting(rows, 0, 100));
    EXPECT_EQ(stats.compute + stats.total_exposed() + stats.idle, stats.window);
  }
}

TEST(StepStats, AddUpOverRanks) {
  StepStats sum = measure_step(Rows{{span(compute, 0, 50), span(tensor, 40, 60)}}, 0, 100);
  sum += measure_step(Rows{{span(compute, 0, 100), span(tensor, 0, 30)}}, 0, 100);
  EXPECT_EQ(sum.window, 200);
  EXPECT_DOUBLE_EQ(sum.exposed_fraction(), 0.05);
  EXPECT_DOUBLE_EQ(sum.overlap_ratio().value(), 0.8);
}

TEST(StepReport, Speed) {
  StepReport report;
  report_speed(report, {.samples = 8, .tokens = 1000, .flops = 4e12, .ranks = 2, .peak_tflops = 2}, 0.5,
               measure_step(Rows{{span(compute, 0, 75), span(data, 75, 85)}}, 0, 100));
  EXPECT_DOUBLE_EQ(report.tokens_per_second, 2000);
  EXPECT_DOUBLE_EQ(report.model_tflops_per_rank, 4);
  EXPECT_DOUBLE_EQ(report.mfu, 2);
  EXPECT_DOUBLE_EQ(report.exposed_comm_fraction, 0.1);
  EXPECT_DOUBLE_EQ(report.exposed_data_fraction, 0.1);
  EXPECT_DOUBLE_EQ(report.exposed_tensor_fraction, 0);
  EXPECT_DOUBLE_EQ(report.bubble_fraction, 0.15);
  EXPECT_DOUBLE_EQ(report.overlap_ratio, 0);

  report_speed(report, {.samples = 8, .tokens = 1000, .flops = 4e12}, 0.5, {});
  EXPECT_TRUE(std::isnan(report.mfu)) << "no peak, no MFU";
  EXPECT_TRUE(std::isnan(report.overlap_ratio));
}

TEST(RunningSpeed, ForgetsTheFirstStepsOnceThereAreOthers) {
  RunningSpeed speed(2);
  EXPECT_TRUE(std::isnan(speed.mean_step_seconds()));
  speed.add(100);
  EXPECT_EQ(speed.mean_step_seconds(), 100);
  speed.add(50);
  EXPECT_EQ(speed.mean_step_seconds(), 75);
  speed.add(1);
  speed.add(3);
  EXPECT_EQ(speed.mean_step_seconds(), 2);
  EXPECT_GT(speed.recent_step_seconds(), 1);
  EXPECT_LT(speed.recent_step_seconds(), 3);
  EXPECT_EQ(speed.steps(), 4);
}

}  // namespace
}  // namespace trivet
