// Statistics of real steps against a literal implementation of their definitions.
#include <algorithm>
#include <gtest/gtest.h>

#include "engine/config/validate.h"
#include "engine/metrics/step_stats.h"
#include "parallel/comm/world.h"
#include "tests/support/training.h"

namespace trivet::test {
namespace {

// No span begins or ends between two neighbouring times: a search over all spans finds those active in between.
StepStats by_definition(const TracedStep& step) {
  std::vector<int64_t> times = {step.start_ns, step.end_ns};
  std::vector<Span> spans;
  for (const auto& row : step.rows)
    for (const Span& span : row) {
      spans.push_back(span);
      for (const int64_t t : {span.start_ns, span.wire_start_ns, span.wire_end_ns, span.end_ns})
        if (t > step.start_ns && t < step.end_ns) times.push_back(t);
    }
  std::sort(times.begin(), times.end());
  StepStats stats;
  stats.window = step.end_ns - step.start_ns;
  for (size_t i = 0; i + 1 < times.size(); ++i) {
    const int64_t begin = times[i], length = times[i + 1] - begin;
    bool compute = false, optimizer = false, host = false, wire[4] = {}, wait[4] = {};
    for (const Span& span : spans) {
      const bool inside = span.start_ns <= begin && begin < span.end_ns;
      switch (span.info.category) {
        case Category::compute: compute |= inside; break;
        case Category::optimizer: optimizer |= inside; break;
        case Category::host: host |= inside; break;
        case Category::phase: break;
        default: {
          EXPECT_NE(span.wire_start_ns, 0) << "threads tell";
          const size_t k = class_of(span.info.category);
          wire[k] |= span.wire_start_ns <= begin && begin < span.wire_end_ns;
          wait[k] |= inside && begin < span.wire_start_ns;
          host |= inside && begin >= span.wire_end_ns;
        }
      }
    }
    const auto first = [](const bool* on) -> size_t { return static_cast<size_t>(std::find(on, on + 4, true) - on); };
    for (size_t k = 0; k < 4; ++k) stats.wire[k] += wire[k] ? length : 0;
    if (compute) stats.compute += length;
    else if (optimizer) stats.optimizer += length;
    else if (first(wire) < 4) stats.exposed[first(wire)] += length;
    else if (first(wait) < 4) stats.wait[first(wait)] += length;
    else (host ? stats.host : stats.idle) += length;
  }
  return stats;
}

class RealSteps : public testing::TestWithParam<LayoutCase> {};

TEST_P(RealSteps, EveryNanosecondCountsOnce) {
  // given
  const Cut& c = GetParam().cut;
  Config config = config_of(GetParam());
  config.comm.link_latency_us = 50;
  // when
  const std::vector<TracedStep> steps = traced_steps(config, c.ranks());
  // then
  const Link link{.latency_us = 50};
  StepMeter meter({link, link, link, link});
  for (const TracedStep& step : steps) {
    const StepStats stats = meter.measure(step.rows, step.start_ns, step.end_ns), expected = by_definition(step);
    const int64_t parts = stats.compute + stats.optimizer + StepStats::sum(stats.exposed) + StepStats::sum(stats.wait) +
                          stats.host + stats.idle;
    EXPECT_NEAR(static_cast<double>(parts), static_cast<double>(stats.window),
                1e-3 * static_cast<double>(stats.window));
    EXPECT_EQ(stats.compute, expected.compute);
    EXPECT_EQ(stats.optimizer, expected.optimizer);
    EXPECT_EQ(stats.wire, expected.wire);
    EXPECT_EQ(stats.exposed, expected.exposed);
    EXPECT_EQ(stats.wait, expected.wait);
    EXPECT_EQ(stats.host, expected.host);
    EXPECT_EQ(stats.idle, expected.idle);
    EXPECT_GT(stats.compute, 0);
    EXPECT_GT(stats.optimizer, 0);
    // Each class with peers, and no other, was on the wire for at least one latency.
    const int sizes[] = {c.t, c.c, c.p, c.d * c.c};
    for (size_t k = 0; k < kCommClasses.size(); ++k) {
      EXPECT_EQ(stats.wire_bytes[k] > 0, sizes[k] > 1) << kCommClasses[k];
      EXPECT_EQ(stats.wire[k] + stats.wait[k] > 0, sizes[k] > 1) << kCommClasses[k];
      EXPECT_GE(stats.wire[k], stats.floor[k]) << kCommClasses[k];
    }
    EXPECT_GE(StepStats::sum(stats.wire), c.ranks() > 1 ? 50'000 : 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, RealSteps,
                         testing::Values(LayoutCase{"alone"}, LayoutCase{"tensor", {.t = 2}},
                                         LayoutCase{"pipeline", {.p = 2}}, LayoutCase{"data", {.d = 2}}, LayoutCase{"context", {.c = 2}},
                                         LayoutCase{"all",
                                                    {.t = 2, .p = 2, .d = 2, .schedule = "interleaved", .v = 2}}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace trivet::test
