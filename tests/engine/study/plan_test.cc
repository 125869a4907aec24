#include "engine/study/plan.h"

#include <algorithm>
#include <set>

#include "tests/engine/study/study_text.h"

namespace trivet {
namespace {

TEST(Points, GridHasAllAndTheLastFactorChangesFastest) {
  const Study study = parse_study(kGoodStudy, "study.yaml");
  EXPECT_EQ(design_points(study), (std::vector<Choice>{{0, 0}, {0, 1}, {1, 0}, {1, 1}, {2, 0}, {2, 1}}));
}

TEST(Points, OneAtATimeLeavesTheBaselineInOneFactor) {
  const Study study = parse_study(kGoodStudy + "design: one_at_a_time\nbaseline: {bucket_size: 2000}\n", "study.yaml");
  EXPECT_EQ(design_points(study), (std::vector<Choice>{{1, 0}, {0, 0}, {2, 0}, {1, 1}}));
}

TEST(Points, ListIsAsListedOnceWithTheBaselineInFront) {
  const std::string listed = "design: list\npoints: [{bucket_size: 3000, size: big}, {size: big}, {size: big}]\n";
  EXPECT_EQ(design_points(parse_study(kGoodStudy + listed, "study.yaml")), (std::vector<Choice>{{2, 1}, {0, 1}}));
  EXPECT_EQ(design_points(parse_study(kGoodStudy + listed + "baseline: {size: small}\n", "study.yaml")),
            (std::vector<Choice>{{0, 0}, {2, 1}, {0, 1}}));
}

TEST(Points, AreLimited) {
  std::string text = "name: huge\nbase: run.yaml\nfactors:\n";
  for (const char* key :
       {"model.num_layers", "model.hidden_size", "model.seq_length", "batch.global_batch_size", "parallel.bucket_size"})
    text += std::string("  - {key: ") + key + ", levels: [1, 2, 3, 4, 5, 6, 7, 8]}\n";
  const Study study = parse_study(text, "study.yaml");
  EXPECT_NE(message_of([&] { design_points(study); }).find("more than 10000 points"), std::string::npos);
}

TEST(Plan, ResolvesEachPoint) {
  // given
  const StudyFolder folder;
  const Study study = folder.study();

  // when
  const Plan plan = make_plan(study);

  // then
  ASSERT_EQ(plan.points.size(), 6u);
  EXPECT_EQ(plan.baseline, std::optional<size_t>(0));
  EXPECT_TRUE(plan.dropped.empty());
  std::set<std::string> ids;
  for (const Point& point : plan.points) {
    ids.insert(point.id);
    EXPECT_EQ(point.ranks, 2);
    EXPECT_EQ(std::ranges::count(point.sets, "train.train_iters=4"), 1);
    EXPECT_EQ(std::ranges::count(point.sets, "comm.backend=thread"), 1);
  }
  EXPECT_EQ(ids.size(), 6u);
  EXPECT_GT(plan.points[1].memory_bytes, plan.points[0].memory_bytes);
  EXPECT_GT(plan.points[1].flops, plan.points[0].flops);
  EXPECT_EQ(plan.points[0].numbers, plan.points[2].numbers) << "they differ in the bucket size only";
  EXPECT_NE(plan.points[0].numbers, plan.points[1].numbers);
}

TEST(Plan, DropsWhatCannotRunAndSaysWhy) {
  // given: heads that three tensor-parallel ranks do not divide, and a point that is another one under another name
  const StudyFolder folder;
  const std::string text = R"(name: dropped
base: run.yaml
ranks: 4
factors:
  - key: parallel.tensor_model_parallel_size
    levels: [1, 2, 3]
  - name: ffn
    levels: {auto: {}, same: {model.ffn_hidden_size: 32}}
)";

  // when
  const Plan plan = make_plan(folder.study(text));

  // then
  EXPECT_EQ(plan.points.size(), 2u);
  ASSERT_EQ(plan.dropped.size(), 4u);
  EXPECT_EQ(plan.dropped[0].reason, "is the same run as tensor_model_parallel_size=1, ffn=auto");
  EXPECT_EQ(plan.dropped[2].choice, (Choice{2, 0}));
  EXPECT_NE(plan.dropped[2].reason.find("3 does not divide num_attention_heads (4)"), std::string::npos);
  EXPECT_EQ(plan.dropped[2].reason.find('\n'), std::string::npos);
}

TEST(Plan, DropsWhatThisMachineCannotHold) {
  const StudyFolder folder;
  const std::string big = with(kGoodStudy, "model.hidden_size: 16, model.num_layers: 4",
                               "model.hidden_size: 65536, model.num_layers: 4000");
  const Plan plan = make_plan(folder.study(big));
  EXPECT_EQ(plan.points.size(), 3u);
  ASSERT_EQ(plan.dropped.size(), 3u);
  EXPECT_NE(plan.dropped[0].reason.find("of memory on its 2 ranks, but the "), std::string::npos)
      << plan.dropped[0].reason;
}

TEST(Plan, IdsFollowWhatIsRunNotHowItIsCalled) {
  // given
  const StudyFolder folder;
  const Plan plan = make_plan(folder.study());
  std::string other = with(kGoodStudy, "levels: [1000, 2000, 3000]", "levels: {c: 3_000, b: 2e3}");
  other = with(other, "name: size", "name: shape");
  other = with(other, "repeats: 2", "repeats: 7");

  // when
  const Plan again = make_plan(folder.study(other));
  const Plan longer = make_plan(folder.study(with(kGoodStudy, "steps: 4", "steps: 5")));

  // then
  ASSERT_EQ(again.points.size(), 4u);
  EXPECT_EQ(again.points[0].id, plan.points[4].id);
  EXPECT_EQ(again.points[3].id, plan.points[3].id);
  EXPECT_NE(longer.points[0].id, plan.points[0].id);
}

TEST(Plan, RoundsGoForthAndBack) {
  const StudyFolder folder;
  const Study study = folder.study();
  const Plan plan = make_plan(study);
  const auto runs = remaining_runs(study, plan, {});
  ASSERT_EQ(runs.size(), 12u);
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(runs[i].point, i);
    EXPECT_EQ(runs[i].repeat, 1);
    EXPECT_EQ(runs[6 + i].point, 5 - i);
    EXPECT_EQ(runs[6 + i].repeat, 2);
  }
}

TEST(Plan, FinishedRunsAndFailedPointsAreNotRunAgain) {
  // given: point 0 ran once, point 1 failed
  const StudyFolder folder;
  const Study study = folder.study();
  const Plan plan = make_plan(study);
  std::vector<RunRow> rows{row_of(plan.points[0], 1, 1), row_of(plan.points[1], 1, 1)};
  rows[1].outcome = RunEnd::failed;

  // when
  const auto rest = remaining_runs(study, plan, rows);
  const auto with_retries = remaining_runs(study, plan, without_failures(rows));

  // then
  const auto count = [](const auto& runs, size_t point) { return std::ranges::count(runs, point, &PlannedRun::point); };
  EXPECT_EQ(rest.size(), 9u);
  EXPECT_EQ(count(rest, 0), 1);
  EXPECT_EQ(count(rest, 1), 0);
  EXPECT_EQ(with_retries.size(), 11u);
  EXPECT_EQ(count(with_retries, 1), 2);
}

TEST(Plan, CostIsMeasuredOrBoundedAndSaysWhich) {
  // given
  const StudyFolder folder;
  const Study study = folder.study();
  const Plan plan = make_plan(study);
  const std::vector<RunRow> rows{row_of(plan.points[0], 1, 1), row_of(plan.points[0], 2, 3)};

  // when
  const CostPrediction bound = predict_cost(study, plan, {}, 2);
  const CostPrediction cost = predict_cost(study, plan, rows, 2);

  // then
  EXPECT_TRUE(bound.at_least);
  EXPECT_DOUBLE_EQ(bound.seconds[1], plan.points[1].flops / 2e12);
  EXPECT_FALSE(cost.at_least);
  EXPECT_DOUBLE_EQ(cost.seconds[0], 20) << "the median of its runs";
  EXPECT_DOUBLE_EQ(cost.seconds[2], 20) << "as many FLOPs";
  EXPECT_DOUBLE_EQ(cost.seconds[1], 20 * plan.points[1].flops / plan.points[0].flops);
  EXPECT_NE(cost.source.find("1 of 6 points"), std::string::npos);
}

TEST(Plan, SaysThatTheBaseIsNotThere) {
  const StudyFolder folder;
  const Study study = folder.study(with(kGoodStudy, "base: run.yaml", "base: walk.yaml"));
  EXPECT_NE(message_of([&] { make_plan(study); }).find("walk.yaml is not there"), std::string::npos);
}

}  // namespace
}  // namespace trivet
