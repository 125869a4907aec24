#include "tools/study/plan.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <map>
#include <set>

#include "engine/config/fields.h"
#include "tests/support/message_of.h"
#include "tests/tools/study/study_text.h"

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
    EXPECT_EQ(point.launch.ranks, 2);
    EXPECT_EQ(std::ranges::count(point.sets, "train.train_iters=4"), 1);
    EXPECT_EQ(std::ranges::count(point.sets, "comm.backend=thread"), 1);
  }
  EXPECT_EQ(ids.size(), 6u);
  EXPECT_GT(plan.points[1].memory_bytes, plan.points[0].memory_bytes);
  EXPECT_GT(plan.points[1].flops, plan.points[0].flops);
  EXPECT_EQ(plan.points[0].numbers, plan.points[2].numbers) << "they differ in the bucket size only";
  EXPECT_NE(plan.points[0].numbers, plan.points[1].numbers);
}

// The reference run for hidden communication turns all overlap switches off, whatever their defaults.
TEST(Plan, WithoutOverlapEverySwitchIsOff) {
  const std::map<std::string_view, std::string> legs = {
      {"overlap.overlap_p2p_comm", "parallel.pipeline_model_parallel_size: 2"},
      {"overlap.overlap_cp_comm", "parallel.context_parallel_size: 2"},
      {"overlap.overlap_grad_reduce", "parallel.data_parallel_sharding_strategy: optim"},
      {"overlap.overlap_param_gather", "parallel.data_parallel_sharding_strategy: optim"}};
  size_t switches = 0;
  for (const Field& field : fields()) {
    if (!field.name.starts_with("overlap.overlap_")) continue;
    ++switches;
    ASSERT_TRUE(legs.contains(field.name)) << field.name << ": which ranks does it need?";
    const StudyFolder folder;
    const Plan plan =
        make_plan(folder.study(fmt::format("name: one\nbase: run.yaml\nranks: 2\nsteps: 4\nset: {{{}}}\nfactors:\n  - "
                                           "{{key: {}, levels: [false, true]}}\n",
                                           legs.at(field.name), field.name)));
    ASSERT_EQ(plan.points.size(), 2u) << field.name;
    for (const Point& point : plan.points) EXPECT_EQ(point.without_overlap, plan.points[0].id) << field.name;
  }
  EXPECT_EQ(switches, legs.size());
}

// Like the studies that `trivet plan --study` writes for the shipped configurations.
TEST(Plan, FewStepsHaveNoWarmUp) {
  const auto warm_up_of = [](const std::string& config, const std::string& study) {
    const StudyFolder folder(config);
    const Plan plan = make_plan(folder.study(study));
    EXPECT_EQ(plan.points.size(), 6u) << "none dropped";
    return std::ranges::count(plan.points.at(0).sets, "optimizer.lr_warmup_iters=0");
  };
  EXPECT_EQ(warm_up_of(kGoodConfig + "optimizer:\n  lr_warmup_iters: 5\n", kGoodStudy), 1);
  EXPECT_EQ(warm_up_of(kGoodConfig + "optimizer:\n  lr_warmup_iters: 4\n", kGoodStudy), 0);
}

TEST(Plan, DropsWhatCannotRunAndSaysWhy) {
  // given: heads that three tensor-parallel ranks do not divide, and a point that repeats another under a new name
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
  ASSERT_EQ(plan.same.size(), 2u);
  EXPECT_EQ(plan.same[0].choice, (Choice{0, 1}));
  EXPECT_EQ(plan.same[0].point, 0u);
  EXPECT_EQ(plan.same[0].why, "");
  ASSERT_EQ(plan.dropped.size(), 2u);
  EXPECT_EQ(plan.dropped[0].choice, (Choice{2, 0}));
  EXPECT_NE(plan.dropped[0].reason.find("3 does not divide num_attention_heads (4)"), std::string::npos);
  EXPECT_EQ(plan.dropped[0].reason.find('\n'), std::string::npos);
}

TEST(Plan, DropsWhatDoesNotTrain) {
  const StudyFolder folder;
  const Plan plan =
      make_plan(folder.study("name: evaluations\nbase: run.yaml\nranks: 1\nset: {data.split: \"80,20,0\"}\n"
                             "factors:\n  - key: train.skip_train\n    levels: [false, true]\n"));
  EXPECT_EQ(plan.points.size(), 1u);
  ASSERT_EQ(plan.dropped.size(), 1u);
  EXPECT_NE(plan.dropped[0].reason.find("train.skip_train: a study measures training steps"), std::string::npos)
      << plan.dropped[0].reason;
}

TEST(Plan, DropsWhatThisMachineCannotHold) {
  const StudyFolder folder;
  const std::string big = with(kGoodStudy, "model.hidden_size: 16, model.num_layers: 4",
                               "model.hidden_size: 65536, model.num_layers: 4000");
  const Plan plan = make_plan(folder.study(big));
  EXPECT_EQ(plan.points.size(), 3u);
  ASSERT_EQ(plan.dropped.size(), 3u);
  EXPECT_NE(plan.dropped[0].reason.find("of memory on its 2 ranks, but this machine"), std::string::npos)
      << plan.dropped[0].reason;
}

TEST(Plan, ConditionsAloneLeaveNothingToCompare) {
  const StudyFolder folder;
  const std::string text =
      with(kGoodStudy, "key: parallel.bucket_size\n", "key: parallel.bucket_size\n    condition: true\n");
  const std::string all = with(text, "name: size\n", "name: size\n    condition: true\n");
  EXPECT_NE(message_of<ConfigError>([&] { make_plan(folder.study(all)); }).find("factors: all are conditions"),
            std::string::npos);
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

// A study continues under a version with more keys. (An id that changes here orphans all results.)
TEST(Plan, IdsAreTheSameInEveryVersion) {
  const StudyFolder folder;
  const Plan plan =
      make_plan(folder.study(with(kGoodStudy, "factors:", "set: {device.threads_per_rank: 1}\nfactors:")));
  EXPECT_EQ(plan.points[0].id, "4948a6c4cc2ce26f");
  EXPECT_EQ(plan.points[5].id, "35180c06613358de");
}

// The points of a round in order, without its baselines.
std::vector<size_t> without_baselines(const Plan& plan, const std::vector<PlannedRun>& runs) {
  std::vector<size_t> points;
  for (const PlannedRun& run : runs)
    if (plan.baselines[run.point] != run.point) points.push_back(run.point);
  return points;
}

TEST(RoundOrder, IsRandomSeededAndTheSameAgain) {
  // given
  const StudyFolder folder;
  const std::string text = with(kGoodStudy, "repeats: 2", "repeats: 200");
  const Study study = folder.study(text), other = folder.study(text + "seed: 2\n");
  const Plan plan = make_plan(study);

  // when
  std::set<std::vector<size_t>> orders;
  std::vector<int64_t> first(plan.points.size());
  for (int64_t round = 1; round <= 200; ++round) {
    const std::vector<size_t> order = without_baselines(plan, rest_of_round(study, plan, {}, round));
    EXPECT_EQ(std::set<size_t>(order.begin(), order.end()), (std::set<size_t>{1, 2, 3, 4, 5}));
    orders.insert(order);
    ++first[order[0]];
    EXPECT_EQ(order, without_baselines(plan, rest_of_round(study, plan, {}, round)));
  }

  // then: most of the 120 orders occur, and each point is first about equally often
  EXPECT_GT(orders.size(), 80u);
  for (size_t i = 1; i < first.size(); ++i) EXPECT_NEAR(static_cast<double>(first[i]), 40, 20);
  EXPECT_NE(without_baselines(plan, rest_of_round(study, plan, {}, 1)),
            without_baselines(plan, rest_of_round(other, plan, {}, 1)));
}

TEST(RoundOrder, BeginsAndEndsWithTheBaselineAndRunsItAgain) {
  // given: five points besides the baseline
  const StudyFolder folder;
  Study study = folder.study(with(kGoodStudy, "repeats: 2", "repeats: 3"));
  const Plan plan = make_plan(study);
  const auto pattern = [&](int64_t baseline_every) {
    study.baseline_every = baseline_every;
    std::string text;
    for (const PlannedRun& run : rest_of_round(study, plan, {}, 1)) text += run.point == 0 ? 'B' : '.';
    return text;
  };

  // then
  EXPECT_EQ(pattern(8), "B.....B");
  EXPECT_EQ(pattern(5), "B.....B");
  EXPECT_EQ(pattern(4), "B..B...B") << "blocks of nearly equal size";
  EXPECT_EQ(pattern(2), "B.B..B..B");
  EXPECT_EQ(pattern(1), "B.B.B.B.B.B");
  const std::vector<PlannedRun> runs = rest_of_round(study, plan, {}, 3);
  EXPECT_EQ(runs[0].copy, 1);
  EXPECT_EQ(runs[2].copy, 2);
  EXPECT_EQ(folder_of(plan.points[0], runs[0]), "runs/" + plan.points[0].id + "-3");
  EXPECT_EQ(folder_of(plan.points[0], runs[2]), "runs/" + plan.points[0].id + "-3.2");
}

TEST(RoundOrder, InterleavesConditionsInBlocksBetweenTheirOwnBaselines) {
  // given: the model's size is a condition, three points in each
  const StudyFolder folder;
  const Study study =
      folder.study(with(kGoodStudy, "repeats: 2", "repeats: 50") + "    condition: true\nbaseline_every: 1\n");
  const Plan plan = make_plan(study);
  EXPECT_EQ(plan.baselines, (std::vector<size_t>{0, 1, 0, 1, 0, 1}));

  // when
  int interleaved = 0;
  for (int64_t round = 1; round <= 50; ++round) {
    const std::vector<PlannedRun> runs = rest_of_round(study, plan, {}, round);
    int changes = 0;
    for (size_t i = 0; i + 1 < runs.size(); ++i) {
      const size_t own = plan.baselines[runs[i].point];
      changes += plan.baselines[runs[i + 1].point] != own;
      if (runs[i].point == own) continue;
      EXPECT_EQ(runs[i - 1].point, own);
      EXPECT_EQ(runs[i + 1].point, own);
    }
    interleaved += changes > 1;
  }

  // then: two thirds of the orders aabb abab abba … interleave the conditions
  EXPECT_NEAR(interleaved, 33, 15);
}

TEST(RoundOrder, FinishedRunsAndFailedPointsAreNotRunAgain) {
  // given: point 0 ran once, point 1 failed
  const StudyFolder folder;
  const Study study = folder.study();
  const Plan plan = make_plan(study);
  std::vector<RunRow> rows{row_of(plan.points[0], 1, 1), row_of(plan.points[1], 1, 1)};
  rows[1].outcome = RunEnd::failed;

  // when
  const auto rest = remaining_runs(study, plan, rows, 2);
  const auto with_retries = remaining_runs(study, plan, without_failures(rows), 2);

  // then: each round still begins and ends with the baseline
  const auto count = [](const auto& runs, size_t point) { return std::ranges::count(runs, point, &PlannedRun::point); };
  EXPECT_EQ(rest.size(), 12u);
  EXPECT_EQ(count(rest, 0), 4);
  EXPECT_EQ(rest[0].copy, 2);
  EXPECT_EQ(count(rest, 1), 0);
  EXPECT_EQ(with_retries.size(), 14u);
  EXPECT_EQ(count(with_retries, 1), 2);
}

TEST(RoundOrder, ARunWithoutABaselineInItsCallIsMadeAgain) {
  // given: round 1 was run by two calls, the second of which ended before its baseline
  const StudyFolder folder;
  const Study study = folder.study();
  const Plan plan = make_plan(study);
  std::vector<RunRow> rows{row_of(plan.points[0], 1, 1), row_of(plan.points[1], 1, 1), row_of(plan.points[2], 1, 1)};
  rows[0].call = rows[1].call = 1;
  rows[2].call = 2;

  // then
  const std::vector<size_t> rest = without_baselines(plan, rest_of_round(study, plan, rows, 1));
  EXPECT_EQ(std::set<size_t>(rest.begin(), rest.end()), (std::set<size_t>{2, 3, 4, 5}));
}

TEST(Plan, WhatHasNoEffectAtAPointIsLeftOutThere) {
  // given: bucket sizes under ZeRO-3, whose buckets are units of the model; alignment without a pipeline
  const StudyFolder folder;
  const Study study = folder.study(R"(name: inert
base: run.yaml
ranks: 2
factors:
  - key: parallel.data_parallel_sharding_strategy
    levels: [optim, optim_grads_params]
  - key: parallel.bucket_size
    levels: [1000, 2000, 3000]
  - name: link
    levels: {fast: {comm.data_link_gbps: 10}, slow: {comm.data_link_gbps: 1}}
)");

  // when
  const Plan plan = make_plan(study);

  // then
  EXPECT_TRUE(plan.dropped.empty()) << plan.dropped[0].reason;
  ASSERT_EQ(plan.points.size(), 3u * 2 + 2);
  ASSERT_EQ(plan.same.size(), 4u);
  EXPECT_EQ(plan.same[0].choice, (Choice{1, 1, 0}));
  EXPECT_EQ(plan.points[plan.same[0].point].choice, (Choice{1, 0, 0}));
  EXPECT_NE(plan.same[0].why.find("parallel.bucket_size: 2000 has no effect with optim_grads_params"),
            std::string::npos)
      << plan.same[0].why;
  EXPECT_EQ(plan.find(Choice{1, 2, 1}), plan.find(Choice{1, 0, 1}));
  const auto sets_bucket = [](const Point& point) {
    return std::ranges::any_of(point.sets, [](const auto& set) { return set.starts_with("parallel.bucket_size"); });
  };
  EXPECT_TRUE(sets_bucket(plan.points[0]));
  EXPECT_FALSE(sets_bucket(plan.points[6])) << "the run would refuse it";

  // A key that is set at every point but takes effect at none is still an error.
  const Plan none = make_plan(folder.study(R"(name: inert
base: run.yaml
ranks: 2
set: {parallel.data_parallel_sharding_strategy: optim_grads_params, parallel.bucket_size: 1000}
factors:
  - {key: data.prefetch, levels: [1, 2]}
)"));
  EXPECT_TRUE(none.points.empty());
  EXPECT_NE(none.dropped.at(0).reason.find("has no effect"), std::string::npos);
}

TEST(Plan, WhereTheBaselineCannotRunTheFirstPointTakesItsPlace) {
  const StudyFolder folder;
  const Plan plan = make_plan(folder.study(R"(name: without
base: run.yaml
ranks: 4
factors:
  - key: parallel.tensor_model_parallel_size
    levels: [3, 2, 1]
)"));
  EXPECT_FALSE(plan.baseline);
  EXPECT_EQ(plan.baselines, (std::vector<size_t>{0, 0}));
}

TEST(Plan, EqualPointsAreRunsOfTheirOwn) {
  // given
  const StudyFolder folder;
  const Study study = folder.study(kGoodStudy + "baseline: {bucket_size: 2000}\n");
  const Plan plan = make_plan(study);

  // when
  const Study equal = equal_points_of(study, plan);
  const Plan copies = make_plan(equal);

  // then
  EXPECT_EQ(equal.out, study.out + "/aa");
  EXPECT_EQ(equal.repeats, kFewestRounds) << "the study has 2";
  ASSERT_EQ(copies.points.size(), 6u);
  std::set<std::string> ids;
  for (const Point& point : copies.points) {
    ids.insert(point.id);
    EXPECT_EQ(point.sets, plan.points[*plan.baseline].sets);
    EXPECT_EQ(point.numbers, copies.points[0].numbers) << "their losses must agree";
  }
  EXPECT_EQ(ids.size(), 6u);
}

TEST(Plan, CostIsMeasured) {
  // given
  const StudyFolder folder;
  const Plan plan = make_plan(folder.study());
  const std::vector<RunRow> rows{row_of(plan.points[0], 1, 1), row_of(plan.points[0], 2, 3)};

  // then
  for (const double seconds : run_seconds(plan, {})) EXPECT_TRUE(std::isnan(seconds));
  const std::vector<double> cost = run_seconds(plan, rows);
  EXPECT_DOUBLE_EQ(cost[0], 20) << "the median of its runs";
  EXPECT_DOUBLE_EQ(cost[2], 20) << "as many FLOPs";
  EXPECT_DOUBLE_EQ(cost[1], 20 * plan.points[1].flops / plan.points[0].flops);
}

TEST(Plan, SaysThatTheBaseIsNotThere) {
  const StudyFolder folder;
  const Study study = folder.study(with(kGoodStudy, "base: run.yaml", "base: walk.yaml"));
  EXPECT_NE(message_of([&] { make_plan(study); }).find("walk.yaml does not exist"), std::string::npos);
}

}  // namespace
}  // namespace trivet
