// The fit of a scaling law to runs of a known law, its intervals, its file, and the points of a study that it predicts.
#include "tools/study/scaling.h"

#include <cmath>
#include <random>

#include "tests/tools/study/study_text.h"

namespace trivet {
namespace {

constexpr ScalingLaw kTrue{.E = 0.9, .A = 60, .alpha = 0.35, .B = 150, .beta = 0.4};

// Four sizes at each of three budgets, a factor of 4 apart, and a run beyond them to predict.
std::vector<ScalingRun> runs_of(const ScalingLaw& law, double noise = 0, uint64_t seed = 1) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  std::vector<ScalingRun> runs;
  for (const double flops : {1e12, 4e12, 1.6e13})
    for (const double factor : {0.3, 0.7, 1.6, 3.5}) {
      const double parameters = factor * std::sqrt(flops / 60);
      runs.push_back({.name = "run", .parameters = parameters, .tokens = flops / 6 / parameters});
    }
  runs.push_back({.name = "large, predicted", .parameters = 1.5e6, .tokens = 1.5e7, .predicted = true});
  for (ScalingRun& run : runs) run.loss = law.loss(run.parameters, run.tokens) * std::exp(noise * normal(random));
  return runs;
}

std::string problem_of(const std::vector<ScalingRun>& runs) {
  return message_of([&] { fit_scaling(runs); });
}

TEST(ScalingLaw, IsRecoveredFromExactLosses) {
  const ScalingLaw law = fit_scaling(runs_of(kTrue), "runs", 1).law;
  EXPECT_NEAR(law.E / kTrue.E, 1, 1e-4);
  EXPECT_NEAR(law.A / kTrue.A, 1, 1e-3);
  EXPECT_NEAR(law.alpha / kTrue.alpha, 1, 1e-4);
  EXPECT_NEAR(law.B / kTrue.B, 1, 1e-3);
  EXPECT_NEAR(law.beta / kTrue.beta, 1, 1e-4);
}

TEST(ScalingLaw, HasAHuberLossThatOneWrongRunDoesNotMove) {
  std::vector<ScalingRun> runs = runs_of(kTrue);
  runs[5].loss *= 1.2;
  EXPECT_NEAR(fit_scaling(runs, "runs", 1).law.loss(1.5e6, 1.5e7), runs.back().loss, 2e-3);
}

TEST(ScalingLaw, IntervalsCoverTheTruth) {
  int predictions = 0, exponents = 0, widths = 0;
  constexpr int kStudies = 20;
  for (int study = 0; study < kStudies; ++study) {
    const std::vector<ScalingRun> runs = runs_of(kTrue, 0.005, 100 + study);
    const ScalingFit fit = fit_scaling(runs, "runs", 100);
    const ScalingRun& large = runs.back();
    const auto [low, high] =
        fit.interval([&](const ScalingLaw& law) { return law.loss(large.parameters, large.tokens); }, true);
    const auto exponent = [](const ScalingLaw& law) { return law.beta / (law.alpha + law.beta); };
    const auto [least, most] = fit.interval(exponent);
    predictions += low <= large.loss && large.loss <= high;
    exponents += least <= exponent(kTrue) && exponent(kTrue) <= most;
    widths += high / low < 1.1;
  }
  EXPECT_GE(predictions, 17);
  EXPECT_GE(exponents, 17);
  EXPECT_EQ(widths, kStudies) << "an interval of anything covers everything";
}

TEST(ScalingLaw, RefusesRunsThatCannotTellIt) {
  std::vector<ScalingRun> runs = runs_of(kTrue);
  runs[3].loss = std::nan(""), runs[3].name = "size=big";
  EXPECT_EQ(problem_of(runs), "runs: a scaling law needs the validation loss of every run, and size=big has none");
  runs = runs_of(kTrue);
  runs.resize(6);
  for (int i = 0; i < 6; ++i) runs.push_back(runs[0]);  // repeated runs are not different runs
  EXPECT_EQ(problem_of(runs),
            "runs: a scaling law has 5 parameters: found 6 different runs, of 6 sizes on 6 numbers of tokens, expected "
            "at least 7 of 3 sizes on 3 numbers of tokens, and those to predict in addition");
  runs = runs_of(kTrue);
  for (ScalingRun& run : runs) run.parameters = run.parameters > 3e5 ? 1e6 : 1e5;
  EXPECT_NE(problem_of(runs).find("found 12 different runs, of 2 sizes"), std::string::npos) << problem_of(runs);
}

TEST(ScalingLaw, LossesThatFollowNoLawAreRefused) {
  for (const double slope : {0.0, 0.1}) {
    std::vector<ScalingRun> runs = runs_of(kTrue);
    for (ScalingRun& run : runs) run.loss = 1.5 * std::pow(run.parameters, slope);
    EXPECT_NE(message_of<DataError>([&] { fit_scaling(runs); }).find("do not determine a scaling law"),
              std::string::npos);
  }
}

TEST(ScalingLaw, BestSizeHasNoBetterNeighbour) {
  const double best = kTrue.best_parameters(1e15);
  for (const double factor : {0.9, 1.1})
    EXPECT_LT(kTrue.loss(best, 1e15 / 6 / best), kTrue.loss(factor * best, 1e15 / 6 / best / factor));
}

TEST(ScalingRuns, AreReadAsTheyAreWritten) {
  const TempDir dir;
  std::vector<ScalingRun> runs = runs_of(kTrue);
  runs.back().loss = std::nan("");
  write_text(dir / "runs.csv", csv_of(runs));
  const std::vector<ScalingRun> read = read_scaling_runs(dir / "runs.csv");
  EXPECT_EQ(csv_of(read), csv_of(runs));
  ASSERT_EQ(read.size(), 13u);
  EXPECT_EQ(read.back().name, "large, predicted");
  EXPECT_TRUE(read.back().predicted && std::isnan(read.back().loss));
  // As a spreadsheet or an editor saves it.
  write_text(dir / "runs.csv", "\xef\xbb\xbf# by hand\n" + csv_of(runs) + "\r\n\n");
  EXPECT_EQ(csv_of(read_scaling_runs(dir / "runs.csv")), csv_of(runs));
  const auto problem = [&](const std::string& text) {
    write_text(dir / "runs.csv", text);
    return message_of<DataError>([&] { read_scaling_runs(dir / "runs.csv"); });
  };
  EXPECT_NE(problem("N,D,L\n").find("runs.csv:1: found \"N,D,L\", expected run,parameters"), std::string::npos);
  EXPECT_NE(problem(kScalingColumns + std::string("\na,1,-2,3,no\n")).find("runs.csv:2: "), std::string::npos);
}

TEST(ScalingReport, ShowsPredictionBeforeAndAfterTheRun) {
  std::vector<ScalingRun> runs = runs_of(kTrue);
  runs.back().loss *= 1.01;
  const ScalingFit fit = fit_scaling(runs, "runs", 20);
  EXPECT_EQ(prediction_table(runs, fit).rows.at(1).back(), "-0.99 %");
  const std::string picture = isoflop_picture(runs, fit);
  EXPECT_NE(picture.find("large, predicted: "), std::string::npos);
  EXPECT_NE(picture.find("C = 1.35e+14: lowest at N = "), std::string::npos) << picture;
  runs.back().loss = std::nan("");
  EXPECT_EQ(prediction_table(runs, fit).rows.at(1).at(5), "not yet");
}

TEST(ScalingStudy, HasPointsOfSeveralLengthsAndPointsToPredict) {
  // given
  const StudyFolder folder;
  const std::string text = with(kGoodStudy, "parallel.bucket_size\n    levels: [1000, 2000, 3000]",
                                "train.train_iters\n    levels: [4, 8]") +
                           "design: list\npoints: [{size: small}]\npredict: [{size: big, train_iters: 8}]\n";

  // when
  const Study study = folder.study(text);
  const Plan plan = make_plan(study);

  // then
  ASSERT_EQ(plan.points.size(), 2u);
  EXPECT_EQ(study.predict, (std::vector<Choice>{plan.points[1].choice}));
  EXPECT_EQ(plan.points[0].steps, 4);
  EXPECT_EQ(plan.points[1].steps, 8);
  EXPECT_EQ(plan.points[1].tokens, 8 * 2 * 16);
  EXPECT_EQ(std::ranges::count(plan.points[1].sets, "train.train_iters=8"), 1);
  EXPECT_GT(plan.points[1].parameters, 2 * plan.points[0].parameters);
  const auto dropped = make_plan(folder.study(with(text, "[4, 8]", "[1, 8]"))).dropped;
  ASSERT_EQ(dropped.size(), 1u);
  EXPECT_EQ(dropped[0].reason, "train.train_iters: 1 leaves none to measure after warmup_steps (1)");
}

}  // namespace
}  // namespace trivet
