#include "tools/study/compare.h"

#include <cmath>
#include <random>

#include "base/files.h"
#include "tests/tools/study/study_text.h"

namespace trivet {
namespace {

const std::string kTwoFactors =
    with(with(kGoodStudy, "repeats: 2", "repeats: 6"), "name: size\n", "name: size\n    condition: true\n");

// The results of a study in a folder. Points take `seconds(choice)`, with 1 % noise.
class Results {
 public:
  explicit Results(const std::string& text = kTwoFactors) : text_(text) {}

  template <class Seconds>
  StudyResults of(const std::string& name, const std::string& commit, int rounds, const Seconds& seconds) {
    Study study = folder_.study(text_);
    study.out = folder_ / name;
    make_folder(study.out);
    write_text(study.out + "/study.yaml", text_);
    const Plan plan = make_plan(study);
    std::string lines;
    for (int round = 1; round <= rounds; ++round)
      for (const Point& point : plan.points) {
        RunRow row = row_of(point, round, seconds(point.choice) * std::exp(0.01 * noise_(random_)));
        row.call = 1;
        row.started = "2026-01-31T00:00:00Z";
        row.provenance["commit"] = commit;
        const std::vector<std::string> labels = labels_of(study, point.choice);
        for (size_t f = 0; f < labels.size(); ++f) row.levels.emplace_back(study.factors[f].name, labels[f]);
        lines += to_json_line(row);
      }
    write_text(study.out + "/results.jsonl", lines);
    return load_results(study.out);
  }
  std::string operator/(const std::string& name) const { return folder_ / name; }

 private:
  const std::string text_;
  StudyFolder folder_;
  std::mt19937 random_{1};
  std::normal_distribution<double> noise_;
};

const ComparedPoint& at(const StudyResults& a, const StudyComparison& comparison, const Choice& choice) {
  for (const ComparedPoint& point : comparison.points)
    if (a.plan.points[point.a].choice == choice) return point;
  throw Error("no such point");
}

TEST(StudyCompare, TellsMachinesAndEffectsApart) {
  // given: B is twice as fast, except at one point, whose setting costs 20 % on B and nothing on A
  Results results;
  const StudyResults a = results.of("a", "1111111", 6, [](const Choice& choice) { return choice[1] == 0 ? 1. : 3.; });
  const StudyResults b = results.of("b", "2222222", 6, [](const Choice& choice) {
    return (choice[1] == 0 ? 0.5 : 1.5) * (choice == Choice{2, 0} ? 1.2 : 1);
  });

  // when
  const StudyComparison comparison = compare_studies(a, b);

  // then
  ASSERT_EQ(comparison.points.size(), 6u);
  const ComparedPoint &same = at(a, comparison, {1, 1}), &other = at(a, comparison, {2, 0});
  EXPECT_EQ(same.metric.verdict, Verdict::better);
  EXPECT_NEAR(same.metric.ratio.value, 0.5, 0.02);
  EXPECT_LT(same.metric.ratio.low, same.metric.ratio.value);
  EXPECT_GT(same.metric.ratio.high, same.metric.ratio.value);
  EXPECT_EQ(same.effect->verdict, Verdict::within_noise);
  EXPECT_EQ(other.effect->verdict, Verdict::worse);
  EXPECT_NEAR(other.effect->ratio.value, 1.2, 0.04);
  EXPECT_NEAR(other.effect->a.value, 1, 0.03);
  EXPECT_FALSE(at(a, comparison, {0, 0}).effect) << "it is the baseline";
  const TextBlock table = comparison_table(a, comparison);
  EXPECT_EQ(table.rows.size(), 7u);
  std::string text;
  for (const std::string& sentence : comparison.texts) text += sentence + "\n";
  EXPECT_NE(text.find("A / B differ in commit: 1111111 / 2222222."), std::string::npos) << text;
}

TEST(StudyCompare, OfEqualResultsFindsNothing) {
  Results results;
  const auto seconds = [](const Choice&) { return 1.; };
  const StudyResults a = results.of("a", "1", 6, seconds), b = results.of("b", "1", 8, seconds);
  const StudyComparison comparison = compare_studies(a, b);
  for (const ComparedPoint& point : comparison.points) {
    EXPECT_EQ(point.metric.verdict, Verdict::within_noise);
    EXPECT_LE(point.metric.ratio.low, 1.02);
    EXPECT_GE(point.metric.ratio.high, 0.98);
  }
  EXPECT_EQ(comparison.texts.at(2), "The same program on the same machine.");
}

// Welch's degrees of freedom if one side is noisier and has fewer rounds: about those of that side, not of both.
TEST(StudyCompare, TheIntervalIsThatOfTheNoisierSide) {
  Results results;
  int calls = 0;  // six points per round, all of them slow or all fast
  const auto noisy = [&](const Choice&) { return std::exp(calls++ / 6 % 2 == 0 ? 0.2 : -0.2); };
  const StudyResults a = results.of("a", "1", 5, noisy), b = results.of("b", "1", 20, [](const Choice&) { return 1.; });
  const StudyComparison comparison = compare_studies(a, b);
  const auto moments = [](const StudyResults& of, size_t point) {
    std::vector<double> logs;
    for (const RunRow& row : of.rows)
      if (row.point == of.plan.points[point].id) logs.push_back(std::log(row.metrics.at("step_seconds")));
    double mean = 0, squares = 0;
    for (const double log : logs) mean += log / static_cast<double>(std::ssize(logs));
    for (const double log : logs) squares += (log - mean) * (log - mean);
    const auto n = static_cast<double>(std::ssize(logs));
    return std::pair(squares / (n - 1) / n, n);
  };
  for (const ComparedPoint& point : comparison.points) {
    const auto [va, na] = moments(a, point.a);
    const auto [vb, nb] = moments(b, point.b);
    ASSERT_EQ(std::pair(na, nb), std::pair(5.0, 20.0));
    const double degrees = (va + vb) * (va + vb) / (va * va / (na - 1) + vb * vb / (nb - 1));
    ASSERT_EQ(std::floor(degrees), 4);
    const Estimate& ratio = point.metric.ratio;
    EXPECT_NEAR(std::log(ratio.high / ratio.value), 2.776445 * std::sqrt(va + vb), 1e-5);  // Student's t, 4 d.o.f.
    EXPECT_NEAR(std::log(ratio.value / ratio.low), 2.776445 * std::sqrt(va + vb), 1e-5);
  }
}

TEST(StudyCompare, WithFewRoundsGivesNoVerdict) {
  Results results;
  const StudyResults a = results.of("a", "1", 6, [](const Choice&) { return 1.; });
  const StudyResults b = results.of("b", "1", 4, [](const Choice&) { return 2.; });
  for (const ComparedPoint& point : compare_studies(a, b).points) {
    EXPECT_EQ(point.metric.verdict, Verdict::too_few);
    EXPECT_EQ(point.metric.ratio.rounds, 4);
  }
}

TEST(StudyCompare, PointsAreThoseOfTheSameNames) {
  // given: B with a different level, and with a different base configuration under the same levels
  const auto second = [](const Choice&) { return 1.; };
  Results results, others(with(with(kTwoFactors, "3000", "4000"), "repeats: 6", "repeats: 6\nset: {train.seed: 7}"));
  const StudyResults a = results.of("a", "1", 6, second), b = others.of("b", "1", 6, second);

  for (const auto& [of, seed] : {std::pair(&a, 1), std::pair(&b, 7)})
    for (const RunRow& row : of->rows) {
      make_folder(of->folder + "/" + row.folder);
      write_text(of->folder + "/" + row.folder + "/config.resolved.yaml",
                 fmt::format("model: {{num_layers: 2, hidden_size: 64, num_attention_heads: 4, seq_length: 16}}\n"
                             "train: {{seed: {}, run_dir: runs/{}}}\n",
                             seed, seed));
    }

  // when
  const StudyComparison comparison = compare_studies(a, b);

  // then
  EXPECT_EQ(comparison.points.size(), 4u);
  for (const ComparedPoint& point : comparison.points) EXPECT_FALSE(point.same_settings);
  std::string text;
  for (const std::string& sentence : comparison.texts) text += sentence + "\n";
  EXPECT_NE(text.find("4 points have other settings in A than in B: train.seed 1 / 7.\n"), std::string::npos) << text;
  EXPECT_NE(text.find("Only in B: bucket_size=4000, size=small; bucket_size=4000, size=big."), std::string::npos)
      << text;
}

// Adding or renaming a factor does not change the runs.
TEST(StudyCompare, RunsOfTheSameSettingsAreOnePoint) {
  const auto second = [](const Choice&) { return 1.; };
  Results results, renamed(with(kTwoFactors, "name: size", "name: other")),
      more(with(kTwoFactors, "factors:\n",
                "factors:\n  - {name: clip, levels: {same: {}, less: {optimizer.clip_grad: 0.5}}}\n"));
  const StudyResults a = results.of("a", "1", 6, second), b = renamed.of("b", "1", 6, second),
                     c = more.of("c", "1", 6, second);
  for (const StudyResults* other : {&b, &c}) {
    const StudyComparison comparison = compare_studies(a, *other);
    EXPECT_EQ(comparison.points.size(), a.plan.points.size());
    for (const ComparedPoint& point : comparison.points) EXPECT_TRUE(point.same_settings);
  }
  // Earlier rows of the folder name no level of the new factor, so they belong to its baseline.
  write_text(c.folder + "/results.jsonl", read_text(a.folder + "/results.jsonl"));
  EXPECT_EQ(load_results(c.folder).plan.points.size(), a.plan.points.size());
}

TEST(StudyCompare, RefusesWhatCannotBeCompared) {
  const auto second = [](const Choice&) { return 1.; };
  Results results, tokens(std::string(kTwoFactors) + "metric: tokens_per_second\n"),
      strangers(with(with(kTwoFactors, "name: size", "name: other"), "repeats: 6", "repeats: 6\nset: {train.seed: 7}"));
  const StudyResults a = results.of("a", "1", 1, second);
  EXPECT_NE(message_of<ConfigError>([&] { load_results(results / "nowhere"); }).find("the folder of a finished study"),
            std::string::npos);
  EXPECT_NE(message_of<ConfigError>([&] {
              compare_studies(a, tokens.of("t", "1", 1, second));
            }).find("metric: found tokens_per_second"),
            std::string::npos);
  EXPECT_NE(message_of<ConfigError>([&] {
              compare_studies(a, strangers.of("s", "1", 1, second));
            }).find("no point has finished runs in both"),
            std::string::npos);
}

}  // namespace
}  // namespace trivet
