// Runs that are saved, stopped and resumed: in any layout, bit for bit, and when something is wrong.
#include <algorithm>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <map>
#include <spawn.h>
#include <sstream>
#include <sys/wait.h>
#include <thread>

#include "base/json.h"
#include "engine/checkpoint/open_checkpoint.h"
#include "engine/checkpoint/shard.h"
#include "engine/config/load.h"
#include "engine/train/checkpointing.h"
#include "engine/train/run.h"
#include "parallel/comm/world.h"
#include "tests/support/message_of.h"
#include "tests/support/slice_index.h"
#include "tests/support/temp_dir.h"
#include "tests/support/training.h"
#include "tests/support/where.h"

extern char** environ;

namespace trivet::test {
namespace {

constexpr int kSteps = std::min(2 * kMatrixSteps, 20);  // an epoch of the tiny dataset ends in the 17th

Config small_run(const std::string& run_dir) {
  Config config = tiny_config();
  config.data.path = tiny_dataset_prefix();
  config.data.split = {80, 20, 0};
  config.train.train_iters = kSteps;
  config.train.run_dir = run_dir;
  config.checkpoint.save_interval = 1000;
  config.device.peak_tflops = 1;  // not measured
  return config;
}

struct RunResult {
  std::vector<double> losses;             // [step], of this start of the program
  std::map<int64_t, double> evaluations;  // likewise, by step
  std::string output;
  int exit_code = -1;
  int64_t first_step = 0;
};

std::vector<nlohmann::json> records_of(const std::string& run_dir) {
  std::vector<nlohmann::json> records;
  std::istringstream lines(read_text(run_dir + "/metrics.jsonl"));
  for (std::string line; std::getline(lines, line);) records.push_back(parse_json(line));
  return records;
}

RunResult run(const Config& config, int ranks, const RunOptions& options = {}) {
  std::ostringstream out;
  RunResult result;
  run_thread_ranks(ranks, [&](Communicator& world) {
    std::ostringstream nowhere;
    const LoadedConfig loaded{.config = config, .origins = {}, .path = "test"};
    const int code = run_training(loaded, options, world, world.rank() == 0 ? out : nowhere);
    if (world.rank() == 0) result.exit_code = code;
  });
  result.output = out.str();
  for (const auto& json : records_of(config.train.run_dir)) {
    if (json.value("event", "") == "resume") result.losses.clear(), result.evaluations.clear();  // those before it
    if (json.contains("validation_loss")) result.evaluations[json["step"]] = json["validation_loss"];
    if (!json.contains("loss")) continue;
    if (result.losses.empty()) result.first_step = json["step"];
    result.losses.push_back(json["loss"]);
  }
  return result;
}

// Asserts that metrics.jsonl has each step once, in order, from 1 to `steps`.
void expect_each_step_once(const std::string& run_dir, int64_t steps) {
  int64_t step = 0;
  for (const auto& json : records_of(run_dir)) {
    if (!json.contains("loss")) continue;
    EXPECT_EQ(json["step"], ++step);
  }
  EXPECT_EQ(step, steps);
}

std::vector<float> floats_of(Trainer& trainer, Tensor tensor) {
  const std::vector<std::byte> bytes = bytes_of(trainer, tensor);
  std::vector<float> numbers(bytes.size() / sizeof(float));
  std::memcpy(numbers.data(), bytes.data(), bytes.size());
  return numbers;
}

// Asks to stop in the n-th step, counted from the start of the program. On one rank only: its process has the signal.
std::function<int()> stop_after(int n) {
  auto left = std::make_shared<std::atomic<int>>(n);
  return [left, rank_thread = std::make_shared<std::once_flag>(), id = std::make_shared<std::thread::id>()] {
    std::call_once(*rank_thread, [&] { *id = std::this_thread::get_id(); });
    return std::this_thread::get_id() == *id && --*left <= 0 ? SIGTERM : 0;
  };
}

// Every tensor of a checkpoint, whole.
std::map<std::string, std::vector<float>> contents(const std::string& path) {
  const OpenCheckpoint checkpoint = open_checkpoint(path);
  const auto device = create_cpu_device();
  const auto stream = device->create_compute_stream();
  std::map<std::string, std::vector<float>> tensors;
  for (const CheckpointFile& file : checkpoint.manifest.files)
    for (const StoredSlice& piece : file.slices) {
      std::vector<float>& values = tensors[piece.name];
      if (!values.empty()) continue;
      Slice whole{.global = piece.slice.global};
      whole.rows = whole.global_rows(), whole.cols = whole.global_cols(), whole.count = whole.rows * whole.cols;
      values.resize(static_cast<size_t>(whole.count));
      const StateTensor wanted{piece.name, whole, {values.data(), DType::f32, {whole.count}}};
      read_tensors(checkpoint, {&wanted, 1}, *device, *stream);
    }
  return tensors;
}

std::string step_path(const std::string& run_dir, int64_t step) {
  return CheckpointStore(run_dir + "/checkpoints").path_of(step);
}

// ---- resharding

constexpr int kSavedStep = 3, kMore = std::min(kMatrixSteps, 5);

// Loads `path` under a layout: all that the ranks own has the checkpoint's bits; returns the losses of the next steps.
std::vector<double> load_and_go_on(const std::string& path, Config config, const Cut& how) {
  const auto saved = contents(path);
  config = cut(config, how);
  config.checkpoint.save_interval = 0;
  const Layout layout = resolved(config, how.ranks()).layout;
  std::vector<double> losses;
  const auto use = [&](Trainer& trainer) {
    Checkpointing checkpointing(trainer.config(), layout, trainer, nullptr, {}, now_ns());
    checkpointing.resume({path}, false);
    EXPECT_EQ(trainer.steps_done(), kSavedStep);
    size_t names = 0;
    for (const StateTensor& tensor : state_tensors(trainer.state().flat, *trainer.state().adam)) {
      const std::vector<float>& expected = saved.at(tensor.name);
      ++names;
      const std::vector<float> numbers = floats_of(trainer, tensor.data);
      for (int64_t i = 0; i < tensor.slice.count; ++i)
        ASSERT_EQ(numbers[static_cast<size_t>(i)], expected[static_cast<size_t>(global_index(tensor.slice, i))])
            << tensor.name << " " << i;
    }
    EXPECT_GT(names, 3u);
    for (int i = 0; i < kMore; ++i) {
      const double loss = trainer.step().loss;
      if (trainer.world().rank() == 0) losses.push_back(loss);
    }
  };
  with_trainers(config, how.ranks(), use, {.poison = true});
  return losses;
}

const LayoutCase kLayouts[] = {
    {"t1_p1_d1"},
    {"t2_p2_d2_interleaved", {.t = 2, .p = 2, .d = 2, .sequence_parallel = true, .schedule = "interleaved", .v = 2}},
    {"t4_p1_d2_optim", {.t = 4, .d = 2, .sequence_parallel = true, .strategy = "optim"}},
    {"t1_p4_d1", {.p = 4}},
    {"t1_p2_d2_zero3", {.p = 2, .d = 2, .strategy = "optim_grads_params"}}};

class Resharding : public testing::TestWithParam<LayoutCase> {};

TEST_P(Resharding, EveryLayoutLoadsWhatThisOneSaved) {
  const TempDir dir;
  Config config = small_run(dir / "run");
  config.train.train_iters = kSavedStep + kMore;
  config.checkpoint.save_interval = kSavedStep;
  const RunResult whole = run(cut(config, GetParam().cut), GetParam().ranks());
  ASSERT_EQ(whole.losses.size(), static_cast<size_t>(kSavedStep + kMore));
  for (const LayoutCase& layout : kLayouts) {
    SCOPED_TRACE(layout.name);
    const std::vector<double> losses = load_and_go_on(step_path(config.train.run_dir, kSavedStep), config, layout.cut);
    ASSERT_EQ(losses.size(), static_cast<size_t>(kMore));
    for (int i = 0; i < kMore; ++i) {
      const double expected = whole.losses[static_cast<size_t>(kSavedStep + i)];
      if (layout.name == GetParam().name) EXPECT_EQ(losses[static_cast<size_t>(i)], expected);
      else EXPECT_NEAR(losses[static_cast<size_t>(i)], expected, 2e-5 * expected);
    }
  }
}
INSTANTIATE_TEST_SUITE_P(From, Resharding, testing::ValuesIn(kLayouts),
                         [](const auto& param) { return std::string(param.param.name); });

// ---- bit for bit

struct ResumeCase {
  const char* name;
  Cut cut{};
  const char* dtype = "fp32";
  bool overlap = false, async = false;
  bool on_a_device = false;  // whose memory the host cannot touch; steps are queued ahead there
};

class Resume : public testing::TestWithParam<ResumeCase> {};

TEST_P(Resume, IsTheRunThatWasNotStoppedBitForBit) {
  const ResumeCase& c = GetParam();
  const TempDir dir;
  Config config = cut(small_run(dir / "straight"), c.cut);
  config.model.hidden_dropout = config.model.attention_dropout = 0.1;
  set_key(config, "precision.dtype", c.dtype);
  config.overlap.overlap_grad_reduce = config.overlap.overlap_param_gather = c.overlap;
  config.checkpoint.async_save = c.async;
  if (c.on_a_device) config.checkpoint.save_interval = 5;  // after a save no step is out
  const RunResult straight = run(config, c.cut.ranks());
  EXPECT_EQ(straight.exit_code, 0);
  ASSERT_EQ(straight.losses.size(), static_cast<size_t>(kSteps));

  config.train.run_dir = dir / "stopped";
  RunOptions options;
  if (c.on_a_device) options.make_backend = make_split_backend;
  constexpr int kAsked = kSteps * 2 / 3 - 1;
  options.stop_signal = stop_after(kAsked);
  const RunResult first = run(config, c.cut.ranks(), options);
  // A step that is queued already is finished, too.
  const int kStop = c.on_a_device ? kAsked + 1 : kAsked;
  EXPECT_EQ(first.exit_code, 75);
  EXPECT_NE(first.output.find("as a signal asked: it is saved"), std::string::npos) << first.output;
  ASSERT_EQ(first.losses.size(), static_cast<size_t>(kStop));
  options.stop_signal = {};
  const RunResult second = run(config, c.cut.ranks(), options);
  EXPECT_EQ(second.exit_code, 0);
  EXPECT_EQ(second.first_step, kStop + 1);

  std::vector<double> losses = first.losses;
  losses.insert(losses.end(), second.losses.begin(), second.losses.end());
  EXPECT_EQ(losses, straight.losses);
  EXPECT_EQ(contents(step_path(dir / "stopped", kSteps)), contents(step_path(dir / "straight", kSteps)));
}
INSTANTIATE_TEST_SUITE_P(
    Of, Resume,
    testing::Values(
        ResumeCase{"fp32"}, ResumeCase{.name = "bf16", .dtype = "bf16", .async = true},
        ResumeCase{.name = "t2_p2_d2_interleaved_optim_overlapped",
                   .cut = {.t = 2,
                           .p = 2,
                           .d = 2,
                           .sequence_parallel = true,
                           .schedule = "interleaved",
                           .v = 2,
                           .strategy = "optim"},
                   .dtype = "bf16",
                   .overlap = true,
                   .async = true},
        ResumeCase{
            .name = "d2_zero3", .cut = {.d = 2, .strategy = "optim_grads_params"}, .overlap = true, .async = true},
        ResumeCase{.name = "t2_d2_no_shard", .cut = {.t = 2, .d = 2, .sequence_parallel = true}, .dtype = "bf16"},
        ResumeCase{.name = "on_a_device",
                   .cut = {.d = 2, .strategy = "optim"},
                   .dtype = "bf16",
                   .overlap = true,
                   .async = true,
                   .on_a_device = true},
        ResumeCase{.name = "on_a_device_waiting", .cut = {.p = 2}, .on_a_device = true}),
    [](const auto& param) { return std::string(param.param.name); });

// Adam's bias correction counts updates: what was skipped before the checkpoint is none behind it either.
TEST(ResumedRun, KnowsOfTheStepsThatWereSkipped) {
  const TempDir dir;
  Config config = small_run(dir / "straight");
  config.train.train_iters = 6;
  config.train.non_finite_policy = StepAction::skip;
  config.checkpoint.save_interval = 3;
  RunOptions options;
  options.faults = parse_faults(std::vector<std::string>{"nan:0:2"});
  const RunResult straight = run(config, 1, options);
  EXPECT_NE(straight.output.find("the step is skipped, 1 so far"), std::string::npos) << straight.output;
  ASSERT_EQ(straight.losses.size(), 6u);

  config.train.run_dir = dir / "resumed";
  options = {};
  options.resume = step_path(dir / "straight", 3);
  const RunResult resumed = run(config, 1, options);

  EXPECT_EQ(resumed.losses, std::vector<double>(straight.losses.begin() + 3, straight.losses.end()));
  EXPECT_EQ(contents(step_path(dir / "resumed", 6)), contents(step_path(dir / "straight", 6)));
}

// Between two batches of an evaluation the run can be stopped, too; it resumes with that evaluation.
class Evaluation : public testing::TestWithParam<int> {};

TEST_P(Evaluation, IsMadeByTheResumedRunWhereASignalInterruptedIt) {
  // given: evaluations of six batches after steps 2 and 4, and a signal in the middle of one of them
  const TempDir dir;
  Config config = cut(small_run(dir / "straight"), {.t = 2, .p = 2, .sequence_parallel = true});
  config.train.train_iters = 4;
  config.train.eval_interval = 2;
  config.train.eval_iters = 6;
  const RunResult straight = run(config, 4);
  ASSERT_EQ(straight.evaluations.size(), 2u);
  config.train.run_dir = dir / "stopped";
  const int64_t interrupted = GetParam();
  // when: the signal is seen at each step, and before each batch
  RunOptions options;
  options.stop_signal = stop_after(interrupted == 2 ? 2 + 3 : 2 + 6 + 2 + 3);
  const RunResult first = run(config, 4, options);
  // then: the step is saved, the evaluation not recorded
  EXPECT_EQ(first.exit_code, 75);
  EXPECT_EQ(first.losses.size(), static_cast<size_t>(interrupted));
  EXPECT_FALSE(first.evaluations.contains(interrupted));
  EXPECT_NE(first.output.find(fmt::format("the evaluation at step {} ends unfinished", interrupted)),
            std::string::npos);
  EXPECT_TRUE(open_checkpoint(step_path(dir / "stopped", interrupted)).state.evaluation_due);
  // and when it is asked to stop before it has begun, it is still due
  options.stop_signal = stop_after(1);
  EXPECT_EQ(run(config, 4, options).exit_code, 75);
  // and at last made, once, with the same result
  const RunResult resumed = run(config, 4);
  EXPECT_EQ(resumed.exit_code, 0);
  EXPECT_EQ(resumed.evaluations.at(interrupted), straight.evaluations.at(interrupted));
  EXPECT_EQ(resumed.evaluations.at(4), straight.evaluations.at(4));
  expect_each_step_once(dir / "stopped", 4);
  EXPECT_EQ(contents(step_path(dir / "stopped", 4)), contents(step_path(dir / "straight", 4)));
  // and not a second time
  EXPECT_TRUE(run(config, 4).evaluations.empty());
}
INSTANTIATE_TEST_SUITE_P(After, Evaluation, testing::Values(2, 4));

// ---- metrics.jsonl

TEST(Records, OfAStepAreWrittenOnce) {
  const TempDir dir;
  Config config = small_run(dir / "run");
  config.train.train_iters = 5;
  config.checkpoint.save_interval = 2;
  run(config, 1);
  std::filesystem::remove_all(step_path(dir / "run", 5));  // as if it had been killed before it saved its last step
  config.train.train_iters = 6;
  EXPECT_EQ(run(config, 1).first_step, 5);
  expect_each_step_once(dir / "run", 6);
}

TEST(Records, OfAnEarlierRunAreSetAside) {
  const TempDir dir;
  Config config = small_run(dir / "run");
  config.train.train_iters = 3;
  config.checkpoint.save_interval = 0;
  run(config, 1);
  const std::string before = read_text(dir / "run/metrics.jsonl");
  const RunResult again = run(config, 1);
  EXPECT_NE(again.output.find("metrics.jsonl was an earlier run's, and is "), std::string::npos) << again.output;
  EXPECT_EQ(read_text(dir / "run/metrics.1.jsonl"), before);
  expect_each_step_once(dir / "run", 3);
  // A checkpoint of elsewhere begins another run, too.
  Config other = config;
  other.train.run_dir = dir / "other";
  other.checkpoint.save_interval = 2;
  run(other, 1);
  RunOptions options;
  options.resume = step_path(dir / "other", 2);
  EXPECT_EQ(run(config, 1, options).first_step, 3);
  EXPECT_TRUE(std::filesystem::exists(dir / "run/metrics.2.jsonl"));
  EXPECT_EQ(records_of(dir / "run").size(), 2u) << "the resume and step 3";
}

// ---- which checkpoint

class Choice : public testing::Test {
 protected:
  Choice() : config_(small_run(dir_ / "run")) {
    config_.train.train_iters = 4;
    config_.checkpoint.save_interval = 2;
    EXPECT_EQ(run(config_, 2).exit_code, 0);
    config_.train.train_iters = 5;
  }
  void damage(int64_t step) {
    const std::string path = step_path(config_.train.run_dir, step) + "/rank-00001.safetensors";
    std::string text = read_text(path);
    text[text.size() / 2] ^= 1;
    write_text(path, text);
  }
  template <class E>
  void expect_throws(const RunOptions& options, const std::vector<std::string>& texts) {
    try {
      run(config_, 2, options);
      FAIL() << "expected: " << texts[0];
    } catch (const E& error) {
      for (const std::string& text : texts)
        EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what() << "\nexpected: " << text;
    }
  }
  static RunOptions from(const std::string& resume) { return {.resume = resume, .stop_signal = {}, .disk_fault = {}}; }

  const TempDir dir_;
  Config config_;
};

TEST_F(Choice, AutoTakesTheLatestThatCanBeReadAndSaysSo) {
  damage(4);
  const RunResult resumed = run(config_, 2);
  EXPECT_EQ(resumed.first_step, 3);
  EXPECT_NE(resumed.output.find("cannot resume from " + step_path(config_.train.run_dir, 4) + ": "), std::string::npos)
      << resumed.output;
  EXPECT_NE(resumed.output.find("rank-00001.safetensors: tensor "), std::string::npos) << resumed.output;
  EXPECT_NE(resumed.output.find("resumed from " + step_path(config_.train.run_dir, 2)), std::string::npos);
}

TEST_F(Choice, NothingReadableIsAnError) {
  damage(2);
  damage(4);
  expect_throws<DataError>(from("auto"), {"no checkpoint could be loaded", "step-00000004", "step-00000002"});
}

TEST_F(Choice, APathIsThatOrNothing) {
  EXPECT_EQ(run(config_, 2, from(step_path(config_.train.run_dir, 2) + "/")).first_step, 3);
  std::filesystem::remove_all(step_path(config_.train.run_dir, 5));
  config_.train.run_dir = dir_ / "other";
  EXPECT_EQ(run(config_, 2, from(dir_ / "run")).first_step, 5) << "a run's folder: its latest";
  std::filesystem::remove_all(dir_ / "other");
  EXPECT_EQ(run(config_, 2, from(dir_ / "run/checkpoints")).first_step, 5);
  std::filesystem::remove_all(dir_ / "other");
  config_.train.run_dir = dir_ / "run";
  damage(4);
  config_.train.run_dir = dir_ / "other";
  expect_throws<DataError>(from(step_path(dir_ / "run", 4)), {"rank-00001.safetensors: tensor "});
  expect_throws<DataError>(from(dir_ / "nothing"), {"there is no such file or directory"});
  std::filesystem::create_directories(dir_ / "empty");
  expect_throws<DataError>(from(dir_ / "empty"), {"is no checkpoint (there is no manifest.json)"});
}

TEST_F(Choice, NoneDoesNotMixRuns) {
  expect_throws<ConfigError>(from("none"), {"has checkpoints, up to step 4", "choose another train.run_dir"});
  config_.train.run_dir = dir_ / "fresh";
  EXPECT_EQ(run(config_, 2, from("none")).first_step, 1);
}

TEST_F(Choice, AnotherModelIsNamedKeyByKey) {
  config_.model.num_layers = 2;
  config_.model.num_attention_heads = 2;
  const std::string path = step_path(config_.train.run_dir, 4);
  expect_throws<DataError>(from(path),
                           {"the checkpoint is of another model", "model.num_layers: found 4 in the checkpoint",
                            "expected this run's 2", "model.num_attention_heads: found 4"});
  expect_throws<DataError>(from("auto"), {"model.num_layers: found 4"});
}

TEST_F(Choice, AModelThatCannotBeReadIsRefused) {
  const std::string path = dir_ / "step-00000001";
  std::filesystem::create_directories(path);
  const TrainState state{.step = 1, .config = {{"model.num_layers", "many"}}};
  write_manifest(Disk(), path, {.step = 1, .run = "r", .layout = "l"}, state, "");
  expect_throws<DataError>(from(path), {"train_state.json", "num_layers", "found \"many\""});
}

TEST_F(Choice, ChangesAreNamed) {
  config_.optimizer.lr = 1e-3;
  config_.batch.global_batch_size = 16;
  const RunResult resumed = run(config_, 2);
  EXPECT_EQ(resumed.first_step, 5);
  EXPECT_NE(resumed.output.find("changed since the checkpoint: optimizer.lr was 0.003, is 0.001"), std::string::npos)
      << resumed.output;
  EXPECT_NE(resumed.output.find("batch.global_batch_size was 8, is 16"), std::string::npos) << resumed.output;
  // Samples go on where they were.
  EXPECT_NE(read_text(step_path(config_.train.run_dir, 5) + "/train_state.json").find("\"consumed_samples\": 48"),
            std::string::npos);
}

// ---- disks and signals

TEST(Saving, GoesOnWhenTheDiskFailsAndEndsWhenItKeepsFailing) {
  const TempDir dir;
  Config config = small_run(dir / "run");
  config.train.train_iters = 5;
  config.checkpoint.save_interval = 1;
  std::atomic<int> fails = 2;
  const Disk::Fault fault = [&](DiskOp op, const std::string&) {
    return op == DiskOp::create && fails-- > 0 ? DiskFate::no_space : DiskFate::normal;
  };
  const RunResult lucky = run(config, 1, {.resume = "auto", .stop_signal = {}, .disk_fault = fault});
  EXPECT_EQ(lucky.losses.size(), 5u);
  EXPECT_NE(lucky.output.find("step 1 could not be saved (1 of at most 3 failures in a row): " + (dir / "")),
            std::string::npos)
      << lucky.output;
  EXPECT_NE(lucky.output.find("step 2 could not be saved (2 of at most 3"), std::string::npos) << lucky.output;
  EXPECT_EQ(CheckpointStore(dir / "run/checkpoints").steps(), (std::vector<int64_t>{5, 4, 3}));

  config.train.run_dir = dir / "unlucky";
  fails = 1000;
  try {
    run(config, 2, {.resume = "auto", .stop_signal = {}, .disk_fault = fault});
    FAIL();
  } catch (const IoError& error) {
    EXPECT_NE(std::string(error.what()).find("3 saves have failed in a row"), std::string::npos) << error.what();
  }
}

// A run comes back that was suspended for so long that another one has its folder: it commits nothing there any more.
TEST(Saving, EndsInAFolderThatIsAnothersByNow) {
  const TempDir dir;
  Config config = small_run(dir / "run");
  config.train.train_iters = 9;
  config.checkpoint.save_interval = 1;
  const Disk::Fault fault = [&](DiskOp op, const std::string& path) {
    if (op != DiskOp::make_directory || path.find("step-00000003") == std::string::npos) return DiskFate::normal;
    write_text(dir / "other", "another's");
    std::filesystem::rename(dir / "other", dir / "run/lock");
    return DiskFate::normal;
  };
  try {
    run(config, 1, {.resume = "auto", .stop_signal = {}, .disk_fault = fault});
    FAIL();
  } catch (const IoError& error) {
    EXPECT_NE(std::string(error.what()).find("another run has taken the folder over: another's"), std::string::npos)
        << error.what();
  }
  EXPECT_EQ(CheckpointStore(dir / "run/checkpoints").steps(), (std::vector<int64_t>{2, 1}));
  EXPECT_EQ(read_text(dir / "run/checkpoints/latest"), "step-00000002\n");
  EXPECT_EQ(read_text(dir / "run/lock"), "another's");
}

// The run's directory is deleted, or moved away and replaced, while the run writes to it. What is at its path then is
// left alone, and the state goes to a directory beside it.
class LostFolder : public testing::TestWithParam<bool> {};

TEST_P(LostFolder, IsNoticedAndTheStateSavedBesideIt) {
  const bool replaced = GetParam();
  const TempDir dir;
  Config config = small_run(dir / "straight");
  config.train.train_iters = 6;
  config.checkpoint.save_interval = 1;
  const RunResult straight = run(config, 1);
  config.train.run_dir = dir / "run";
  RunOptions options;
  const auto look = stop_after(3);
  std::atomic<bool> lost = false;
  options.stop_signal = [&] {
    if (look() == 0 || lost.exchange(true)) return 0;
    if (!replaced) return std::filesystem::remove_all(dir / "run") > 0 ? 0 : SIGTERM;
    std::filesystem::rename(dir / "run", dir / "moved");
    std::filesystem::create_directories(dir / "run/checkpoints");
    return 0;
  };
  // when: one rank, so that nothing is being written while the directory goes
  const std::string error = message_of<ConfigError>([&] { run(config, 1, options); });
  // then
  EXPECT_NE(error.find(replaced ? "run was renamed to " : "run was deleted"), std::string::npos) << error;
  EXPECT_EQ(error.find("another one is in its place") != std::string::npos, replaced) << error;
  EXPECT_EQ(std::filesystem::exists(dir / "run"), replaced);
  EXPECT_TRUE(!replaced || std::filesystem::is_empty(dir / "run/checkpoints")) << "it is another run's";
  const std::string key = "is saved: --resume ";
  const size_t at = error.find(key);
  ASSERT_NE(at, std::string::npos) << error;
  options = {};
  options.resume = error.substr(at + key.size());
  const int64_t step = open_checkpoint(options.resume).state.step;
  EXPECT_GE(step, 3);
  std::filesystem::remove_all(dir / "run");
  const RunResult resumed = run(config, 1, options);
  EXPECT_EQ(resumed.losses, std::vector<double>(straight.losses.begin() + step, straight.losses.end()));
}
INSTANTIATE_TEST_SUITE_P(Replaced, LostFolder, testing::Bool());

TEST(Saving, IsNotPossibleInALostFolderWithoutCheckpoints) {
  const TempDir dir;
  Config config = small_run(dir / "run");
  config.train.train_iters = 4;
  config.checkpoint.save_interval = 0;
  RunOptions options;
  const auto look = stop_after(2);
  options.stop_signal = [&] {
    if (look() != 0) std::filesystem::remove_all(dir / "run");
    return 0;
  };
  const std::string error = message_of<ConfigError>([&] { run(config, 1, options); });
  EXPECT_NE(error.find("nothing is saved, as checkpoint.save_interval is 0"), std::string::npos) << error;
  EXPECT_FALSE(std::filesystem::exists(dir / "run"));
}

TEST(Saving, ASlowDiskNeverQueues) {
  const TempDir dir;
  Config config = small_run(dir / "run");
  config.train.train_iters = 6;
  config.checkpoint.save_interval = 1;
  config.checkpoint.async_save = true;
  std::mutex mutex;
  std::condition_variable changed;
  int steps = 0;
  const RunResult slow = run(config, 1,
                             {.resume = "auto",
                              .stop_signal =
                                  [&] {
                                    const std::lock_guard lock(mutex);
                                    ++steps;
                                    changed.notify_all();
                                    return 0;
                                  },
                              .disk_fault =
                                  [&](DiskOp op, const std::string&) {
                                    std::unique_lock lock(mutex);
                                    if (op == DiskOp::write) changed.wait(lock, [&] { return steps >= 4; });
                                    return DiskFate::normal;
                                  }});
  EXPECT_EQ(slow.losses.size(), 6u);
  EXPECT_NE(slow.output.find("step 2 is not saved: step 1 is still being written"), std::string::npos) << slow.output;
  EXPECT_NE(slow.output.find("step 3 is not saved"), std::string::npos);
  const std::vector<int64_t> saved = CheckpointStore(dir / "run/checkpoints").steps();
  EXPECT_EQ(saved.front(), 6);
  EXPECT_EQ(saved.back(), 1);
}

TEST(Stopping, InTime) {
  const TempDir dir;
  Config config = small_run(dir / "minutes");
  config.train.exit_duration_in_mins = 1e-9;
  const RunResult late = run(config, 2);
  EXPECT_EQ(late.exit_code, 75);
  EXPECT_EQ(late.losses.size(), 1u);
  EXPECT_NE(late.output.find("stopping after step 1, before the time is up"), std::string::npos) << late.output;

  config.train.exit_duration_in_mins = 0;
  config.train.run_dir = dir / "slurm";
  setenv("SLURM_JOB_END_TIME", std::to_string(time(nullptr)).c_str(), 1);
  const RunResult job = run(config, 2);
  unsetenv("SLURM_JOB_END_TIME");
  EXPECT_EQ(job.exit_code, 75);
  EXPECT_EQ(job.losses.size(), 1u);
}

TEST(Stopping, WithoutCheckpointsSaysThatNothingIsSaved) {
  const TempDir dir;
  Config config = small_run(dir / "run");
  config.checkpoint.save_interval = 0;
  const RunResult stopped = run(config, 1, {.resume = "auto", .stop_signal = stop_after(2), .disk_fault = {}});
  EXPECT_EQ(stopped.exit_code, 143);
  EXPECT_EQ(stopped.losses.size(), 2u);
  EXPECT_NE(stopped.output.find("nothing is saved"), std::string::npos) << stopped.output;
}

// The program itself, with real signals, streams and limits.
class Program : public testing::Test {
 protected:
  struct Ended {
    int status = 0;  // of waitpid
    std::string error;
    int exit_code() const { return WIFEXITED(status) ? WEXITSTATUS(status) : -1; }
    int signal() const { return WIFSIGNALED(status) ? WTERMSIG(status) : 0; }
  };

  Config config_for(int64_t steps) const {
    Config config = small_run(dir_ / "run");
    config.train.train_iters = steps;
    config.optimizer.lr_decay_iters = steps;
    return config;
  }

  // Starts `trivet train` on two ranks by a shell, where COMMAND is that program with its arguments. `script` says what
  // surrounds it.
  pid_t start(const Config& config, const std::string& script, const std::string& more = "") {
    write_text(dir_ / "run.yaml", to_yaml(config));
    const std::string command = program_path() + " train " + (dir_ / "run.yaml") + " --ranks 2 " + more;
    std::vector<std::string> arguments = {"/bin/bash", "-c", "COMMAND='" + command + "'\n" + script};
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, 1, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addopen(&files, 2, (dir_ / "stderr").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
    pid_t child = 0;
    EXPECT_EQ(posix_spawn(&child, arguments.front().c_str(), &files, nullptr, argv.data(), environ), 0);
    posix_spawn_file_actions_destroy(&files);
    return child;
  }
  Ended wait(pid_t child) {
    Ended end;
    waitpid(child, &end.status, 0);
    end.error = read_text(dir_ / "stderr");
    return end;
  }
  Ended run_to_end(const Config& config, const std::string& script, const std::string& more = "") {
    return wait(start(config, script, more));
  }

  // Starts it, and sends the signals when it has done a step; `pause` after the first one.
  Ended signalled(const std::vector<int>& signals, std::chrono::milliseconds pause = {}, const std::string& more = "") {
    const size_t before = read_text(dir_ / "run/metrics.jsonl").size();
    const pid_t child = start(config_for(1'000'000), "exec $COMMAND", more);
    while (read_text(dir_ / "run/metrics.jsonl").find("\"loss\"", before) == std::string::npos) {
      Ended end;
      if (waitpid(child, &end.status, WNOHANG) != 0) return end;
      std::this_thread::yield();
    }
    // Without a pause, all are there before it can answer the first: it is stopped meanwhile.
    int status = 0;
    kill(child, SIGSTOP);
    waitpid(child, &status, WUNTRACED);
    for (const int signal : signals) {
      kill(child, signal);
      if (pause.count() == 0) continue;
      kill(child, SIGCONT);
      std::this_thread::sleep_for(pause);
    }
    kill(child, SIGCONT);
    return wait(child);
  }
  const TempDir dir_;
};

TEST_F(Program, SavesAndExitsOnSignals) {
  int64_t before = 0;
  // timeout(1) and schedulers send SIGTERM twice, a terminal that closes SIGHUP.
  for (const std::vector<int>& signals :
       std::vector<std::vector<int>>{{SIGTERM}, {SIGUSR1}, {SIGTERM, SIGINT, SIGTERM}, {SIGHUP, SIGHUP}}) {
    const Ended end = signalled(signals);
    ASSERT_EQ(end.exit_code(), 75);
    EXPECT_NE(end.error.find("the run ends after this step and saves it"), std::string::npos) << end.error;
    const auto step = CheckpointStore(dir_ / "run/checkpoints").latest();
    ASSERT_TRUE(step.has_value());
    EXPECT_GT(*step, before);
    before = *step;
  }
}

TEST_F(Program, RunsOnAfterASignalThatNohupIgnores) {
  const auto usual = std::signal(SIGHUP, SIG_IGN);  // which the program inherits
  const Ended end = signalled({SIGHUP, SIGTERM});
  std::signal(SIGHUP, usual);
  EXPECT_EQ(end.exit_code(), 75);  // by the first signal that it saw
}

TEST_F(Program, ALaterSignalEndsItAtOnceAndSaysWhatIsLost) {
  // Its second step takes hours.
  const Ended end = signalled({SIGTERM, SIGINT}, std::chrono::milliseconds(1200), "--inject slow=1000000:all:2");
  EXPECT_EQ(end.signal(), SIGINT);
  EXPECT_NE(end.error.find("trivet: SIGTERM: the run ends after this step"), std::string::npos) << end.error;
  EXPECT_NE(end.error.find("trivet: SIGINT: the run ends at once; lost: step"), std::string::npos) << end.error;
}

// `trivet train | head`, and a terminal that is gone.
TEST_F(Program, TrainsOnWithoutAReader) {
  for (const char* script : {"$COMMAND | true; exit ${PIPESTATUS[0]}",  // its reader has gone
                             "exec $COMMAND >/dev/full",                // its disk is full
                             "$COMMAND 2> >(true) | true; exit ${PIPESTATUS[0]}",
                             "exec $COMMAND </dev/null 2</dev/null", "exec $COMMAND >&- 2>&-"}) {
    std::filesystem::remove_all(dir_ / "run");
    const Ended end = run_to_end(config_for(30), script);
    EXPECT_EQ(end.exit_code(), 0) << script << "\n" << end.error;
    expect_each_step_once(dir_ / "run", 30);
    const std::string log = read_text(dir_ / "run/output.log");
    const bool gone =
        std::string(script).find("2>&-") == std::string::npos && std::string(script).find("2<") == std::string::npos;
    EXPECT_EQ(log.find("standard output is gone after step") != std::string::npos, gone) << script << "\n" << log;
    EXPECT_EQ(log.find("30/30") != std::string::npos, gone) << script << "\n" << log;
  }
}

TEST_F(Program, MeetsTheLimitOnTheSizeOfFilesAsAnError) {
  Config config = config_for(30);
  config.checkpoint.save_interval = 1;
  const Ended end = run_to_end(config, "ulimit -f 8; exec $COMMAND");  // of 1024 bytes; a checkpoint needs more
  EXPECT_EQ(end.exit_code(), 74) << end.error;
  EXPECT_NE(end.error.find("File too large; the limit is 8192 bytes a file (ulimit -f)"), std::string::npos)
      << end.error;
}

// Rates, times left, watchdog: nothing looks at a clock that somebody may set.
TEST_F(Program, DoesNotMindThatTheClockIsSetBack) {
  if (kMatrixStride > 1) GTEST_SKIP() << "a sanitizer's library has to be the first";
  Config config = config_for(20);
  config.comm.timeout_s = 60;
  config.checkpoint.save_interval = 5;
  const Ended end = run_to_end(config, "LD_PRELOAD=" + clock_path() + " exec $COMMAND");
  EXPECT_EQ(end.exit_code(), 0) << end.error;
  expect_each_step_once(dir_ / "run", 20);
  for (const auto& record : records_of(dir_ / "run")) {
    for (const char* key : {"step_seconds", "seconds"}) {
      if (!record.contains(key)) continue;
      EXPECT_GT(record[key].get<double>(), 0) << record;
      EXPECT_LT(record[key].get<double>(), 60) << record;
    }
  }
}

// A dataset without a tokenizer cannot be written in, which is known before the first step and not after the last.
TEST(Sample, NeedsATokenizerBeforeTraining) {
  const TempDir dir;
  const Config config = small_run(dir / "run");
  RunOptions options;
  options.prompt = "A house";
  const std::string error = message_of<DataError>([&] { run(config, 1, options); });
  EXPECT_NE(error.find("expected one of them to name its tokenizer"), std::string::npos) << error;
  EXPECT_FALSE(std::filesystem::exists(config.train.run_dir));
}

}  // namespace
}  // namespace trivet::test
