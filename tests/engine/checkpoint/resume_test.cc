// Saving and resuming runs: in any layout, bit for bit; and the errors of resumes that are refused.
#include <cstring>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <gtest/gtest.h>
#include <map>

#include "base/json.h"
#include "engine/checkpoint/open_checkpoint.h"
#include "engine/checkpoint/shard.h"
#include "engine/config/load.h"
#include "engine/data/dataset_info.h"
#include "engine/train/checkpointing.h"
#include "engine/train/run.h"
#include "tests/engine/checkpoint/runs.h"
#include "tests/support/message_of.h"
#include "tests/support/slice_index.h"
#include "tests/support/temp_dir.h"
#include "tests/support/training.h"

namespace trivet::test {
namespace {

std::vector<float> floats_of(Trainer& trainer, Tensor tensor) {
  const std::vector<std::byte> bytes = bytes_of(trainer, tensor);
  std::vector<float> numbers(bytes.size() / sizeof(float));
  std::memcpy(numbers.data(), bytes.data(), bytes.size());
  return numbers;
}

// All tensors of a checkpoint, unsharded.
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

// ---- resharding

constexpr int kSavedStep = 3, kMore = std::min(kMatrixSteps, 5);

// Loads `path` under a layout, checks all owned state against it bit for bit, and returns the next steps' losses.
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
    for (const StateTensor& tensor : state_tensors(trainer.state().flat, *trainer.state().optimizer)) {
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
    {"c2_p2_d2_zero3", {.p = 2, .d = 2, .strategy = "optim_grads_params", .c = 2}}};

class Resharding : public testing::TestWithParam<LayoutCase> {
 protected:
  // Loads under all layouts if `first` is 0, else under two: those `first` and `first` + 1 places after this layout. So
  // the Llama and the model with per-head norms together cover each of the other layouts once.
  void expect_loaded(
      const std::function<void(Config&)>& set = [](Config&) {}, size_t first = 0);
};

void Resharding::expect_loaded(const std::function<void(Config&)>& set, size_t first) {
  const TempDir dir;
  Config config = small_run(dir / "run");
  set(config);
  config.train.train_iters = kSavedStep + kMore;
  config.checkpoint.save_interval = kSavedStep;
  const RunResult whole = run(cut(config, GetParam().cut), GetParam().ranks());
  ASSERT_EQ(whole.losses.size(), static_cast<size_t>(kSavedStep + kMore));
  const size_t count = std::size(kLayouts);
  const size_t self = static_cast<size_t>(std::ranges::find(kLayouts, GetParam().name, &LayoutCase::name) - kLayouts);
  for (size_t behind = first; behind < (first == 0 ? count : first + 2); ++behind) {
    const LayoutCase& layout = kLayouts[(self + behind) % count];
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

TEST_P(Resharding, EveryLayoutLoadsWhatThisOneSaved) { expect_loaded(); }
TEST_P(Resharding, OfALlamaToo) { expect_loaded(as_llama, 1); }
TEST_P(Resharding, OfNormsOfHeadsToo) { expect_loaded(as_qwen3, 3); }

INSTANTIATE_TEST_SUITE_P(From, Resharding, testing::ValuesIn(kLayouts),
                         [](const auto& param) { return std::string(param.param.name); });

// ---- bit for bit

struct ResumeCase {
  const char* name;
  Cut cut{};
  const char* dtype = "fp32";
  bool overlap = false, async = false;
  bool ramp = false;         // the batch size grows where the run is stopped
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
  if (c.ramp) {
    constexpr int kSmall = kSteps * 2 / 3 - 1;
    const int64_t full = *config.batch.global_batch_size;
    config.batch.rampup_batch_size = std::vector<int64_t>{full / 2, full / 2, kSmall * full / 2};
    config.train.train_iters = 0;
    config.train.train_samples = kSmall * full / 2 + (kSteps - kSmall) * full;
    config.optimizer.lr_warmup_iters = 0;
    config.optimizer.lr_decay_iters.reset();
  }
  if (c.on_a_device) config.checkpoint.save_interval = 5;  // no step is in flight after a save
  const RunResult straight = run(config, c.cut.ranks());
  EXPECT_EQ(straight.exit_code, 0);
  ASSERT_EQ(straight.losses.size(), static_cast<size_t>(kSteps));

  config.train.run_dir = dir / "stopped";
  RunOptions options;
  if (c.on_a_device) options.make_backend = make_split_backend;
  constexpr int kAsked = kSteps * 2 / 3 - 1;
  options.stop_signal = stop_after(kAsked);
  const RunResult first = run(config, c.cut.ranks(), options);
  // A step that is already queued still finishes.
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
        ResumeCase{.name = "in_a_ramp", .cut = {.p = 2, .d = 2, .schedule = "zb-h1"}, .ramp = true},
        ResumeCase{.name = "on_a_device",
                   .cut = {.d = 2, .strategy = "optim"},
                   .dtype = "bf16",
                   .overlap = true,
                   .async = true,
                   .on_a_device = true},
        ResumeCase{.name = "on_a_device_waiting", .cut = {.p = 2}, .on_a_device = true}),
    [](const auto& param) { return std::string(param.param.name); });

// Two sources; the run reads several epochs of the small one.
TEST(ResumedRun, OfABlendIsExactOnAnyLayout) {
  const TempDir dir;
  IndexedDatasetWriter writer(dir / "other", TokenType::u16);
  for (int i = 0; i < 30; ++i) {
    std::vector<int32_t> document(static_cast<size_t>(7 + i % 5));
    for (size_t j = 0; j < document.size(); ++j) document[j] = static_cast<int32_t>((j * j + 3 * i) % 61);
    writer.add_document(document);
  }
  writer.finish();
  Config config = small_run(dir / "straight");
  config.train.train_iters = 9;
  config.train.eval_interval = 9;
  const double first = run(config, 1).losses[0];
  config.data.path = "0.3," + config.data.path + ",0.7," + (dir / "other");
  config.train.run_dir = dir / "blend";
  const RunResult straight = run(config, 1);
  EXPECT_NE(straight.losses[0], first);
  EXPECT_NE(straight.output.find("70.0% of the samples"), std::string::npos) << straight.output;
  const std::map<std::string, std::pair<Cut, Cut>> stops = {
      {"same", {{}, {}}},
      {"more", {{}, {.t = 2, .p = 2, .d = 2, .sequence_parallel = true}}},
      {"fewer", {{.d = 4, .strategy = "optim_grads"}, {.p = 2, .schedule = "zb-h1"}}}};
  for (const auto& [name, cuts] : stops) {
    Config stopped = config;
    stopped.train.run_dir = dir / name;
    RunOptions options;
    options.stop_signal = stop_after(5);
    EXPECT_EQ(run(cut(stopped, cuts.first), cuts.first.ranks(), options).exit_code, 75);
    const RunResult resumed = run(cut(stopped, cuts.second), cuts.second.ranks());
    ASSERT_EQ(resumed.losses.size(), 4u) << name;
    for (size_t i = 0; i < 4; ++i)
      EXPECT_NEAR(resumed.losses[i], straight.losses[5 + i], name == "same" ? 0 : 2e-5 * straight.losses[5 + i])
          << name;
    EXPECT_NEAR(resumed.evaluations.at(9), straight.evaluations.at(9), 2e-5 * straight.evaluations.at(9)) << name;
  }
}

// Adam's bias correction counts updates: a step skipped before the checkpoint does not count after it either.
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

// A run can also be stopped between two batches of an evaluation; it resumes with that evaluation.
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
  EXPECT_NE(first.output.find(fmt::format("the evaluation at step {} was interrupted", interrupted)),
            std::string::npos);
  EXPECT_TRUE(open_checkpoint(step_path(dir / "stopped", interrupted)).state.evaluation_due);
  // and if the run is asked to stop before the evaluation begins, the evaluation is still due
  options.stop_signal = stop_after(1);
  EXPECT_EQ(run(config, 4, options).exit_code, 75);
  // and finally the evaluation runs, once, with the same result
  const RunResult resumed = run(config, 4);
  EXPECT_EQ(resumed.exit_code, 0);
  EXPECT_EQ(resumed.evaluations.at(interrupted), straight.evaluations.at(interrupted));
  EXPECT_EQ(resumed.evaluations.at(4), straight.evaluations.at(4));
  expect_each_step_once(dir / "stopped", 4);
  EXPECT_EQ(contents(step_path(dir / "stopped", 4)), contents(step_path(dir / "straight", 4)));
  // and does not run a second time
  EXPECT_TRUE(run(config, 4).evaluations.empty());
}
INSTANTIATE_TEST_SUITE_P(After, Evaluation, testing::Values(2, 4));

TEST(FullValidation, IsOfTheWholeSetAndTheSameOnEveryLayout) {
  const TempDir dir;
  Config config = small_run(dir / "one");
  config.train.train_iters = 1;
  config.train.eval_interval = 1;
  config.train.full_validation = true;
  config.data.split = {99, 1, 0};
  const double one = run(config, 1).evaluations.at(1);
  const auto samples = [](const std::string& run_dir) {
    for (const auto& json : records_of(run_dir))
      if (json.contains("validation_loss")) return json["samples"].get<int64_t>();
    return int64_t{-1};
  };
  const IndexedDataset dataset(config.data.path);
  const DocumentRange valid = split_documents(config.data.split, dataset.sequences())[1];
  EXPECT_EQ(samples(dir / "one"), (dataset.begin(valid.end) - dataset.begin(valid.begin) - 1 + 15) / 16);
  config.train.run_dir = dir / "eight";
  const Cut eight{.t = 2, .p = 2, .d = 2, .sequence_parallel = true};
  EXPECT_NEAR(run(cut(config, eight), 8).evaluations.at(1), one, 2e-5 * one);
  EXPECT_EQ(samples(dir / "eight"), samples(dir / "one"));
}

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
  EXPECT_NE(again.output.find("metrics.jsonl was an earlier run's and is now "), std::string::npos) << again.output;
  EXPECT_EQ(read_text(dir / "run/metrics.1.jsonl"), before);
  expect_each_step_once(dir / "run", 3);
  // Starting from another folder's checkpoint also begins a new run.
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

TEST(Records, OfAFinishedRunStayWhenItIsStartedAgain) {
  // given
  const TempDir dir;
  Config config = small_run(dir / "run");
  config.train.train_iters = 3;
  config.train.trace = true;
  run(config, 2);
  const std::string trace = read_text(dir / "run/trace.json");
  const auto output = [&](int64_t steps) {
    config.train.train_iters = steps;
    return run(config, 2).output;
  };
  // when, then: started again, the run reports that nothing is left, and keeps its trace
  EXPECT_NE(output(3).find("after step 3 of 3: nothing is left to train"), std::string::npos) << output(3);
  EXPECT_NE(output(2).find("after step 3: train.train_iters is 2, so nothing is left to train"), std::string::npos)
      << output(2);
  EXPECT_EQ(read_text(dir / "run/trace.json"), trace);
  EXPECT_FALSE(std::filesystem::exists(dir / "run/trace.1.json"));
  // If steps are left, the trace of the earlier steps is kept beside the new trace.
  EXPECT_NE(output(4).find("after step 3 of 4, loaded in "), std::string::npos);
  EXPECT_EQ(read_text(dir / "run/trace.1.json"), trace);
  const std::string rest = read_text(dir / "run/trace.json");
  EXPECT_NE(rest.find("\"step\":4"), std::string::npos);
  EXPECT_EQ(rest.find("\"step\":3"), std::string::npos);
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

TEST_F(Choice, ALatestThatLeadsNowhereIsNamed) {
  for (const std::string name : {"step-00000009", "../../elsewhere"}) {
    write_text(config_.train.run_dir + "/checkpoints/latest", name + "\n");
    const RunResult resumed = run(config_, 2);
    EXPECT_NE(resumed.output.find("/checkpoints/latest names \"" + name +
                                  "\", which is not a checkpoint in that folder; "
                                  "the newest is " +
                                  config_.train.run_dir),
              std::string::npos)
        << resumed.output;
  }
  const std::string latest = config_.train.run_dir + "/checkpoints/latest";
  std::filesystem::remove(latest);
  std::filesystem::create_directory(latest);
  expect_throws<IoError>(from("auto"), {latest + ": is a directory, expected a file: remove it"});
  std::string warning;
  const auto warn = [&](const std::string& text) { warning = text; };
  find_checkpoints(config_.train.run_dir, warn);
  EXPECT_TRUE(warning.starts_with(latest + ": not a regular file; the newest is ")) << warning;
  std::filesystem::remove(latest);
  write_text(latest, "nowhere\n");
  const std::string found = find_checkpoints(config_.train.run_dir, warn).front();
  EXPECT_TRUE(warning.ends_with("; the newest is " + found)) << warning;
  warning.clear();
  find_checkpoints(found, warn);
  EXPECT_EQ(warning, "");
}

TEST_F(Choice, ACheckpointUnderTheNameOfAnotherStepIsPassedOver) {
  const std::string folder = config_.train.run_dir + "/checkpoints/";
  std::filesystem::create_symlink("step-00000002", folder + "step-00000009");
  std::filesystem::copy(folder + "step-00000002", folder + "step--0000001");
  write_text(folder + "latest", "step-00000009\n");
  const RunResult resumed = run(config_, 2);
  EXPECT_NE(resumed.output.find("step-00000009: holds step 2, expected the step in its name"), std::string::npos)
      << resumed.output;
  EXPECT_EQ(resumed.first_step, 5);
  EXPECT_FALSE(step_of_name("step--0000001"));
}

TEST_F(Choice, OtherDataUnderTheSamePathAreTakenOnlyWhenAsked) {
  const auto write_data = [&](int documents, int first) {
    IndexedDatasetWriter writer(dir_ / "data", TokenType::u16);
    for (int document = 0; document < documents; ++document)
      writer.add_document(std::vector<int32_t>(static_cast<size_t>(40 + document % 7), document == 0 ? first : 2));
    writer.finish();
    const DatasetInfo info{
        "bytes", "bytes",          config_.model.vocab_size.value(), 0, writer.documents(), writer.tokens(),
        0,       writer.bin_hash()};
    write_text(dir_ / "data.json", to_json(info));
  };
  write_data(40, 1);
  config_.data.path = dir_ / "data";
  config_.train.run_dir = dir_ / "with_data";
  config_.train.train_iters = 1;
  ASSERT_EQ(run(config_, 2).exit_code, 0);
  config_.train.train_iters = 2;
  const std::string saved = step_path(config_.train.run_dir, 1);
  // a corpus that has grown, and one of the same lengths
  for (const auto& [documents, first] : {std::pair{41, 1}, {40, 3}}) {
    write_data(documents, first);
    expect_throws<DataError>(
        from("auto"), {"data.path \"" + config_.data.path + "\": another dataset than the checkpoint's",
                       documents == 41 ? "in 41 documents" : "in 40 documents", "expected ", "--resume " + saved});
  }
  // and a corpus that was edited in place: data.json is unchanged
  write_data(40, 1);
  std::fstream(dir_ / "data.bin", std::ios::in | std::ios::out | std::ios::binary).seekp(100).put(3);
  expect_throws<DataError>(from("auto"), {"another dataset than the checkpoint's"});
  // without its data.json, the corpus counts as the same
  write_data(40, 1);
  std::filesystem::remove(dir_ / "data.json");
  EXPECT_EQ(run(config_, 2).exit_code, 0);
  write_data(40, 3);
  const RunResult asked = run(config_, 2, from(saved));
  EXPECT_NE(asked.output.find("another dataset than the checkpoint's"), std::string::npos) << asked.output;
  EXPECT_EQ(asked.first_step, 2);
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
  expect_throws<ConfigError>(from(dir_ / "nothing"), {"there is no such file or directory"});
  std::filesystem::create_directories(dir_ / "empty");
  expect_throws<DataError>(from(dir_ / "empty"), {"not a checkpoint (there is no manifest.json)"});
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
                           {"the checkpoint is of a different model", "model.num_layers: found 4 in the checkpoint",
                            "expected this run's 2", "model.num_attention_heads: found 4"});
  // The error names only the latest of the run's own checkpoints.
  const std::string latest = message_of<DataError>([&] { run(config_, 2); });
  EXPECT_TRUE(latest.starts_with(path + ": the checkpoint is of a different model:")) << latest;
  EXPECT_TRUE(latest.ends_with("\nchoose another train.run_dir, or move its checkpoints away")) << latest;
}

// The keys may be ones that an old checkpoint lacks: they count as having their default values.
TEST_F(Choice, AnotherKindOfModelIsNamedByAnyOfItsKeys) {
  const std::string path = step_path(config_.train.run_dir, 4);
  const std::pair<const char*, const char*> kinds[] = {
      {"normalization", "RMSNorm"},        {"swiglu", "true"},        {"add_bias_linear", "false"},
      {"position_embedding_type", "rope"}, {"num_query_groups", "2"}, {"kv_channels", "16"}};
  for (const auto& [key, value] : kinds) {
    Config other = config_;
    set_key(other, std::string("model.") + key, value);
    OpenCheckpoint old = open_checkpoint(path);
    for (const auto& kind : kinds) old.state.config.erase(std::string("model.") + kind.first);
    for (const OpenCheckpoint& checkpoint : {open_checkpoint(path), old})
      EXPECT_NE(message_of<DataError>([&] {
                  check_same_model(checkpoint, other, "");
                }).find(std::string("model.") + key + ": found "),
                std::string::npos)
          << key;
  }
  OpenCheckpoint old = open_checkpoint(path);
  for (const auto& kind : kinds) old.state.config.erase(std::string("model.") + kind.first);
  EXPECT_NO_THROW(check_same_model(old, config_, ""));
  old.state.config.erase("model.num_attention_heads");  // has no default
  EXPECT_NO_THROW(check_same_model(old, config_, ""));
}

// An imported Llama states its longest context and may be trained on a shorter one; a run may continue from another
// run's checkpoint with a longer context.
TEST_F(Choice, AModelWithRopeIsOfAnyContext) {
  OpenCheckpoint checkpoint = open_checkpoint(step_path(config_.train.run_dir, 4));
  config_.model.seq_length /= 2;
  const std::string another = "model.seq_length: found ";
  const auto problem = [&](const char* remedy) {
    return message_of<DataError>([&] { check_same_model(checkpoint, config_, remedy); });
  };
  EXPECT_NE(problem("").find(another), std::string::npos) << "learned positions";
  checkpoint.state.config["model.position_embedding_type"] = "rope";
  config_.model.position_embedding_type = Positions::rope;
  EXPECT_NO_THROW(check_same_model(checkpoint, config_, ""));
  EXPECT_NE(problem("the same run").find(another), std::string::npos) << "the same run goes on";
  checkpoint.state.step = 0;
  EXPECT_NO_THROW(check_same_model(checkpoint, config_, "the same run"));
  // Other RoPE angles are allowed only when training on a longer context.
  config_.model.rotary_base = 5e5;
  const std::string angles = "model.rotary_base: found 10000 in the checkpoint, expected this run's 500000";
  EXPECT_NE(problem("").find(angles), std::string::npos) << problem("");
  config_.model.seq_length *= 4;
  EXPECT_NO_THROW(check_same_model(checkpoint, config_, ""));
  config_.train.skip_train = true;
  EXPECT_NE(problem("").find(angles), std::string::npos) << problem("");
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
  config_.optimizer.override_opt_param_scheduler = true;
  config_.batch.global_batch_size = 16;
  const RunResult resumed = run(config_, 2);
  EXPECT_EQ(resumed.first_step, 5);
  EXPECT_NE(resumed.output.find("changed since the checkpoint: optimizer.lr was 0.003, is 0.001"), std::string::npos)
      << resumed.output;
  EXPECT_NE(resumed.output.find("batch.global_batch_size was 8, is 16"), std::string::npos) << resumed.output;
  // The sample count continues where it was.
  EXPECT_NE(read_text(step_path(config_.train.run_dir, 5) + "/train_state.json").find("\"consumed_samples\": 48"),
            std::string::npos);
}

// The rules are those by which Megatron's OptimizerParamScheduler loads a checkpoint.
TEST_F(Choice, OtherSchedulesAreAnErrorOrAsTheSwitchesSay) {
  const double as_before = run(config_, 2).losses.at(0);  // of step 5
  std::filesystem::remove_all(step_path(config_.train.run_dir, 5));
  // Stating the value of auto as a number gives the same schedule.
  config_.optimizer.decoupled_lr = config_.optimizer.lr;
  EXPECT_EQ(run(config_, 2).losses.at(0), as_before);
  config_.optimizer.decoupled_lr = config_.optimizer.lr / 2;
  expect_throws<ConfigError>(from("auto"), {"optimizer.decoupled_lr: found "});
  config_.optimizer.decoupled_lr.reset();
  std::filesystem::remove_all(step_path(config_.train.run_dir, 5));
  config_.train.train_iters = 6;
  const double with_step_6 = run(config_, 2).losses.at(1);
  std::filesystem::remove_all(step_path(config_.train.run_dir, 6));
  std::filesystem::remove_all(step_path(config_.train.run_dir, 5));
  config_.optimizer.lr_decay_style = LrDecay::wsd;
  config_.optimizer.lr_wsd_decay_iters = 3;
  const std::vector<std::string> texts = {"step-00000004: the checkpoint has different schedules:",
                                          "lr_decay_style: found cosine in the checkpoint",
                                          "lr_wsd_decay_iters: found 0 in the checkpoint and 3 in this run",
                                          "override_opt_param_scheduler=true",
                                          "takes this run's, which follow train_iters, as a longer run wants",
                                          "stays at min_lr beyond their end"};
  for (const std::string& how : {std::string("auto"), step_path(config_.train.run_dir, 4)})
    expect_throws<ConfigError>(from(how), texts);

  config_.optimizer.use_checkpoint_opt_param_scheduler = true;
  const RunResult checkpoints = run(config_, 2);
  EXPECT_EQ(checkpoints.losses, (std::vector<double>{as_before, with_step_6}));
  EXPECT_NE(checkpoints.output.find("optimizer.lr_decay_style is cosine, the checkpoint's value, not WSD"),
            std::string::npos);
  std::filesystem::remove_all(step_path(config_.train.run_dir, 6));

  config_.train.train_iters = 0;  // the checkpoint's schedule counts steps
  config_.train.train_samples = 48;
  config_.optimizer.lr_warmup_iters = 0;
  config_.optimizer.lr_decay_iters.reset();
  config_.optimizer.lr_wsd_decay_iters = 0;
  config_.optimizer.lr_wsd_decay_samples = 8;
  expect_throws<ConfigError>(from("auto"), {"lr_decay_iters: found 20", "the checkpoint's do not fit it"});
  config_.optimizer.use_checkpoint_opt_param_scheduler = false;
  config_.optimizer.override_opt_param_scheduler = true;
  config_.batch.global_batch_size = 4;
  expect_throws<ConfigError>(from("auto"), {"train.train_samples: found 32 samples in 4 steps, which are 16 with"});
  config_.batch.global_batch_size = 8;
  const RunResult own = run(config_, 2);
  EXPECT_EQ(own.losses.at(0), as_before) << "the weights are those of step 4";
  EXPECT_NE(own.losses.at(1), with_step_6);
}

// Weight decay ramps over the run: a longer run has another schedule.
TEST(ResumedRun, OfADecayThatRampsIsAsLong) {
  const TempDir dir;
  Config config = small_run(dir / "run");
  config.train.train_iters = 2;
  config.checkpoint.save_interval = 2;
  config.optimizer.weight_decay_incr_style = Ramp::linear;
  config.optimizer.start_weight_decay = 0;
  config.optimizer.end_weight_decay = 0.4;
  ASSERT_EQ(run(config, 1).exit_code, 0);
  config.train.train_iters = 3;
  const std::string error = message_of([&] { run(config, 1); });
  EXPECT_NE(error.find("train.train_iters: found 2 in the checkpoint and 3 in this run"), std::string::npos) << error;
}

// Without a tokenizer, a sample's text cannot be written: an error before the first step, not after the last.
TEST(Sample, NeedsATokenizerBeforeTraining) {
  const TempDir dir;
  const Config config = small_run(dir / "run");
  RunOptions options;
  for (const char* prompt : {"A house", ""}) {
    options.prompt = prompt;
    const std::string error = message_of<DataError>([&] { run(config, 1, options); });
    EXPECT_NE(error.find("expected one of them to name its tokenizer"), std::string::npos) << error;
  }
  Config gathers = cut(config, {.d = 2, .strategy = "optim"});
  gathers.precision = {.dtype = DType::bf16, .fp8 = Fp8::hybrid, .fp8_param_gather = true};
  const std::string error = message_of<ConfigError>([&] { run(gathers, 2, options); });
  EXPECT_NE(error.find("--generate: text is generated in bf16"), std::string::npos) << error;
  EXPECT_FALSE(std::filesystem::exists(config.train.run_dir));
}

}  // namespace
}  // namespace trivet::test
