#include "tools/study/study_file.h"

#include <filesystem>

#include "engine/config/fields.h"
#include "tests/tools/study/study_text.h"
#include "tools/study/launch.h"

namespace trivet {
namespace {

std::string problem_of(const std::string& text) {
  return message_of([&] { parse_study(text, "study.yaml"); });
}

TEST(StudyFile, IsRead) {
  // given
  const std::string text = R"(name: a-study_1
base: ../run.yaml
ranks: 4
launcher: mpirun
mpirun_arguments: [--bind-to, core]
set: {model.num_layers: 8}
design: one_at_a_time
factors:
  - key: parallel.bucket_size
    levels: [1e6, 2_000]
  - name: link
    levels:
      none:
      slow: {overlap.p2p_receive_ahead: 4, ranks: 2}
    changes_numbers: false
  - key: overlap.overlap_p2p_comm
    name: p2p
    levels: {with: true, without: false}
baseline: {parallel.bucket_size: 2_000, p2p: without}
repeats: 5
baseline_every: 3
seed: 17
steps: 20
warmup_steps: 4
budget_minutes: 1.5
timeout_minutes: 3
trace: false
metric: tokens_per_second
agree: 2e-5
out: elsewhere
)";

  // when
  const Study study = parse_study(text, "folder/studies/study.yaml");

  // then
  EXPECT_EQ(study.name, "a-study_1");
  EXPECT_EQ(study.base, "folder/run.yaml");
  EXPECT_EQ(launch_of(study, {0, 0, 0}), (Launch{4, Launcher::mpirun, {"--bind-to", "core"}}));
  EXPECT_EQ(study.design, Design::one_at_a_time);
  ASSERT_EQ(study.factors.size(), 3u);
  EXPECT_EQ(study.factors[0].name, "bucket_size");
  EXPECT_EQ(study.factors[0].levels[1].label, "2_000");
  EXPECT_FALSE(study.factors[0].changes_numbers) << "a bucket size changes no bit";
  EXPECT_EQ(study.factors[1].levels[0].settings.size(), 0u);
  EXPECT_EQ(study.factors[1].levels[1].settings[1].key, "ranks");
  EXPECT_FALSE(study.factors[1].changes_numbers) << "the file says so, though ranks do";
  EXPECT_EQ(study.factors[2].levels[1].settings[0].value, "false");
  EXPECT_EQ(study.baseline(), (Choice{1, 0, 1}));
  EXPECT_EQ(study.repeats, 5);
  EXPECT_FALSE(study.auto_repeats);
  EXPECT_EQ(study.baseline_every, 3);
  EXPECT_EQ(study.seed, 17);
  EXPECT_EQ(study.steps, 20);
  EXPECT_EQ(study.warmup_steps, 4);
  EXPECT_EQ(study.budget_minutes, 1.5);
  EXPECT_EQ(study.timeout_minutes, 3);
  EXPECT_FALSE(study.trace);
  EXPECT_EQ(study.metric, "tokens_per_second");
  EXPECT_EQ(study.tolerance, 2e-5);
  EXPECT_EQ(study.out, "elsewhere");
}

TEST(StudyFile, TakesTheListsThatAFileOfARunTakes) {
  const Study study = StudyFolder().study(with(kGoodStudy, "parallel.bucket_size\n    levels: [1000, 2000, 3000]",
                                               "data.path\n    levels: [[0.3, a, 0.7, b], corpus]"));
  EXPECT_EQ(study.factors[0].levels[0].settings[0].value, "0.3,a,0.7,b");
}

TEST(StudyFile, NamesWhatItDoesNotKnowAndWhatIsNear) {
  EXPECT_EQ(problem_of(with(kGoodStudy, "repeats:", "repeat:")),
            "study.yaml:6: repeat: unknown key - did you mean repeats?");
  EXPECT_EQ(problem_of(with(kGoodStudy, "parallel.bucket_size", "parallel.bucket_sise")),
            "study.yaml:8: factors.parallel.bucket_sise: unknown key - did you mean parallel.bucket_size?");
  EXPECT_EQ(problem_of(with(kGoodStudy, "model.num_layers: 4", "parallel.num_layers: 4")),
            "study.yaml:13: factors.size.big.parallel.num_layers: unknown key - did you mean model.num_layers?");
  EXPECT_EQ(problem_of(kGoodStudy + "baseline: {sise: big}\n"),
            "study.yaml:14: baseline.sise: unknown factor - did you mean size?");
  EXPECT_EQ(problem_of(kGoodStudy + "baseline: {size: bigg}\n"),
            "study.yaml:14: baseline.size.bigg: unknown level - did you mean big?");
  EXPECT_EQ(problem_of(with(kGoodStudy, "levels: [1000", "level: [1000")),
            "the configuration has 2 problems:\n"
            "study.yaml:9: factors.level: unknown key - did you mean levels?\n"
            "study.yaml:8: factors.bucket_size: levels is required");
}

TEST(StudyFile, RefusesValuesThatNoRunTakes) {
  EXPECT_EQ(
      problem_of(with(kGoodStudy, "[1000, ", "[0, ")),
      "study.yaml:9: factors.bucket_size.parallel.bucket_size: found 0, expected an integer of at least 1, or auto");
  EXPECT_EQ(problem_of(kGoodStudy + "set: {train.run_dir: here}\n"),
            "study.yaml:14: set.train.run_dir: cannot be set here: each run gets its own folder");
  EXPECT_EQ(problem_of(kGoodStudy + "set: {ranks: 2}\n").substr(0, 39), "study.yaml:14: set.ranks: unknown key; ");
  EXPECT_EQ(problem_of(kGoodStudy + "set: {parallel.bucket_size: 5}\n"),
            "study.yaml: set.parallel.bucket_size: is also set by a factor: leave one of them out");
  EXPECT_EQ(problem_of(with(kGoodStudy, "model.num_layers: 4", "parallel.bucket_size: 4")),
            "study.yaml:10: factors.size: parallel.bucket_size is also set by the factor bucket_size");
  EXPECT_EQ(problem_of(with(kGoodStudy, "[1000, 2000", "[1000, 1000")),
            "study.yaml:9: factors.bucket_size: the level \"1000\" appears twice");
  EXPECT_EQ(problem_of(with(kGoodStudy, "warmup_steps: 1", "warmup_steps: 4")),
            "study.yaml: warmup_steps: 4 leaves none of the 4 steps to measure");
  EXPECT_EQ(problem_of(kGoodStudy + "points: [{size: big}]\n"), "study.yaml:14: points: needs design list, found grid");
  EXPECT_EQ(problem_of(kGoodStudy + "agree: nearly\n"),
            "study.yaml:14: agree: found \"nearly\", expected bitwise, off, or a relative tolerance from 0 to below 1");
  EXPECT_EQ(problem_of(with(kGoodStudy, "name: good", "name: ../good")),
            "study.yaml:1: name: found \"../good\", expected up to 100 letters, digits, - and _");
}

TEST(StudyFile, KnowsTheMetricsOfRuns) {
  EXPECT_EQ(problem_of(kGoodStudy + "metric: step_second\n"),
            "study.yaml:14: metric.step_second: unknown metric - did you mean step_seconds?");
  EXPECT_NE(problem_of(kGoodStudy + "responses: [memory]\n").find("responses.memory: unknown metric; expected one of "),
            std::string::npos);
  const Study study =
      parse_study(kGoodStudy + "metric: tokens_per_second\nresponses: [mfu, tokens_per_second, memory_bytes]\n", "s");
  EXPECT_EQ(study.responses, (std::vector<std::string>{"tokens_per_second", "mfu", "memory_bytes"}));
}

TEST(StudyFile, RepeatsAreANumberOrAuto) {
  const auto repeating = [](const std::string& lines) { return with(kGoodStudy, "repeats: 2", lines); };
  const Study study = parse_study(repeating("repeats: auto\nbudget_minutes: 3\ninterval_width: 0.05"), "study.yaml");
  EXPECT_TRUE(study.auto_repeats);
  EXPECT_EQ(study.repeats, 1000);
  EXPECT_EQ(study.interval_width, 0.05);
  EXPECT_EQ(problem_of(repeating("repeats: auto")),
            "study.yaml: budget_minutes: is required with repeats: auto: the intervals may never become that narrow");
  EXPECT_EQ(problem_of(repeating("repeats: 0")),
            "study.yaml:6: repeats: found \"0\", expected auto, or a number of rounds from 1 to 1000");
  EXPECT_EQ(problem_of(repeating("repeats: 7\ninterval_width: 0.05")),
            "study.yaml:7: interval_width: needs repeats: auto, which ends when all intervals are narrower");
  EXPECT_EQ(problem_of(repeating("repeats: auto\nbudget_minutes: 3\ninterval_width: 2")),
            "study.yaml:8: interval_width: found \"2\", expected a fraction above 0 and below 1, such as 0.02");
}

TEST(StudyFile, RefusesWhatIsNoStudy) {
  EXPECT_EQ(problem_of(""), "study.yaml: expected a map with name, base and factors");
  EXPECT_EQ(problem_of("name: [a"), "study.yaml:1: a '[' is not closed before this; expected ',' or ']'");
  EXPECT_EQ(problem_of("name: a\nname: b\nbase: x\nfactors: 7\n"),
            "the configuration has 2 problems:\n"
            "study.yaml:2: name: duplicate key, first given at study.yaml:1\n"
            "study.yaml:4: factors: expected a list of factors, each with key or name, and levels");
}

TEST(StudyFile, IsAsStrictAsARunsFile) {
  EXPECT_EQ(problem_of(with(kGoodStudy, "ranks: 2", "ranks: &r 2")),
            "study.yaml:3: ranks: anchors (&name) are not supported");
  EXPECT_EQ(problem_of(with(kGoodStudy, "small: {}", "small: !!map {}")),
            "study.yaml:12: factors.size.small: tags are not supported, found \"tag:yaml.org,2002:map\"");
}

TEST(StudyFile, TellsTimeFromNumbers) {
  for (const char* key : {"overlap.overlap_p2p_comm", "comm.link_gbps", "parallel.bucket_size", "launcher"})
    EXPECT_TRUE(is_time_only(key)) << key;
  for (const char* key : {"overlap.tp_comm_overlap", "parallel.pipeline_schedule", "ranks", "optimizer.lr"})
    EXPECT_FALSE(is_time_only(key)) << key;
}

}  // namespace
}  // namespace trivet
