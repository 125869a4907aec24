// Successive halving, on runs whose times are made up.
#include "tools/study/halving.h"

#include <cmath>
#include <set>

#include "tests/tools/study/study_text.h"
#include "tools/study/runner.h"
#include "tools/study/summary.h"

namespace trivet {
namespace {

const std::string kHalving = R"(name: halving
base: run.yaml
ranks: 2
steps: 4
warmup_steps: 1
design: halving
repeats: 20
factors:
  - key: parallel.bucket_size
    levels: [1000, 2000, 3000, 4000, 5000, 6000, 7000, 8000]
)";

class Halving : public testing::Test {
 protected:
  // Runs the study to its end, or until `most` runs were made; the step time of a point is `seconds` of it, with a
  // scatter of one in a thousand.
  StudyEnd run(const std::vector<double>& seconds, int64_t most = 10'000) {
    rows_ = read_results(results_path(study_));
    RunnerOptions options{.most_runs = most, .now_seconds = [] { return 0.0; }, .stop_asked = [] { return false; }};
    return run_study(
        study_, plan_, rows_,
        [&](const Point& point, const PlannedRun& run) {
          const double scatter = 1 + 1e-3 * std::sin(static_cast<double>(7 * run.repeat + 3 * ++made_));
          return std::optional(row_of(point, run.repeat, seconds[run.point] * scatter));
        },
        options);
  }
  // Rounds in which a point has run.
  int64_t rounds_of(size_t point) const {
    std::set<int64_t> rounds;
    for (const RunRow& row : rows_)
      if (row.point == plan_.points[point].id) rounds.insert(row.repeat);
    return static_cast<int64_t>(rounds.size());
  }

  StudyFolder folder_;
  Study study_ = folder_.study(kHalving);
  Plan plan_ = make_plan(study_);
  std::vector<RunRow> rows_;
  int64_t made_ = 0;
};

TEST_F(Halving, DropsTheWorseHalfWhileRoundsDouble) {
  ASSERT_EQ(plan_.points.size(), 8u);
  EXPECT_EQ(run({1.5, 0.9, 1.1, 1.2, 1.3, 1.4, 1.6, 1.7}), StudyEnd::complete);
  EXPECT_EQ(rounds_of(0), 20) << "the baseline, which the others are compared with";
  EXPECT_EQ(rounds_of(1), 20);
  EXPECT_EQ(rounds_of(2), 20);
  EXPECT_EQ(rounds_of(3), 20);
  EXPECT_EQ(rounds_of(4), 10);
  for (const size_t dropped_first : {5u, 6u, 7u}) EXPECT_EQ(rounds_of(dropped_first), 5) << dropped_first;
  EXPECT_EQ(halving_text(halving_rungs(study_, plan_, rows_)),
            "halving: 8 points up to round 5, 5 points up to round 10, 4 points up to round 20");
}

TEST_F(Halving, NeverDropsAPointThatIsTied) {
  EXPECT_EQ(run(std::vector<double>(8, 1.0)), StudyEnd::complete);
  for (size_t point = 0; point < 8; ++point) EXPECT_EQ(rounds_of(point), 20) << point;
}

TEST_F(Halving, TakesMoreOfAMetricForBetterWhereItIs) {
  study_.metric = "tokens_per_second";
  rows_ = read_results(results_path(study_));
  const RunPoint fast = [&](const Point& point, const PlannedRun& run) {
    RunRow row = row_of(point, run.repeat, 1);
    row.metrics["tokens_per_second"] =
        static_cast<double>(run.point + 1) * (1 + 1e-4 * static_cast<double>(++made_ % 3));
    return std::optional(row);
  };
  run_study(study_, plan_, rows_, fast, {.now_seconds = [] { return 0.0; }, .stop_asked = [] { return false; }});
  EXPECT_EQ(rounds_of(7), 20);
  EXPECT_EQ(rounds_of(1), 5);
}

TEST_F(Halving, GoesOnWhereItWasInterrupted) {
  const std::vector<double> seconds{1.5, 0.9, 1.1, 1.2, 1.3, 1.4, 1.6, 1.7};
  EXPECT_EQ(run(seconds, 20), StudyEnd::limit);
  EXPECT_EQ(halving_rungs(study_, plan_, rows_).size(), 1u);
  EXPECT_EQ(run(seconds), StudyEnd::complete);
  EXPECT_EQ(rounds_of(1), 20);
  EXPECT_EQ(rounds_of(7), 5);
}

TEST_F(Halving, SparesAFailedPoint) {
  rows_ = read_results(results_path(study_));
  const RunPoint failing = [&](const Point& point, const PlannedRun& run) {
    RunRow row = row_of(point, run.repeat, 1 + 1e-4 * static_cast<double>(++made_ % 3));
    if (run.point == 4) row.outcome = RunEnd::failed;
    return std::optional(row);
  };
  EXPECT_EQ(
      run_study(study_, plan_, rows_, failing, {.now_seconds = [] { return 0.0; }, .stop_asked = [] { return false; }}),
      StudyEnd::complete);
  EXPECT_EQ(rounds_of(4), 1);
  EXPECT_EQ(rounds_of(5), 20);
}

TEST(HalvingFile, NeedsMoreRoundsThanAVerdict) {
  EXPECT_EQ(message_of([] { parse_study(with(kHalving, "repeats: 20", "repeats: 5"), "study.yaml"); }),
            "study.yaml: repeats: found 5, expected a number above 5 for design halving: all points have 5 rounds, and "
            "the best of them the others");
}

}  // namespace
}  // namespace trivet
