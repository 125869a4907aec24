// Which checkpoints are kept, and their mirror.
#include <filesystem>
#include <gtest/gtest.h>
#include <set>

#include "engine/checkpoint/mirror.h"
#include "engine/checkpoint/open_checkpoint.h"
#include "engine/train/checkpointing.h"
#include "tests/engine/checkpoint/runs.h"
#include "tests/support/temp_dir.h"
#include "tests/support/training.h"

namespace trivet::test {
namespace {

namespace fs = std::filesystem;

void commit(const CheckpointStore& store, int64_t step, std::optional<double> loss, const Retention& keep) {
  const std::string temporary = store.temporary_path_of(step, "x");
  fs::create_directories(temporary);
  write_text(temporary + "/train_state.json", to_json(TrainState{.step = step, .validation_loss = loss}));
  store.commit(step, temporary);
  store.remove_old(step, temporary, keep);
}

std::set<int64_t> kept(const CheckpointStore& store) {
  const std::vector<int64_t> steps = store.steps();
  return {steps.begin(), steps.end()};
}

// Names sort differently from numbers, and the best checkpoint is the oldest (transformers 27138).
TEST(Retention, KeepsTheLastAndTheBest) {
  const TempDir dir;
  const CheckpointStore store(dir / "checkpoints");
  const Retention keep{.last = 2, .best = 1};
  commit(store, 9'800, 3.5, keep);
  commit(store, 9'900, 3.0, keep);
  commit(store, 10'000, 3.2, keep);
  commit(store, 10'100, 3.1, keep);
  EXPECT_EQ(kept(store), (std::set<int64_t>{9'900, 10'000, 10'100}));
  commit(store, 10'200, {}, keep);  // this step was not evaluated
  EXPECT_EQ(kept(store), (std::set<int64_t>{9'900, 10'100, 10'200}));
  commit(store, 10'300, 3.0, keep);  // the newer of two equally good ones
  EXPECT_EQ(kept(store), (std::set<int64_t>{10'200, 10'300}));
}

TEST(Retention, KeepsThoseOfAnInterval) {
  const TempDir dir;
  const CheckpointStore store(dir / "checkpoints");
  for (int64_t step = 10; step <= 100; step += 10) commit(store, step, {}, {.last = 1, .interval = 40});
  EXPECT_EQ(kept(store), (std::set<int64_t>{40, 80, 100}));
  // Later steps, which remain after a resume from further back, are left alone.
  commit(store, 50, {}, {.last = 1});
  EXPECT_EQ(kept(store), (std::set<int64_t>{50, 80, 100}));
}

// A loss of an earlier evaluation would make an unevaluated step the best.
TEST(Retention, OnlyStepsThatWereEvaluatedHaveALoss) {
  const TempDir dir;
  Config config = small_run(dir / "run");
  config.train.train_iters = 4, config.train.eval_interval = 2, config.train.eval_iters = 1;
  config.checkpoint.save_interval = 1, config.checkpoint.keep_last = 0;
  config.checkpoint.async_save = false;  // no step is left out
  const RunResult result = run(config, 1);
  ASSERT_EQ(result.evaluations.size(), 2u);
  for (int64_t step = 1; step <= 4; ++step) {
    const auto loss = open_checkpoint(step_path(dir / "run", step)).state.validation_loss;
    ASSERT_EQ(loss.has_value(), step % 2 == 0) << step;
    if (loss) {
      EXPECT_EQ(*loss, result.evaluations.at(step)) << step;
    }
  }
}

Config mirrored_run(const TempDir& dir) {
  Config config = small_run(dir / "run");
  config.train.train_iters = 6;
  config.checkpoint.save_interval = 2, config.checkpoint.keep_last = 2;
  config.checkpoint.mirror = dir / "mirror";
  return config;
}

TEST(Mirror, HasTheCheckpointsOfTheRunAndResumesIt) {
  const TempDir dir;
  Config config = mirrored_run(dir);
  const auto expect_the_same = [&] {
    ASSERT_EQ(CheckpointStore(dir / "mirror").latest(), 6);
    for (const auto& file : fs::directory_iterator(step_path(dir / "run", 6)))
      EXPECT_EQ(read_text(file.path()), read_text(dir / "mirror/step-00000006/" + file.path().filename().string()));
  };
  run(config, 2);
  expect_the_same();
  // The last steps are trained, and saved, again with another learning rate.
  const std::string before = read_text(dir / "mirror/step-00000006/manifest.json");
  config.optimizer.lr /= 2, config.optimizer.override_opt_param_scheduler = true;
  run(config, 2, {.resume = step_path(dir / "run", 4)});
  expect_the_same();
  EXPECT_NE(read_text(dir / "mirror/step-00000006/manifest.json"), before);
  // The first copy is lost: the run continues from the mirror.
  fs::remove_all(dir / "run");
  config.train.train_iters = 8;
  run(config, 2, {.resume = dir / "mirror"});
  EXPECT_EQ(CheckpointStore(dir / "run/checkpoints").latest(), 8);
  EXPECT_EQ(CheckpointStore(dir / "mirror").latest(), 8);
}

// A run that was killed before its last step was copied, and has nothing left to train or save.
TEST(Mirror, GetsTheStepThatARunIsResumedFrom) {
  const TempDir dir;
  Config config = mirrored_run(dir);
  config.checkpoint.mirror.clear();
  ASSERT_EQ(run(config, 1).exit_code, 0);
  config.checkpoint.mirror = dir / "mirror";
  const Layout layout = resolved(config, 1).layout;
  with_trainers(config, 1, [&](Trainer& trainer) {
    Checkpointing checkpointing(trainer.config(), layout, trainer, nullptr, {}, now_ns());
    checkpointing.resume(step_path(dir / "run", 6), false);
    EXPECT_FALSE(checkpointing.after_step(trainer.host().sum(checkpointing.votes())));  // awaits the mirror
  });
  EXPECT_EQ(CheckpointStore(dir / "mirror").latest(), 6);
}

TEST(Mirror, TakesNoCopyThatIsDamaged) {
  const TempDir dir;
  Config config = mirrored_run(dir);
  config.checkpoint.mirror.clear();
  run(config, 1);
  const std::string shard = step_path(dir / "run", 6) + "/rank-00000.safetensors";
  std::string text = read_text(shard);
  text[text.size() - 3] ^= 1;  // a bit has flipped on the disk since
  write_text(shard, text);
  const CheckpointStore to(dir / "mirror");
  {
    CheckpointMirror mirror(CheckpointStore(dir / "run/checkpoints"), to, {});
    mirror.copy(6);
    ASSERT_TRUE(mirror.wait(60));
    const std::string problem = mirror.take_problem();
    EXPECT_NE(problem.find("step 6"), std::string::npos) << problem;
    EXPECT_NE(problem.find("rank-00000.safetensors"), std::string::npos) << problem;
    mirror.copy(4);
    ASSERT_TRUE(mirror.wait(60));
    EXPECT_EQ(mirror.take_problem(), "");
  }
  EXPECT_EQ(kept(to), std::set<int64_t>{4});
  EXPECT_EQ(std::distance(fs::directory_iterator(dir / "mirror"), {}), 3)
      << "no half copy beside step, latest and mark";
}

TEST(Mirror, KeepsWhatTheRunKeeps) {
  const TempDir dir;
  Config config = mirrored_run(dir);
  config.checkpoint.mirror.clear(), config.checkpoint.keep_last = 0;
  run(config, 1);
  const CheckpointStore to(dir / "mirror");
  CheckpointMirror mirror(CheckpointStore(dir / "run/checkpoints"), to, {.last = 1, .interval = 4});
  for (const int64_t step : {2, 4, 6}) {
    mirror.copy(step);
    ASSERT_TRUE(mirror.wait(60));
    EXPECT_EQ(mirror.take_problem(), "");
  }
  EXPECT_EQ(kept(to), (std::set<int64_t>{4, 6}));
}

TEST(Mirror, OfAnotherRunIsRefused) {
  const TempDir dir;
  Config config = mirrored_run(dir);
  run(config, 1);
  config.train.run_dir = dir / "other";
  for (const char* folder : {"mirror", "run/checkpoints"}) {
    config.checkpoint.mirror = dir / folder;
    try {
      run(config, 2);
      ADD_FAILURE() << folder;
    } catch (const ConfigError& error) {
      EXPECT_NE(std::string(error.what()).find("checkpoint.mirror: " + config.checkpoint.mirror), std::string::npos)
          << error.what();
    }
    EXPECT_EQ(CheckpointStore(config.checkpoint.mirror).latest(), 6);
  }
}

// A lost mirror costs a line in the log, not the run.
TEST(Mirror, WithoutItsDiskTheRunGoesOn) {
  const TempDir dir;
  Config config = mirrored_run(dir);
  run(config, 1);
  write_text(dir / "file", "");
  config.checkpoint.mirror = dir / "file/below";
  config.train.train_iters = 8;
  const RunResult without = run(config, 1);  // a resumed run continues
  EXPECT_EQ(without.exit_code, 0);
  EXPECT_NE(without.output.find("checkpoint.mirror: " + (dir / "file")), std::string::npos) << without.output;
  config.train.run_dir = dir / "new";
  EXPECT_THROW(run(config, 1), IoError) << "of a new run it is a mistake to mend";
  const CheckpointStore to(dir / "mirror");
  CheckpointMirror mirror(CheckpointStore(dir / "run/checkpoints"), to, {});
  fs::remove_all(dir / "mirror");
  mirror.copy(6);
  ASSERT_TRUE(mirror.wait(60));
  EXPECT_NE(mirror.take_problem().find("checkpoint.mirror: step 6"), std::string::npos);
}

}  // namespace
}  // namespace trivet::test
