#include "tools/study/summary.h"

#include <algorithm>
#include <cmath>

#include "tests/tools/study/study_text.h"
#include "tools/study/report.h"

namespace trivet {
namespace {

// The points of kGoodStudy, in order: bucket_size 1000 2000 3000, each with small and big.
class StudySummary : public testing::Test {
 protected:
  void use(const std::string& text) {
    study_ = folder_.study(text);
    plan_ = make_plan(study_);
  }
  void add(size_t point, std::initializer_list<double> step_seconds) {
    int64_t repeat = 0;
    for (const double seconds : step_seconds) rows_.push_back(row_of(plan_.points[point], ++repeat, seconds));
  }
  Summary summary() const { return summarize(study_, plan_, rows_); }
  static const Estimate& ratio(const Summary& summary, size_t point) {
    const Estimate* found = summary.points[point].ratio("step_seconds");
    static const Estimate kNone;
    EXPECT_NE(found, nullptr);
    return found ? *found : kNone;
  }

  StudyFolder folder_;
  Study study_ = folder_.study(with(kGoodStudy, "repeats: 2", "repeats: 6"));
  Plan plan_ = make_plan(study_);
  std::vector<RunRow> rows_;
};

TEST_F(StudySummary, RatiosAreTakenWithinARound) {
  // given: a machine that runs at half speed in the second round
  add(0, {1, 2});
  add(2, {0.5, 1});

  // when
  const Summary result = summary();

  // then
  EXPECT_DOUBLE_EQ(ratio(result, 2).value, 0.5);
  EXPECT_DOUBLE_EQ(ratio(result, 2).width(), 0);
  EXPECT_EQ(ratio(result, 2).rounds, 2);
  EXPECT_DOUBLE_EQ(*result.points[2].adjusted, std::sqrt(2) / 2);
  EXPECT_EQ(result.points[2].metrics.at("step_seconds").median, 0.75);
  EXPECT_EQ(result.points[1].ratio("step_seconds"), nullptr);
  EXPECT_EQ(result.done, 4);
}

TEST_F(StudySummary, DriftWithinARoundCancels) {
  // given: each run is 3 % slower than the one before; the baseline runs first, in the middle and last
  double slower = 1;
  for (const size_t point : {0, 2, 1, 4, 0, 3, 5, 0}) {
    rows_.push_back(row_of(plan_.points[point], 1, (point == 4 ? 0.9 : 1) * slower));
    slower *= 1.03;
  }

  // when
  const Summary result = summary();

  // then
  for (const size_t point : {1, 2, 3, 5}) EXPECT_NEAR(ratio(result, point).value, 1, 1e-12) << point;
  EXPECT_NEAR(ratio(result, 4).value, 0.9, 1e-12);
}

TEST_F(StudySummary, RunsOfTwoCallsAreNeverPaired) {
  // given: a second call, on a machine that is ten times slower, runs the rest of the round
  rows_ = {row_of(plan_.points[0], 1, 1), row_of(plan_.points[2], 1, 0.5), row_of(plan_.points[0], 1, 10),
           row_of(plan_.points[4], 1, 4), row_of(plan_.points[0], 1, 10)};
  for (size_t i = 0; i < rows_.size(); ++i) rows_[i].call = i < 2 ? 1 : 2;

  // then
  EXPECT_DOUBLE_EQ(ratio(summary(), 2).value, 0.5);
  EXPECT_DOUBLE_EQ(ratio(summary(), 4).value, 0.4);
  rows_.erase(rows_.begin());
  EXPECT_EQ(summary().points[2].ratio("step_seconds"), nullptr);
}

TEST_F(StudySummary, MainEffectsAreGeometricMeansOverTheOtherFactors) {
  // given: 2000 halves a small model's time and quarters a big one's; 3000 is missing for big
  add(0, {8}), add(2, {4}), add(4, {2});
  add(1, {16}), add(3, {4});

  // when
  const Summary result = summary();

  // then
  ASSERT_EQ(result.conclusions.size(), 1u);
  const auto& effects = result.conclusions[0].effects;
  EXPECT_EQ(effects[0][0].verdict, Verdict::baseline);
  EXPECT_EQ(effects[0][1].contexts, 2);
  EXPECT_DOUBLE_EQ(effects[0][1].ratio.value, std::sqrt(0.5 * 0.25));
  EXPECT_DOUBLE_EQ(effects[0][1].min, 0.25);
  EXPECT_DOUBLE_EQ(effects[0][1].max, 0.5);
  EXPECT_EQ(effects[0][1].verdict, Verdict::too_few);
  EXPECT_EQ(effects[0][2].contexts, 1);
  EXPECT_DOUBLE_EQ(effects[0][2].ratio.value, 0.25);
  EXPECT_DOUBLE_EQ(effects[1][1].ratio.value, std::sqrt(2 * 1));
}

TEST_F(StudySummary, MainEffectsHaveIntervalsOverRoundsAndVerdicts) {
  // given: six rounds of a grid in which 2000 costs 10 % at both sizes, and 3000 nothing
  for (int64_t round = 1; round <= 6; ++round)
    for (size_t i = 0; i < 6; ++i) {
      const double noise = 0.01 * std::sin(static_cast<double>(7 * round) + static_cast<double>(i * i));
      rows_.push_back(row_of(plan_.points[i], round, (i % 2 == 0 ? 1 : 3) * (i / 2 == 1 ? 1.1 : 1) * std::exp(noise)));
    }

  // when
  const auto effects = summary().conclusions[0].effects;

  // then
  EXPECT_EQ(effects[0][1].ratio.rounds, 6);
  EXPECT_LT(effects[0][1].ratio.low, 1.1);
  EXPECT_GT(effects[0][1].ratio.high, 1.1);
  EXPECT_EQ(effects[0][1].verdict, Verdict::worse);
  EXPECT_EQ(effects[0][2].verdict, Verdict::within_noise);
  EXPECT_GE(effects[0][2].corrected_p, effects[0][2].ratio.p);
  EXPECT_EQ(effects[1][1].verdict, Verdict::worse);
}

TEST_F(StudySummary, HolmsCorrectionStepsDown) {
  const auto corrected = [&](const std::vector<double>& p_values) {
    std::vector<Estimate> ratios(p_values.size());
    std::vector<double> found(p_values.size());
    std::vector<Verdict> verdicts(p_values.size());
    std::vector<Judged> all;
    for (size_t i = 0; i < p_values.size(); ++i) {
      ratios[i].p = p_values[i];
      all.push_back({&ratios[i], &found[i], &verdicts[i]});
    }
    judge(study_, all);
    return found;
  };
  EXPECT_EQ(corrected({0.25, 0.0625, 0.125, 0.5}), (std::vector<double>{0.5, 0.25, 0.375, 0.5}));
  EXPECT_EQ(corrected({0.5, 0.5}), (std::vector<double>{1, 1}));
  EXPECT_EQ(corrected({0.25}), (std::vector<double>{0.25}));
  EXPECT_EQ(corrected({}), (std::vector<double>{}));
  EXPECT_EQ(corrected({0.125, 0.1875, 0.1875}), (std::vector<double>{0.375, 0.375, 0.375}))
      << "never smaller than that of a smaller p";
}

TEST_F(StudySummary, TheBestAreThoseThatAreNotToldApart) {
  // given: 2000 small and 3000 small are better than the rest, and as good as each other
  add(0, {4, 4, 4, 4, 4, 4}), add(1, {5, 5.1, 5, 5.1, 5, 4.9});
  add(2, {2, 2.2, 2.1, 2, 2.1, 2}), add(4, {2.1, 2, 2.2, 2, 2, 2.2});
  const Summary result = summary();
  ASSERT_EQ(result.conclusions.size(), 1u);
  EXPECT_EQ(result.conclusions[0].leader, 2u);
  EXPECT_EQ(result.conclusions[0].best, (std::vector<size_t>{2, 4}));
  EXPECT_FALSE(result.wins(2));
  EXPECT_TRUE(result.may_be_best(4));
  EXPECT_EQ(result.points[2].verdict, Verdict::better);
  EXPECT_EQ(result.points[1].verdict, Verdict::worse);
  const std::string text = winner_texts(study_, plan_, result).at(0);
  EXPECT_TRUE(
      text.starts_with("Tied for best: {bucket_size=2000, size=small; bucket_size=3000, size=small}. Ahead, but not "
                       "significantly: bucket_size=2000, size=small: step 2065 ms, 0.516 of the baseline (95 %: "))
      << text;
  EXPECT_EQ(text.find("The baseline is among them"), std::string::npos);
}

// A noisy point slower than the baseline is not distinguished from the leader; the baseline is.
TEST_F(StudySummary, WhatIsBehindTheBaselineIsNotGreen) {
  add(0, {4, 4, 4, 4, 4, 4}), add(2, {3.9, 3.9, 3.91, 3.9, 3.9, 3.9}), add(4, {3, 7, 3.5, 6, 2.5, 8});
  const Summary result = summary();
  ASSERT_FALSE(result.may_be_best(0));
  ASSERT_TRUE(result.may_be_best(4));
  const std::string picture = ratio_picture(study_, plan_, result);
  const size_t green = picture.find("class=\"bar best\"");
  EXPECT_NE(green, std::string::npos);
  EXPECT_EQ(picture.find("class=\"bar best\"", green + 1), std::string::npos);
}

TEST_F(StudySummary, FewerThanFiveRoundsAreNoVerdict) {
  add(0, {4, 4, 4, 4}), add(2, {2, 2, 2, 2});
  EXPECT_EQ(summary().points[2].verdict, Verdict::too_few);
  EXPECT_TRUE(summary().conclusions[0].best.empty());
  EXPECT_TRUE(winner_texts(study_, plan_, summary())
                  .at(0)
                  .starts_with("Too few rounds for a verdict (4, expected at least 5). Ahead so far: bucket_size=2000, "
                               "size=small: step 2000 ms, "
                               "0.500 of the baseline"));
  add(0, {4, 4, 4, 4, 4}), add(2, {2, 2, 2, 2, 2});
  EXPECT_TRUE(summary().wins(2));
}

TEST_F(StudySummary, APointThatFailedIsNeverTheBest) {
  add(0, {4, 4, 4, 4, 4, 4}), add(2, {3, 3, 3, 3, 3, 3}), add(4, {1, 1, 1, 1, 1});
  rows_.push_back(row_of(plan_.points[4], 6, 1));
  rows_.back().outcome = RunEnd::failed;  // killed: it gave no reason
  const Summary result = summary();
  EXPECT_EQ(result.points[4].failure, "failed");
  EXPECT_EQ(result.points[4].verdict, Verdict::failed);
  EXPECT_TRUE(result.wins(2));
  EXPECT_FALSE(result.may_be_best(4));
  EXPECT_NE(winner_texts(study_, plan_, result).at(0).find(" 1 point failed and is left out."), std::string::npos);
}

// The table's metric, the picture's ratio, the winner and the main effects are one estimate: whatever is measured, the
// best point shows the smallest metric in the table.
TEST_F(StudySummary, OneEstimateEverywhere) {
  uint64_t random = 1;
  const auto next = [&] {
    return static_cast<double>((random = random * 6364136223846793005u + 1442695040888963407u) >> 40);
  };
  for (int study = 0; study < 50; ++study) {
    rows_.clear();
    for (int64_t round = 1; round <= 6; ++round)
      for (const PlannedRun& run : rest_of_round(study_, plan_, {}, round))
        rows_.push_back(
            row_of(plan_.points[run.point], round, 1 + next() / (1 << 24) + static_cast<double>(run.point) / 8));
    study_.repeats = 6;
    const Summary result = summary();
    const size_t leader = *result.conclusions[0].leader;
    for (size_t i = 0; i < plan_.points.size(); ++i) {
      EXPECT_GE(*result.points[i].adjusted, *result.points[leader].adjusted);
      EXPECT_NEAR(*result.points[i].adjusted, *result.points[0].adjusted * ratio(result, i).value, 1e-12);
    }
    // An effect is the geometric mean of quotients of ratios, one for each setting of the other factor.
    const Effect& effect = result.conclusions[0].effects[1][1];
    EXPECT_LE(effect.min, effect.ratio.value);
    EXPECT_GE(effect.max, effect.ratio.value);
    EXPECT_NEAR(effect.ratio.value,
                std::cbrt(ratio(result, 1).value * ratio(result, 3).value / ratio(result, 2).value *
                          ratio(result, 5).value / ratio(result, 4).value),
                1e-12);
  }
}

TEST_F(StudySummary, EachConditionHasABaselineAndABestOfItsOwn) {
  // given: the model's size is a condition, not a choice
  use(with(kGoodStudy, "repeats: 2", "repeats: 5") + "    condition: true\n");
  add(0, {1, 1, 1, 1, 1}), add(2, {2, 2, 2, 2, 2}), add(4, {0.5, 0.5, 0.5, 0.5, 0.5});
  add(1, {10, 10, 10, 10, 10}), add(3, {5, 5, 5, 5, 5});

  // when
  const Summary result = summary();

  // then
  EXPECT_TRUE(result.points[1].baseline);
  EXPECT_DOUBLE_EQ(ratio(result, 3).value, 0.5);
  EXPECT_DOUBLE_EQ(ratio(result, 2).value, 2);
  ASSERT_EQ(result.conclusions.size(), 2u);
  EXPECT_EQ(result.conclusions[0].best, (std::vector<size_t>{4}));
  EXPECT_EQ(result.conclusions[1].best, (std::vector<size_t>{3}));
  EXPECT_EQ(winner_texts(study_, plan_, result).at(1),
            "With size=big: best: bucket_size=2000: step 5000 ms, 0.500 of the baseline (95 %: 0.500 to 0.500, n = 5). "
            "1 point has fewer than 5 rounds and is left out.");

  // Effects are neither computed for a condition nor pooled over conditions.
  EXPECT_TRUE(result.conclusions[0].effects[1].empty());
  EXPECT_DOUBLE_EQ(result.conclusions[0].effects[0][1].ratio.value, 2);
  EXPECT_DOUBLE_EQ(result.conclusions[1].effects[0][1].ratio.value, 0.5);
  const TextBlock table = effect_table(study_, plan_, result);
  EXPECT_EQ(table.rows.size(), 1u + 6);
  EXPECT_EQ(table.rows[5][1], "size=big");
}

TEST_F(StudySummary, MoreIsBetterOfSomeMetrics) {
  use(with(kGoodStudy, "repeats: 2", "repeats: 5") + "metric: tokens_per_second\n");
  for (int64_t round = 1; round <= 5; ++round)
    for (size_t i = 0; i < 3; ++i) {
      RunRow row = row_of(plan_.points[i], round, 1);
      row.metrics["tokens_per_second"] = i == 1 ? 300 : 100;
      rows_.push_back(row);
    }
  EXPECT_TRUE(summary().wins(1));
  EXPECT_EQ(summary().points[1].verdict, Verdict::better);
}

TEST_F(StudySummary, TheSmallestEffectFollowsFromNoiseRoundsAndComparisons) {
  // given: log ratios that alternate between 2 % and -2 %
  add(0, {1, 1, 1, 1, 1, 1});
  const double up = std::exp(0.02), down = std::exp(-0.02);
  add(2, {up, down, up, down, up, down});

  // when
  Resolution resolution = *summary().resolution;

  // then
  EXPECT_NEAR(resolution.deviation, 0.02 * std::sqrt(6. / 5), 1e-12);
  EXPECT_EQ(resolution.rounds, 6);
  EXPECT_EQ(resolution.comparisons, 5);
  EXPECT_FALSE(resolution.equal_points);
  // t quantiles at 0.995 and 0.8, 5 degrees of freedom
  EXPECT_NEAR(std::log1p(resolution.effect()), (4.03214 + 0.91954) * 0.02 * std::sqrt(6. / 5) / std::sqrt(6.), 1e-6);
  resolution.rounds = 24;
  EXPECT_LT(resolution.effect(), 0.02);
  plan_.noise = 0.001;
  EXPECT_TRUE(summary().resolution->equal_points);
  EXPECT_EQ(summary().resolution->deviation, 0.001);
  EXPECT_NE(resolution_text(summary()).find("6 rounds and 5 comparisons find effects of 0.2% and more"),
            std::string::npos)
      << resolution_text(summary());
}

TEST_F(StudySummary, LossesMustAgreeWhereNoNumbersChange) {
  // given: bucket sizes change no numbers, but the model's size does
  add(0, {1, 1}), add(2, {1, 1});
  rows_.push_back(row_of(plan_.points[1], 1, 1, {9, 9, 9, 9}));
  EXPECT_EQ(summary().disagreements, 0);

  // when: the last loss of one repeat differs by one bit
  rows_[3].losses[3] = std::nextafter(1., 2.);

  // then
  const Summary result = summary();
  EXPECT_EQ(result.disagreements, 1);
  EXPECT_EQ(result.points[2].disagreement,
            "repeat 2: the loss of step 4 is 1.0000000000000002, but 1 (relative difference 2.2e-16) in repeat 1 of "
            "bucket_size=1000, size=small");
  study_.tolerance = 1e-15;
  EXPECT_EQ(summary().disagreements, 0);
  study_.tolerance = 0;
  study_.check_agreement = false;
  EXPECT_EQ(summary().disagreements, 0);
}

TEST_F(StudySummary, APointWithOtherLossesIsNeverBest) {
  // given: the fastest point, with a wrong loss in one step of one round
  add(0, {1, 1, 1, 1, 1, 1}), add(2, {0.9, 0.9, 0.9, 0.9, 0.9, 0.9}), add(4, {0.5, 0.5, 0.5, 0.5, 0.5, 0.5});
  EXPECT_TRUE(summary().wins(4));
  rows_.back().losses[2] += 1e-3;
  // then
  const Summary result = summary();
  EXPECT_TRUE(result.wins(2));
  EXPECT_EQ(result.points[4].verdict, Verdict::differs);
  const std::string text = winner_texts(study_, plan_, result).at(0);
  EXPECT_NE(text.find("1 point does not have the expected losses and is left out."), std::string::npos) << text;
}

TEST_F(StudySummary, RunsOfTwoProgramsAreNotPooledInSilence) {
  add(0, {1, 1, 1, 1, 1, 1}), add(2, {2, 2, 2, 2, 2, 2});
  for (RunRow& row : rows_) row.provenance = {{"processor", "P"}, {"binary", "1"}};
  EXPECT_EQ(winner_texts(study_, plan_, summary()).size(), 1u);
  rows_.back().provenance["binary"] = "2";
  const auto texts = winner_texts(study_, plan_, summary());
  EXPECT_TRUE(texts.back().starts_with("The runs come from 2 programs or machines")) << texts.back();
}

TEST_F(StudySummary, ALossThatIsAWholeOtherCurveIsCaughtUnderATolerance) {
  add(0, {1});
  rows_.push_back(row_of(plan_.points[2], 1, 1, {4, 3, 2.1, 1}));
  study_.tolerance = 0.01;
  EXPECT_NE(summary().points[2].disagreement.find("the loss of step 3 is 2.1, but 2"), std::string::npos);
}

// What overlap hides and what it costs, compared with the same point without overlap.
TEST_F(StudySummary, HiddenIsTheExposedWireThatOverlapSaves) {
  // given: a link; overlap hides half and three quarters of its wire time; the step's time is pure noise
  use(R"(name: overlap
base: run.yaml
ranks: 2
steps: 4
warmup_steps: 1
repeats: 6
factors:
  - name: link
    levels: {slow: {comm.link_gbps: 1, comm.data_link_latency_us: 5}, none: {}}
    condition: true
  - name: overlap
    levels: {"off": {}, "on": {overlap.overlap_grad_reduce: true, overlap.collectives_in_flight: 2}}
)");
  enum : size_t { slow_off, slow_on, none_off, none_on };
  ASSERT_EQ(plan_.points.size(), 4u);
  EXPECT_EQ(plan_.points[slow_on].without_overlap, plan_.points[slow_off].id);
  EXPECT_EQ(plan_.points[slow_off].without_overlap, plan_.points[slow_off].id);
  const auto add = [&](size_t point, int64_t round, double step, double exposed, double compute) {
    rows_.push_back(row_of(plan_.points[point], round, step));
    rows_.back().metrics["exposed_seconds"] = exposed;
    rows_.back().metrics["exposed_fraction"] = exposed / step;
    rows_.back().metrics["compute_seconds"] = compute;
  };
  for (const int64_t round : {1, 2}) {
    const double step = round == 1 ? 3 : 1;
    add(slow_off, round, step, 0.4, 0.5), add(slow_on, round, 2 / step, round == 1 ? 0.2 : 0.1, 0.6);
    add(none_off, round, 1, 0.001, 0.5), add(none_on, round, 1, 0.0005, 0.5);
  }

  // when
  const Summary result = summary();

  // then
  ASSERT_TRUE(result.points[slow_on].hidden);
  EXPECT_DOUBLE_EQ(result.points[slow_on].hidden->value, 0.625);
  EXPECT_EQ(result.points[slow_on].hidden->rounds, 2);
  EXPECT_NEAR(result.points[slow_on].hidden->high - 0.625, 12.7062 * 0.125, 1e-4) << "the t interval of two rounds";
  EXPECT_DOUBLE_EQ(result.points[slow_on].compute_inflation->value, 1.2);
  EXPECT_FALSE(result.points[none_on].hidden) << "there is nothing to hide";
  EXPECT_TRUE(result.points[none_on].compute_inflation);
  for (const size_t point : {slow_off, none_off}) EXPECT_FALSE(result.points[point].hidden) << point;
  const TextBlock table = step_table(study_, plan_, result);
  const auto column = static_cast<size_t>(std::ranges::find(table.rows[0], "hidden (95 %)") - table.rows[0].begin());
  EXPECT_EQ(table.rows[1 + slow_on].at(column), "62.5% (-96.3% to 221.3%, n 2)");
  EXPECT_EQ(table.rows[1 + slow_off].at(column), "");
  EXPECT_NE(markdown_report(study_, plan_, result, rows_).find("the part that overlap hides"), std::string::npos);
}

// The round's second call runs on a machine that is ten times slower; overlap hides half on both.
TEST_F(StudySummary, WhatOverlapHidesIsTakenWithinACall) {
  use(R"(name: overlap
base: run.yaml
ranks: 2
steps: 4
warmup_steps: 1
repeats: 6
factors:
  - name: overlap
    levels: {"off": {}, "on": {overlap.overlap_grad_reduce: true}}
)");
  for (const int64_t call : {1, 2})
    for (const size_t point : {0, 1}) {
      const double exposed = (call == 1 ? 1 : 10) * (point == 0 ? 0.5 : 0.25);
      rows_.push_back(row_of(plan_.points[point], 1, 2 * exposed));
      rows_.back().call = call;
      rows_.back().metrics.insert({{"exposed_seconds", exposed}, {"exposed_fraction", 0.5}});
    }
  const Summary result = summary();
  ASSERT_TRUE(result.points[1].hidden);
  EXPECT_DOUBLE_EQ(result.points[1].hidden->value, 0.5);
}

TEST_F(StudySummary, ResultsOfOtherPointsAreCountedAndLeftOut) {
  add(0, {1, 2});
  rows_[0].point = "someone else";
  const Summary result = summary();
  EXPECT_EQ(result.other_rows, 1);
  EXPECT_EQ(result.done, 1);
}

// ---- reports

TEST_F(StudySummary, CsvQuotesWhatNeedsIt) {
  // given
  use(with(kGoodStudy, "small: {}", "'a, \"b\"': {}"));
  add(0, {0.1, 0.3});
  rows_.push_back(row_of(plan_.points[1], 1, 1));
  rows_.back().outcome = RunEnd::failed;
  rows_.back().reason = "two\nlines";

  // when
  const std::string csv = csv_report(study_, plan_, summary());

  // then
  EXPECT_TRUE(
      csv.starts_with("point,bucket_size,size,ranks,launcher,rounds_done,status,reason,adjusted,ratio,ratio_low,"
                      "ratio_high,p,corrected_p,verdict,best,hidden,hidden_low,hidden_high,memory_bytes,agrees,"
                      "loss_median,loss_min,loss_max,step_seconds_median,step_seconds_min,step_seconds_max\r\n"))
      << csv;
  EXPECT_NE(csv.find(",1000,\"a, \"\"b\"\"\",2,threads,2,done,,0.173205080756887"), std::string::npos) << csv;
  EXPECT_NE(csv.find(",1000,big,2,threads,0,failed,\"two\nlines\","), std::string::npos) << csv;
}

TEST_F(StudySummary, MarkdownCellsAreNoMarkup) {
  use(with(kGoodStudy, "small: {}", "'a|b *c*': {}"));
  add(0, {0.5, 0.5});
  const std::string text = markdown_report(study_, plan_, summary(), rows_);
  EXPECT_NE(text.find("| 1000 | a\\|b \\*c\\* | 2/2 | 500 ms |  | baseline |"), std::string::npos) << text;
}

// Excerpts of a page at each place where it contains `evil` unescaped.
std::string unescaped_rest(const std::string& html, const std::string& evil) {
  std::string found;
  for (size_t at = html.find(evil); at != std::string::npos; at = html.find(evil, at + 1)) found += html.substr(at, 60);
  return found;
}

TEST_F(StudySummary, PagesAndPicturesEscapeEverything) {
  // given: markup in every string that a file or a program can choose
  const std::string evil = "<script>alert('&\")</script>";
  std::string text = with(kGoodStudy, "small: {}", "\"<script>alert('&\\\")</script>\": {}");
  text = with(text, "name: size", "name: \"<script>alert('&\\\")</script>\"");
  use(text);
  ASSERT_EQ(study_.factors[1].name, evil);
  add(0, {0.5, 0.6}), add(2, {0.7, 0.7});
  for (RunRow& row : rows_)
    row.command = row.provenance["processor"] = row.folder = evil, row.metrics[evil] = 1,
    row.metrics["data_exposed_seconds"] = 0.5;
  rows_.push_back(row_of(plan_.points[4], 1, 1));
  rows_.back().outcome = RunEnd::failed;
  rows_.back().reason = evil;
  rows_[3].losses[0] = 7;
  plan_.dropped.push_back({{0, 0}, evil});
  study_.path = study_.base = evil;

  // when
  const Summary result = summary();
  const std::string page = html_report(study_, plan_, result, rows_);
  const std::string picture = ratio_picture(study_, plan_, result);

  // then
  EXPECT_EQ(result.disagreements, 1);
  for (const std::string& written : {page, picture}) {
    EXPECT_EQ(unescaped_rest(written, "<script"), "");
    EXPECT_EQ(unescaped_rest(written, "alert('"), "");
    EXPECT_EQ(unescaped_rest(written, "&\""), "");
    EXPECT_NE(written.find("&lt;script&gt;alert(&#39;&amp;&quot;)"), std::string::npos);
  }
  EXPECT_EQ(page.find("http://", page.find("<body>")), page.find("http://www.w3.org/2000/svg"));
  EXPECT_EQ(page.find("src="), std::string::npos) << "nothing is loaded from elsewhere";
  EXPECT_EQ(page.find("@import"), std::string::npos);
}

TEST_F(StudySummary, ReportsOfAStudyThatHasNotBegunAreWhole) {
  const std::string page = html_report(study_, plan_, summary(), rows_);
  EXPECT_TRUE(page.ends_with("</html>\n"));
  EXPECT_NE(page.find("0 of 42 runs done"), std::string::npos);
  EXPECT_NE(ratio_picture(study_, plan_, summary()).find("not run"), std::string::npos);
  EXPECT_EQ(exposed_plot(study_, plan_, summary()), "");
}

TEST_F(StudySummary, ExposedTimeIsTheWiresAndWaitingStandsBesideIt) {
  // given
  add(0, {1}), add(2, {1});
  rows_[0].metrics["data_exposed_seconds"] = 0.25;
  rows_[1].metrics["data_exposed_seconds"] = 0.75;
  rows_[1].metrics["data_wait_seconds"] = 0.125;
  rows_[0].metrics["tensor_exposed_seconds"] = 0;
  for (RunRow& row : rows_) row.metrics["data_wire_bytes"] = 1000, row.metrics["tensor_wire_bytes"] = 0;

  // when
  const Summary result = summary();
  const TextBlock table = comm_table(study_, plan_, result);
  const std::string picture = exposed_plot(study_, plan_, result);

  // then
  EXPECT_NE(picture.find("exposed data-parallel communication: 250 ms, 25.0%"), std::string::npos) << picture;
  const auto column = std::ranges::find(table.rows[0], "exposed") - table.rows[0].begin();
  ASSERT_EQ(table.rows.size(), 1u + 2) << "nothing of other classes anywhere";
  EXPECT_EQ(table.rows[2][static_cast<size_t>(column)], "750 ms");
  EXPECT_NE(picture.find("waiting for a peer: 125 ms, 12.5%"), std::string::npos) << picture;
}

TEST(StudyText, MetricsHaveUnits) {
  EXPECT_EQ(metric_text("step_seconds", 0.0125), "12.5 ms");
  EXPECT_EQ(metric_text("wait_fraction", 0.125), "12.5%");
  EXPECT_EQ(metric_text("tokens_per_second", 12345.6), "12,346");
  EXPECT_EQ(metric_text("loss", 3.25), "3.25");
}

}  // namespace
}  // namespace trivet
