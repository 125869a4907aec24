// Runs that only evaluate a checkpoint (train.skip_train), and the test set at the end of a run.
#include <filesystem>
#include <gtest/gtest.h>

#include "engine/checkpoint/open_checkpoint.h"
#include "engine/train/inference.h"
#include "engine/train/run.h"
#include "tests/engine/checkpoint/runs.h"
#include "tests/support/message_of.h"
#include "tests/support/split_device.h"
#include "tests/support/temp_dir.h"
#include "tests/support/training.h"

namespace trivet::test {
namespace {

struct Evaluated {
  std::map<int64_t, double> validation, test;  // loss by step
  bool operator==(const Evaluated&) const = default;
};

Evaluated evaluated(const std::string& run_dir) {
  Evaluated found;
  for (const auto& json : records_of(run_dir)) {
    if (json.contains("validation_loss")) found.validation[json["step"]] = json["validation_loss"];
    if (json.contains("test_loss")) found.test[json["step"]] = json["test_loss"];
  }
  return found;
}

Config evaluating_run(const std::string& run_dir) {
  Config config = small_run(run_dir);
  config.data.split = {70, 15, 15};
  config.train.train_iters = 4;
  config.train.eval_interval = 2;
  config.train.eval_iters = 3;
  config.checkpoint.save_interval = 2;
  return config;
}

Evaluated evaluate_checkpoint(Config config, const std::string& checkpoint, const std::string& run_dir, int ranks,
                              RunOptions options = {}) {
  config.train.skip_train = true;
  config.train.run_dir = run_dir;
  options.resume = checkpoint;
  EXPECT_EQ(run(config, ranks, options).exit_code, 0);
  return evaluated(run_dir);
}

class SkipTrain : public testing::TestWithParam<LayoutCase> {};

TEST_P(SkipTrain, GivesTheNumbersOfTheRun) {
  // given: a run under this layout
  const TempDir dir;
  Config alone = evaluating_run(dir / "run");
  GetParam().set(alone);
  const Config config = cut(alone, GetParam().cut);
  ASSERT_EQ(run(config, GetParam().ranks()).exit_code, 0);
  const Evaluated of_run = evaluated(dir / "run");
  ASSERT_EQ(of_run.validation.size(), 2u);
  for (const int64_t step : {2, 4}) {
    // when: its checkpoint is evaluated under the same layout, and on one rank
    const std::string checkpoint = step_path(dir / "run", step);
    const Evaluated same = evaluate_checkpoint(config, checkpoint, dir / "same", GetParam().ranks());
    const Evaluated one = evaluate_checkpoint(alone, checkpoint, dir / "one", 1);
    // then: the same bits under the same layout; equal up to rounding on one rank
    EXPECT_EQ(same.validation.at(step), of_run.validation.at(step));
    EXPECT_NEAR(one.validation.at(step), same.validation.at(step), 2e-5 * same.validation.at(step));
    EXPECT_NEAR(one.test.at(step), same.test.at(step), 2e-5 * same.test.at(step));
    EXPECT_NE(same.test.at(step), same.validation.at(step));
  }
  EXPECT_EQ(evaluated(dir / "same").test.at(4), of_run.test.at(4));
}

INSTANTIATE_TEST_SUITE_P(Layouts, SkipTrain,
                         testing::Values(LayoutCase{"one_with_a_ramp",
                                                    {},
                                                    [](Config& config) {
                                                      config.batch.rampup_batch_size = {{4, 4, 8}};
                                                      config.train.train_samples = 4 + 4 + 8 + 8;
                                                      config.optimizer.lr_warmup_iters = 0;
                                                      config.optimizer.lr_decay_iters.reset();
                                                    }},
                                         LayoutCase{"t2_p2_d2", {.t = 2, .p = 2, .d = 2, .sequence_parallel = true}},
                                         LayoutCase{"interleaved", {.p = 2, .schedule = "interleaved", .v = 2}},
                                         LayoutCase{"zb_v_zero1",
                                                    {.p = 2, .d = 2, .schedule = "zb-v", .strategy = "optim"}},
                                         LayoutCase{"zero2", {.d = 2, .strategy = "optim_grads"}},
                                         LayoutCase{"zero3", {.d = 4, .strategy = "optim_grads_params"}},
                                         LayoutCase{"llama_recompute",
                                                    {.t = 2, .d = 2, .strategy = "optim_grads_params"},
                                                    [](Config& config) {
                                                      as_llama(config);
                                                      set_key(config, "model.recompute_granularity", "selective");
                                                    }}),
                         [](const auto& info) { return info.param.name; });

TEST(SkipTrainBf16, GivesTheNumbersOfTheRun) {
  for (const Fp8 fp8 : {Fp8::none, Fp8::hybrid}) {
    const TempDir dir;
    const Cut how = fp8 == Fp8::none ? Cut{.p = 2, .d = 2, .strategy = "optim_grads_params"}
                                     : Cut{.t = 2, .p = 2, .sequence_parallel = true};
    Config config = cut(evaluating_run(dir / "run"), how);
    config.precision.dtype = DType::bf16;
    config.precision.fp8 = fp8;
    config.train.full_validation = true;
    config.train.eval_iters = TrainConfig().eval_iters;
    ASSERT_EQ(run(config, 4).exit_code, 0);
    const Evaluated of_run = evaluated(dir / "run");
    const Evaluated again = evaluate_checkpoint(config, step_path(dir / "run", 4), dir / "again", 4);
    EXPECT_EQ(again.validation.at(4), of_run.validation.at(4));
    EXPECT_EQ(again.test, of_run.test);
    // and on a device whose memory the host cannot read
    RunOptions split;
    split.make_backend = make_split_backend;
    EXPECT_EQ(evaluate_checkpoint(config, step_path(dir / "run", 4), dir / "device", 4, split), again);
  }
}

// A model that is opened to generate keeps its run's precision, and so its bits; but FP8 is refused.
TEST(Inference, HasTheLogitsOfTheRunsOwnConfiguration) {
  for (const auto& [dtype, fp8] :
       {std::pair{DType::f32, Fp8::none}, {DType::bf16, Fp8::none}, {DType::bf16, Fp8::hybrid}}) {
    const TempDir dir;
    Config config = small_run(dir / "run");
    config.precision.dtype = dtype;
    config.precision.fp8 = fp8;
    config.train.train_iters = 2;
    ASSERT_EQ(run(config, 1).exit_code, 0);
    const OpenCheckpoint checkpoint = open_checkpoint(step_path(dir / "run", 2));
    const std::vector<int32_t> text{3, 10, 31, 4, 4, 60};
    std::vector<std::vector<float>> logits;
    for (const bool own : {false, true})
      run_thread_ranks(1, [&](Communicator& world) {
        LoadedConfig loaded = inference_config(checkpoint, 1, 1, {});
        if (own) loaded.config.precision = config.precision;
        const Layout layout = resolve(loaded, {.world_size = 1});
        const auto model = open_model(loaded.config, layout, world, checkpoint, std::ssize(text));
        logits.push_back(model->next_token_logits(text));
      });
    EXPECT_EQ(logits[0], logits[1]) << name_of(dtype);
    EXPECT_THROW(
        inference_config(checkpoint, 1, 1, std::vector<std::string>{"precision.dtype=bf16", "precision.fp8=e4m3"}),
        ConfigError);
  }
}

TEST(SkipTrain, TakesWeightsAndOneMicroBatchsActivationsOnly) {
  Config config = cut(tiny_config(), {.p = 2, .schedule = "interleaved", .v = 2});
  const auto bytes = [&](bool skips) {
    config.train.skip_train = skips;
    const Resolved run = resolved(config, 2);
    std::map<std::string, int64_t> bytes;
    run_thread_ranks(2, [&](Communicator& world) {
      TinyData data(run.config, batch_plan_of(run.config, run.layout, world.rank()));
      Trainer trainer(run.config, run.layout, world, skips ? nullptr : &data.train);
      const MemoryPlan taken = trainer.state().memory();
      EXPECT_EQ(taken.items, plan_memory(run.config, run.layout, trainer.mesh().at).items);
      if (world.rank() == 0)
        for (const MemoryItem& item : taken.items) bytes[item.name] = item.bytes;
    });
    return bytes;
  };
  auto trains = bytes(false), evaluates = bytes(true);
  EXPECT_EQ(evaluates["weights"], trains["weights"]);
  EXPECT_EQ(evaluates["gradients"] + evaluates["optimizer"], 0);
  EXPECT_GT(trains["gradients"] * trains["optimizer"], 0);
  EXPECT_LT(evaluates["activations"], trains["activations"] / 2);
}

TEST(SkipTrain, AddsToTheRecordsOfItsRunAndChangesNothingElse) {
  // given: a run that has not finished
  const TempDir dir;
  Config config = evaluating_run(dir / "run");
  RunOptions stops;
  stops.stop_signal = stop_after(3 + 3);  // in the third step
  ASSERT_EQ(run(config, 1, stops).exit_code, 75);
  const std::string resolved_then = read_text(dir / "run/config.resolved.yaml");
  const std::string outcome_then = read_text(dir / "run/outcome.json");
  const auto records_then = records_of(dir / "run");
  // when: its latest checkpoint and an earlier one are evaluated, under other schedules, in the run's own folder
  Config evaluates = cut(config, {.p = 2});
  evaluates.train.skip_train = true;
  evaluates.train.trace = true;
  evaluates.optimizer.lr *= 2;
  EXPECT_EQ(run(evaluates, 2).exit_code, 0);
  RunOptions earlier;
  earlier.resume = step_path(dir / "run", 2);
  EXPECT_EQ(run(evaluates, 2, earlier).exit_code, 0);
  // then: four more records, and nothing else
  auto records = records_of(dir / "run");
  ASSERT_EQ(records.size(), records_then.size() + 4);
  const std::vector<nlohmann::json> added(records.end() - 4, records.end());
  records.resize(records_then.size());
  EXPECT_EQ(records, records_then);
  EXPECT_EQ(added[0]["step"], 3);
  EXPECT_EQ(added[2]["step"], 2);
  for (size_t i = 0; i < 4; ++i) EXPECT_TRUE(added[i].contains(i % 2 == 0 ? "validation_loss" : "test_loss"));
  EXPECT_EQ(read_text(dir / "run/config.resolved.yaml"), resolved_then);
  EXPECT_FALSE(std::filesystem::exists(dir / "run/trace.json"));
  EXPECT_EQ(CheckpointStore(dir / "run/checkpoints").steps(), (std::vector<int64_t>{3, 2}));
  EXPECT_EQ(added[2]["checkpoint"], step_path(dir / "run", 2));
  EXPECT_EQ(read_text(dir / "run/outcome.json"), outcome_then);
  EXPECT_EQ(parse_json(read_text(dir / "run/evaluation/outcome.json"))["status"], "done");
  // and the run continues
  EXPECT_EQ(run(config, 1).exit_code, 0);
  expect_each_step_once(dir / "run", 4);
}

TEST(SkipTrain, EndsWhereItIsAskedToAndSavesNothing) {
  const TempDir dir;
  Config config = evaluating_run(dir / "run");
  run(config, 1);
  config.train.skip_train = true;
  RunOptions options;
  options.stop_signal = stop_after(2);
  const RunResult stopped = run(config, 1, options);
  EXPECT_EQ(stopped.exit_code, 128 + SIGTERM);
  EXPECT_NE(stopped.output.find("nothing is saved, as train.skip_train is true"), std::string::npos) << stopped.output;
  EXPECT_EQ(parse_json(read_text(dir / "run/evaluation/outcome.json"))["status"], "stopped");
}

TEST(SkipTrain, NeedsACheckpointAndSomethingToEvaluateOn) {
  const TempDir dir;
  Config config = evaluating_run(dir / "run");
  config.train.skip_train = true;
  EXPECT_EQ(message_of([&] { run(config, 1); }),
            fmt::format("train.skip_train: found no checkpoint in {}, expected one to evaluate; --resume PATH names "
                        "another, and trivet checkpoint convert makes one of weights of Hugging Face",
                        dir / "run/checkpoints"));
  EXPECT_FALSE(std::filesystem::exists(dir / "run"));
}

TEST(SkipTrain, TakesASetOfItsOwn) {
  // given: a run of one dataset
  const TempDir dir;
  Config config = evaluating_run(dir / "run");
  run(config, 1);
  // when: the run is only evaluated, on all documents of a dataset, without an interval or a training length
  config.data.split = {0, 0, 1};
  config.train.eval_interval = config.train.train_iters = 0;
  config.optimizer.lr_decay_iters.reset();
  config.optimizer.lr_warmup_iters = 0;
  config.checkpoint.save_interval = 0;
  config.train.full_validation = true;
  config.train.eval_iters = TrainConfig().eval_iters;
  const Evaluated all = evaluate_checkpoint(config, dir / "run", dir / "all", 1);
  // then
  EXPECT_TRUE(all.validation.empty());
  const IndexedDataset dataset(config.data.path);
  EXPECT_EQ(records_of(dir / "all").at(0)["tokens"], dataset.tokens() - 1);
  // and its resolved configuration is read back
  EXPECT_EQ(to_yaml(load_config(dir / "all/config.resolved.yaml").config), read_text(dir / "all/config.resolved.yaml"));
  // and the same with a path for each set
  config.data.split = DataConfig().split;
  config.data.test_path = config.data.valid_path = config.data.train_path = config.data.path;
  config.data.path = "";
  const Evaluated two = evaluate_checkpoint(config, dir / "run", dir / "two", 1);
  EXPECT_EQ(two.test, all.test);
  EXPECT_EQ(two.validation, all.test);
}

// ---- the first samples

TEST(EvalSamples, AreTheFirstOfTheSetOnEveryLayout) {
  const TempDir dir;
  Config config = evaluating_run(dir / "run");
  config.data.split = {80, 20, 0};
  run(config, 1);
  config.train.eval_iters = TrainConfig().eval_iters;
  const auto evaluate = [&](const Cut& how, const std::string& name, int64_t samples) {
    config.train.eval_samples = samples;
    config.train.full_validation = samples == 0;
    evaluate_checkpoint(cut(config, how), dir / "run", dir / name, how.ranks());
    return records_of(dir / name).back();
  };
  // all samples: the whole set, whose last sample is partial
  const auto whole = evaluate({}, "whole", 0);
  const int64_t all = whole["samples"], labels = whole["tokens"];
  ASSERT_NE(labels % 16, 0);
  ASSERT_GT(all, 13);
  const auto first = evaluate({}, "all", all);
  EXPECT_EQ(first["validation_loss"], whole["validation_loss"]);
  EXPECT_EQ(first["tokens"], labels);
  // some samples: up to one global batch of eight, and more than one batch
  for (const int64_t samples : kMatrixStride == 1 ? std::vector<int64_t>{1, 8, 13} : std::vector<int64_t>{13}) {
    const auto one = evaluate({}, "one", samples);
    EXPECT_EQ(one["samples"], samples);
    EXPECT_EQ(one["tokens"], 16 * samples);
    const double loss = one["validation_loss"];
    for (const Cut& how : {Cut{.t = 2, .p = 2, .d = 2, .sequence_parallel = true}, Cut{.p = 2, .schedule = "zb-v"},
                           Cut{.d = 2, .strategy = "optim_grads_params", .c = 2}})
      EXPECT_NEAR(evaluate(how, "cut", samples)["validation_loss"].get<double>(), loss, 2e-5 * loss) << samples;
  }
  // more samples than the set contains
  EXPECT_EQ(
      message_of([&] { evaluate({}, "none", all + 1); }),
      fmt::format("train.eval_samples: found {}, but the validation set has {} samples; expected at most that, or "
                  "train.full_validation",
                  all + 1, all));
}

// ---- the test set of a run

class TestSet : public testing::TestWithParam<int> {
};  // which batch of the evaluations at step 4 is interrupted; 0: none

TEST_P(TestSet, IsEvaluatedOnceAtTheEnd) {
  const TempDir dir;
  Config config = evaluating_run(dir / "straight");
  run(config, 1);
  const Evaluated straight = evaluated(dir / "straight");
  ASSERT_EQ(straight.test.size(), 1u);
  ASSERT_TRUE(straight.test.contains(4));
  config.train.run_dir = dir / "stopped";
  if (GetParam() > 0) {
    RunOptions options;
    options.stop_signal = stop_after(2 + 3 + 2 + GetParam());
    EXPECT_EQ(run(config, 1, options).exit_code, 75);
    EXPECT_TRUE(evaluated(dir / "stopped").test.empty());
  }
  for (int again = 0; again < 2; ++again) EXPECT_EQ(run(config, 1).exit_code, 0);
  EXPECT_EQ(evaluated(dir / "stopped"), straight);
  int64_t evaluations = 0;
  for (const auto& json : records_of(dir / "stopped")) evaluations += json.value("event", "") == "eval";
  EXPECT_EQ(evaluations, 3);
}
INSTANTIATE_TEST_SUITE_P(Interrupted, TestSet, testing::Values(0, 1, 5));

}  // namespace
}  // namespace trivet::test
