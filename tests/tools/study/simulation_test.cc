// Studies of simulated machines with a known ground truth: what summarize() concludes, as shares of many studies.
// Seeds are fixed, so the shares are too.
#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <functional>
#include <numbers>
#include <random>

#include "tests/tools/study/study_text.h"
#include "tools/study/summary.h"

namespace trivet {
namespace {

// A run's time relative to its time without noise: steady drift, noise that outlasts a run (AR(1)), noise of each run,
// and an occasional run that something else disturbs.
class Machine {
 public:
  explicit Machine(uint64_t seed) : random_(seed) { slow_ = normal() * kSlow; }

  double next() {
    slow_ = kMemory * slow_ + std::sqrt(1 - kMemory * kMemory) * kSlow * normal();
    drift_ += kDrift;
    const double outlier = uniform() < kOutliers ? 0.1 * uniform() : 0;
    return std::exp(drift_ + slow_ + kNoise * normal() + outlier);
  }

 private:
  static constexpr double kDrift = 0.005, kSlow = 0.02, kMemory = 0.9, kNoise = 0.01, kOutliers = 0.04;
  double uniform() { return (static_cast<double>(random_() >> 11) + 0.5) / 9007199254740992.0; }
  double normal() { return std::sqrt(-2 * std::log(uniform())) * std::cos(2 * std::numbers::pi * uniform()); }

  std::mt19937_64 random_;
  double slow_ = 0, drift_ = 0;
};

// Ten points, the first of which is the baseline.
class SimulatedStudies : public testing::Test {
 protected:
  static constexpr int kStudies = 400;

  static std::vector<RunRow> rows_of(const Study& study, const Plan& plan, const std::vector<double>& ratios,
                                     uint64_t seed) {
    Machine machine(seed);
    std::vector<RunRow> rows;
    for (int64_t rounds = 0; rounds < rounds_wanted(study, plan, rows);) {
      ++rounds;
      for (const PlannedRun& run : rest_of_round(study, plan, rows, rounds)) {
        rows.push_back(row_of(plan.points[run.point], run.repeat, ratios[run.point] * machine.next()));
        rows.back().metrics.erase("loss");
      }
    }
    return rows;
  }
  // The summaries of many studies that differ in their seeds.
  std::vector<Summary> studies(const std::vector<double>& ratios, uint64_t first_seed = 1) {
    std::vector<Summary> all;
    for (int n = 0; n < kStudies; ++n) {
      study_.seed = static_cast<int64_t>(first_seed) + n;
      all.push_back(summarize(study_, plan_, rows_of(study_, plan_, ratios, static_cast<uint64_t>(study_.seed))));
    }
    return all;
  }
  static double share(const std::vector<Summary>& all, const std::function<bool(const Summary&)>& of) {
    return static_cast<double>(std::ranges::count_if(all, of)) / static_cast<double>(all.size());
  }
  // The share of intervals that cover the true ratio.
  double coverage(const std::vector<Summary>& all, const std::vector<double>& ratios) const {
    double covered = 0, intervals = 0;
    for (const Summary& summary : all)
      for (size_t i = 1; i < ratios.size(); ++i, ++intervals) {
        const Estimate& ratio = *summary.points[i].ratio(study_.metric);
        covered += ratio.low <= ratios[i] && ratios[i] <= ratio.high;
      }
    return covered / intervals;
  }
  static double mean_effect(const std::vector<Summary>& all) {
    double sum = 0;
    for (const Summary& summary : all) sum += summary.resolution->effect();
    return sum / static_cast<double>(all.size());
  }

  StudyFolder folder_;
  Study study_ = folder_.study(R"(name: simulated
base: run.yaml
ranks: 2
steps: 4
repeats: 6
factors:
  - {key: parallel.bucket_size, levels: [1000, 2000, 3000, 4000, 5000, 6000, 7000, 8000, 9000, 10000]}
)");
  Plan plan_ = make_plan(study_);
  const std::vector<double> equal_ = std::vector<double>(10, 1.0);
};

TEST_F(SimulatedStudies, EqualPointsHaveNoWinnerAndNoVerdict) {
  const std::vector<Summary> all = studies(equal_);
  const double winners = share(all, [](const Summary& summary) { return summary.conclusions[0].best.size() == 1; });
  const double verdicts = share(all, [](const Summary& summary) {
    return std::ranges::any_of(summary.points, [](const PointSummary& point) {
      return point.verdict == Verdict::better || point.verdict == Verdict::worse;
    });
  });
  // Each point is truly the best, and may be missing from the set in 5 % of studies.
  const double missing = share(all, [](const Summary& summary) { return !summary.may_be_best(0); });
  const double covered = coverage(all, equal_);
  RecordProperty("numbers", fmt::format("winners {} verdicts {} missing {} covered {} effect {}", winners, verdicts,
                                        missing, covered, mean_effect(all)));
  EXPECT_LE(winners, 0.05);
  EXPECT_LE(verdicts, 0.05);
  EXPECT_LE(missing, 0.05);
  EXPECT_GE(covered, 0.92);
  EXPECT_LE(covered, 0.98);
}

TEST_F(SimulatedStudies, EffectsOfTwiceTheSmallestAreFound) {
  // given: the smallest effect, as an A/A study with another seed estimates it
  const Study equal = equal_points_of(study_, plan_);
  const Plan equal_plan = make_plan(equal);
  const Summary aa = summarize(equal, equal_plan, rows_of(equal, equal_plan, equal_, 77));
  Resolution resolution = *aa.resolution;
  resolution.comparisons = 9;
  const double smallest = resolution.effect();

  // when: points better and worse by twice that effect, one worse by exactly that effect, and a single best point
  std::vector<double> some = equal_, single = equal_, best = equal_;
  some[3] = 1 + 2 * smallest, some[7] = 1 / (1 + 2 * smallest);
  single[5] = 1 + smallest;
  best[4] = 1 / (1 + 2 * smallest);
  const std::vector<Summary> all = studies(some), one = studies(single), winners = studies(best);

  // then
  const double worse = share(all, [](const Summary& summary) { return summary.points[3].verdict == Verdict::worse; });
  const double better = share(all, [](const Summary& summary) { return summary.points[7].verdict == Verdict::better; });
  const double found = share(one, [](const Summary& summary) { return summary.points[5].verdict == Verdict::worse; });
  const double won = share(winners, [](const Summary& summary) { return summary.wins(4); });
  const double wrong = share(
      winners, [](const Summary& summary) { return summary.conclusions[0].best.size() == 1 && !summary.wins(4); });
  const double covered = coverage(all, some);
  RecordProperty("numbers", fmt::format("smallest {} worse {} better {} found {} won {} wrong {} covered {}", smallest,
                                        worse, better, found, won, wrong, covered));
  EXPECT_GE(worse, 0.8);
  EXPECT_GE(better, 0.8);
  EXPECT_GE(found, 0.6) << "about four in five of the smallest effect itself";
  EXPECT_LE(found, 0.95);
  EXPECT_GE(won, 0.8);
  EXPECT_EQ(wrong, 0);
  EXPECT_GE(covered, 0.92);
  EXPECT_LE(covered, 0.98);
}

TEST_F(SimulatedStudies, RoundsUntilIntervalsAreNarrowKeepTheirCoverage) {
  // given: rounds continue until all intervals are within 4 %
  study_.auto_repeats = true;
  study_.repeats = 1000;
  study_.interval_width = 0.04;
  std::vector<double> ratios = equal_;
  ratios[2] = 1.1;

  // when
  const std::vector<Summary> all = studies(ratios, 1000);

  // then
  for (const Summary& summary : all)
    for (const PointSummary& point : summary.points) ASSERT_LE(point.ratio(study_.metric)->width(), 0.04);
  const double covered = coverage(all, ratios);
  const double false_winner =
      share(all, [](const Summary& summary) { return summary.conclusions[0].best.size() == 1; });
  int64_t rounds = 0;
  for (const Summary& summary : all) rounds += summary.conclusions[0].rounds;
  RecordProperty("numbers", fmt::format("covered {} winners {} rounds {}", covered, false_winner,
                                        static_cast<double>(rounds) / kStudies));
  EXPECT_GE(covered, 0.92);
  EXPECT_LE(covered, 0.98);
  EXPECT_LE(false_winner, 0.05);
}

}  // namespace
}  // namespace trivet
