// Runs that end early or can no longer write, because of full disks, missing folders, signals and limits.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <mutex>
#include <set>
#include <spawn.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <thread>
#include <utility>

#include "base/host.h"
#include "base/json.h"
#include "base/stop_signal.h"
#include "engine/checkpoint/open_checkpoint.h"
#include "engine/config/load.h"
#include "engine/data/gpt_dataset.h"
#include "engine/data/statistics.h"
#include "engine/fault/flight_dump.h"
#include "engine/train/run.h"
#include "kernels/base/device.h"
#include "parallel/comm/nccl_comm.h"
#include "tests/engine/checkpoint/runs.h"
#include "tests/support/message_of.h"
#include "tests/support/temp_dir.h"
#include "tests/support/training.h"
#include "tests/support/where.h"

extern char** environ;

namespace trivet::test {
namespace {

// Retries, because the thread of metrics.jsonl may recreate that file, which makes its folder non-empty.
bool remove_under_a_writer(const std::string& folder) {
  std::error_code error;
  do std::filesystem::remove_all(folder, error);
  while (error == std::errc::directory_not_empty);
  return !error;
}

// A learning rate that leaves no usable weights, although the step's own loss was finite.
TEST(Saving, CommitsNoNumberThatIsNotFinite) {
  const TempDir dir;
  Config config = small_run(dir / "run");
  config.train.train_iters = 1;
  config.optimizer.lr = 3e38, config.optimizer.min_lr = 3e38, config.optimizer.clip_grad = 0;
  config.train.eval_interval = 1, config.train.eval_iters = 1;
  EXPECT_NE(message_of<NumericsError>([&] { run(config, 1); }).find("the evaluation after step 1"), std::string::npos);
  config.train.eval_interval = 0, config.train.eval_iters = TrainConfig().eval_iters;
  config.train.run_dir = dir / "unseen";
  EXPECT_NE(message_of<IoError>([&] { run(config, 1); }).find("has a non-finite value"), std::string::npos);
  for (const char* name : {"run", "unseen"})
    EXPECT_TRUE(CheckpointStore(dir / name + "/checkpoints").steps().empty()) << name;
}

TEST(Saving, RemovesTheOthersWhereOneOldCheckpointCannotBeRemoved) {
  const TempDir dir;
  Config config = small_run(dir / "run");
  config.train.train_iters = 5;
  config.checkpoint.save_interval = 1, config.checkpoint.keep_last = 1;
  const Disk::Fault fault = [&](DiskOp op, const std::string& path) {
    return op == DiskOp::remove && path.ends_with("step-00000001.tmp-old") ? DiskFate::no_space : DiskFate::normal;
  };
  const RunResult result = run(config, 1, {.resume = "auto", .stop_signal = {}, .disk_fault = fault});
  EXPECT_EQ(result.exit_code, 0) << result.output;
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(dir / "run/checkpoints"))
    names.insert(entry.path().filename());
  EXPECT_EQ(names, (std::set<std::string>{"latest", "step-00000001.tmp-old", "step-00000005"}));
}

TEST(RunFolder, IsNoCheckpointAndHoldsNoPipes) {
  const TempDir dir;
  Config config = small_run(dir / "run");
  config.train.train_iters = 1;
  ASSERT_EQ(run(config, 1).exit_code, 0);
  const auto refused = [&](const std::string& run_dir) {
    Config other = config;
    other.train.run_dir = run_dir;
    return message_of<ConfigError>([&] { run(other, 1); });
  };
  EXPECT_NE(refused(dir / "run/checkpoints/step-00000001").find("is a checkpoint"), std::string::npos);
  EXPECT_NE(refused(dir / "run/checkpoints").find("folder of a run's checkpoints"), std::string::npos);
  EXPECT_NE(refused("~/run").find("~ is not expanded"), std::string::npos);
  std::filesystem::create_directory(dir / "pipe");
  ASSERT_EQ(mkfifo((dir / "pipe/metrics.jsonl").c_str(), 0600), 0);
  EXPECT_NE(refused(dir / "pipe").find("metrics.jsonl is not a regular file"), std::string::npos);
  std::filesystem::create_directory(dir / "linked");
  std::filesystem::create_symlink(dir / "run/outcome.json", dir / "linked/config.resolved.yaml");
  EXPECT_NE(refused(dir / "linked").find("config.resolved.yaml is not a regular file"), std::string::npos);
  // The folder itself may be a symbolic link.
  std::filesystem::create_directory(dir / "elsewhere");
  config.train.run_dir = dir / "link";
  std::filesystem::create_directory_symlink(dir / "elsewhere", config.train.run_dir);
  EXPECT_EQ(run(config, 1).exit_code, 0);
  EXPECT_EQ(CheckpointStore(dir / "elsewhere/checkpoints").latest(), 1);
}

TEST(RunFolder, RefusesALatestWhoseCheckpointIsGone) {
  const TempDir dir;
  Config config = small_run(dir / "run");
  config.train.train_iters = 1;
  ASSERT_EQ(run(config, 1).exit_code, 0);
  std::filesystem::remove_all(dir / "run/checkpoints/step-00000001");
  EXPECT_NE(message_of<DataError>([&] {
              run(config, 1, {.resume = "auto"});
            }).find("latest names a checkpoint that does not exist"),
            std::string::npos);
}

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

// A file system that fails occasionally does not end a run of weeks: only consecutive failures count.
TEST(Saving, GoesOnWhenSavesFailButNotInARow) {
  const TempDir dir;
  Config config = small_run(dir / "run");
  config.train.train_iters = 6;
  config.checkpoint.save_interval = 1;
  const Disk::Fault fault = [](DiskOp op, const std::string& path) {
    for (const char* step : {"00000001", "00000002", "00000004", "00000005"})
      if (op == DiskOp::create && path.find(step) != std::string::npos) return DiskFate::no_space;
    return DiskFate::normal;
  };
  const RunResult result = run(config, 1, {.resume = "auto", .stop_signal = {}, .disk_fault = fault});
  EXPECT_EQ(result.losses.size(), 6u);
  for (const char* part : {"step 2 could not be saved (2 of", "step 4 could not be saved (1 of", "step 5 could not be"})
    EXPECT_NE(result.output.find(part), std::string::npos) << part << " in\n" << result.output;
  EXPECT_EQ(CheckpointStore(dir / "run/checkpoints").steps(), (std::vector<int64_t>{6, 3}));
}

// A run that reconnects after another run has taken over its folder no longer writes to it.
TEST(Saving, EndsInAFolderThatIsAnothersByNow) {
  const TempDir dir;
  Config config = small_run(dir / "run");
  config.train.train_iters = 1'000'000;
  config.checkpoint.save_interval = 1;  // each step checks
  RunOptions options;
  std::atomic<int> calls = 0;
  options.stop_signal = [&] {
    if (++calls != 3) return 0;
    write_text(dir / "other", "another's");
    std::filesystem::rename(dir / "other", dir / "run/lock");
    return 0;
  };
  const std::string error = message_of<ConfigError>([&] { run(config, 1, options); });
  EXPECT_NE(error.find("another run has taken the folder over: another's"), std::string::npos) << error;
  EXPECT_EQ(CheckpointStore(dir / "run/checkpoints").latest(), 2);
  for (const auto& record : records_of(dir / "run")) EXPECT_LT(record["step"], 3) << record;
  EXPECT_EQ(read_text(dir / "run/lock"), "another's");
  EXPECT_FALSE(std::filesystem::exists(dir / "run/outcome.json"));
  EXPECT_FALSE(std::filesystem::exists(flight_path(dir / "run", 0)));
  for (const auto& entry : std::filesystem::directory_iterator(dir / ""))
    EXPECT_EQ(entry.path().filename(), "run") << "the other run has its checkpoints";
}

// Between saves, the run checks every two seconds.
TEST(Saving, NoticesBetweenItsSavesThatTheFolderIsAnothers) {
  const TempDir dir;
  Config config = small_run(dir / "run");
  config.train.train_iters = 1'000'000;
  RunOptions options;
  std::atomic<int> calls = 0;
  options.stop_signal = [&] {
    if (++calls == 3) write_text(dir / "run/lock", "another's");
    return 0;
  };
  const std::string error = message_of<ConfigError>([&] { run(config, 2, options); });
  EXPECT_NE(error.find("another run has taken the folder over"), std::string::npos) << error;
  EXPECT_FALSE(std::filesystem::exists(dir / "run/checkpoints/latest"));
}

// The run's directory is deleted, or moved away and replaced, while the run writes to it. Whatever is then at its path
// is left alone, and the state is saved to a directory beside it.
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
    if (!replaced) return remove_under_a_writer(dir / "run") ? 0 : SIGTERM;
    std::filesystem::rename(dir / "run", dir / "moved");
    std::filesystem::create_directories(dir / "run/checkpoints");
    return 0;
  };
  // when: one rank, so that no other rank writes while the directory is removed
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

// `rm -rf` of a run that is still writing may leave the directory without its contents, or remove only some of them.
TEST(Saving, OutlivesTheContentOfItsFolder) {
  const TempDir dir;
  Config config = small_run(dir / "run");
  config.train.train_iters = 6;
  config.checkpoint.save_interval = 1;
  const auto run_without = [&](const std::vector<std::string>& names) {
    RunOptions options;
    const auto look = stop_after(3);
    std::atomic<bool> lost = false;
    options.stop_signal = [&] {
      if (look() == 0 || lost.exchange(true)) return 0;
      for (const std::string& name : names) std::filesystem::remove_all(dir / "run/" + name);
      return 0;
    };
    return run(config, 1, options);
  };
  const std::string note = "/run/checkpoints: was removed or emptied; it is created again";
  EXPECT_NE(run_without({"checkpoints"}).output.find(note), std::string::npos);
  EXPECT_EQ(CheckpointStore(dir / "run/checkpoints").steps().front(), 6);
  std::filesystem::remove_all(dir / "run");
  const std::string error = message_of<ConfigError>([&] {
    // In this order: without config.resolved.yaml, metrics.jsonl is not recreated.
    run_without({"checkpoints", "lock", "config.resolved.yaml", "metrics.jsonl"});
  });
  EXPECT_NE(error.find("was emptied while the run was writing to it; step "), std::string::npos) << error;
  EXPECT_NE(error.find("is saved: --resume " + (dir / "run.saved-")), std::string::npos) << error;
  EXPECT_TRUE(std::filesystem::is_empty(dir / "run") || !std::filesystem::exists(dir / "run/metrics.jsonl"));
}

TEST(Saving, IsNotPossibleInALostFolderWithoutCheckpoints) {
  const TempDir dir;
  Config config = small_run(dir / "run");
  config.train.train_iters = 4;
  config.checkpoint.save_interval = 0;
  RunOptions options;
  const auto look = stop_after(2);
  options.stop_signal = [&] {
    if (look() != 0) remove_under_a_writer(dir / "run");
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

// Step 1 is still being written when step 3, which is to be kept for good, is done: the run waits, and saves it.
TEST(Saving, AStepToRetainWaitsForASlowDisk) {
  const TempDir dir;
  Config config = small_run(dir / "run");
  config.train.train_iters = 4;
  config.checkpoint.save_interval = 1, config.checkpoint.keep_last = 1, config.checkpoint.save_retain_interval = 3;
  config.checkpoint.async_save = true;
  std::mutex mutex;
  std::condition_variable changed;
  int steps = 0;
  bool slow = true;
  const RunResult result =
      run(config, 1,
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
                 if (op != DiskOp::write || !std::exchange(slow, false)) return DiskFate::normal;
                 changed.wait(lock, [&] { return steps >= 3; });
                 // The disk takes the first write once step 3 waits for it, or once step 4 shows that it does not.
                 changed.wait_for(lock, std::chrono::milliseconds(300), [&] { return steps >= 4; });
                 return DiskFate::normal;
               }});
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_NE(result.output.find("step 2 is not saved: step 1 is still being written"), std::string::npos)
      << result.output;
  EXPECT_EQ(CheckpointStore(dir / "run/checkpoints").steps(), (std::vector<int64_t>{4, 3})) << result.output;
}

TEST(Stopping, InTime) {
  const TempDir dir;
  Config config = small_run(dir / "minutes");
  config.train.exit_duration_in_mins = 1e-9;
  const RunResult late = run(config, 2);
  EXPECT_EQ(late.exit_code, 75);
  EXPECT_EQ(late.losses.size(), 1u);
  EXPECT_NE(late.output.find("stopping after step 1, before the time is up"), std::string::npos) << late.output;

  // A resumed run leaves time for a save as long as the longest of its earlier jobs, which took longer than the limit,
  // though it hardly delayed a step.
  const std::string records = dir / "minutes/metrics.jsonl";
  write_text(records, read_text(records) + R"({"event":"checkpoint","step":1,"stall_seconds":0.001,"seconds":1000})"
                                           "\n");
  config.train.exit_duration_in_mins = 10;
  const RunResult resumed = run(config, 2, {.resume = "auto"});
  EXPECT_EQ(resumed.exit_code, 75);
  EXPECT_EQ(resumed.losses.size(), 1u);

  config.train.exit_duration_in_mins = 0;
  for (const char* variable : {"SLURM_JOB_END_TIME", "TRIVET_END_TIME"}) {
    config.train.run_dir = dir / variable;
    setenv(variable, std::to_string(time(nullptr)).c_str(), 1);
    const RunResult job = run(config, 2);
    unsetenv(variable);
    EXPECT_EQ(job.exit_code, 75) << variable;
    EXPECT_EQ(job.losses.size(), 1u) << variable;
  }
}

TEST(Stopping, ATimeThatIsNoneIsNamedAndNotLookedAt) {
  const TempDir dir;
  for (const char* value : {"2026-11-28T10:00", "1e10", "99999999999999", "0"}) {
    Config config = small_run(dir / "run");
    config.train.train_iters = 2;
    setenv("TRIVET_END_TIME", value, 1);
    const RunResult result = run(config, 1, {.resume = "none"});
    unsetenv("TRIVET_END_TIME");
    EXPECT_EQ(result.exit_code, 0) << value;
    EXPECT_NE(result.output.find(fmt::format("TRIVET_END_TIME: found {}, expected", value)), std::string::npos)
        << result.output;
    std::filesystem::remove_all(dir / "run");
  }
}

// Jobs that each run two steps, save and are queued again.
TEST(Stopping, AChainOfJobsHasTheLossesOfOneRun) {
  const TempDir dir;
  constexpr int kChain = 5, kOfAJob = 2;
  Config config = small_run(dir / "whole");
  config.train.train_iters = kChain;
  const RunResult whole = run(config, 2);
  config.train.run_dir = dir / "chain";
  config.train.exit_interval = kOfAJob;
  std::vector<double> losses;
  for (int job = 1; static_cast<int>(losses.size()) < kChain; ++job) {
    const RunResult part = run(config, 2);
    ASSERT_EQ(part.exit_code, kOfAJob * job < kChain ? 75 : 0) << part.output;
    EXPECT_EQ(part.output.find("as train.exit_interval says") != std::string::npos, part.exit_code == 75);
    losses.insert(losses.end(), part.losses.begin(), part.losses.end());
    ASSERT_EQ(static_cast<int>(losses.size()), std::min(kOfAJob * job, kChain));
  }
  EXPECT_EQ(losses, whole.losses);
  expect_each_step_once(dir / "chain", kChain);
}

#ifdef TRIVET_EMULATED_GPU
// On a GPU the next step is queued before a step's result is read; the last step of a job is read before it is saved.
TEST(Stopping, AChainOfJobsOnAGpuHasReadEachStep) {
  const TempDir dir;
  Config config = small_run(dir / "chain");
  config.model.seq_length = 8;
  config.batch = {.micro_batch_size = 1, .global_batch_size = 2};
  config.train.eval_interval = 0;
  config.checkpoint.save_interval = 100;
  config.train.train_iters = 5;
  config.train.exit_interval = 2;
  config.device.kind = DeviceKind::cuda;
  for (const int step : {2, 4, 5}) {
    const RunResult part = run(config, 1);
    ASSERT_EQ(part.exit_code, step < 5 ? 75 : 0) << part.output;
    expect_each_step_once(dir / "chain", step);
  }
}
#endif

// The run's own limit and the job's end both apply: the earlier of the two counts.
TEST(Stopping, InTimeAsTheEarlierOfTwoLimitsSays) {
  const TempDir dir;
  constexpr int64_t kHour = 3600;
  for (const auto& [minutes, job_s] : {std::pair{1e-9, kHour}, {60.0, int64_t{0}}}) {
    Config config = small_run(dir / fmt::format("{}", job_s));
    config.train.exit_duration_in_mins = minutes;
    setenv("SLURM_JOB_END_TIME", std::to_string(time(nullptr) + job_s).c_str(), 1);
    const RunResult result = run(config, 2);
    unsetenv("SLURM_JOB_END_TIME");
    EXPECT_EQ(result.exit_code, 75) << minutes;
    EXPECT_EQ(result.losses.size(), 1u) << minutes;
  }
}

// A limit that is ten minutes away does not end a run after one second.
TEST(Stopping, NotBeforeItsTime) {
  for (const char* limit : {"minutes", "slurm"}) {
    const TempDir dir;
    Config config = small_run(dir / "run");
    config.train.train_iters = 3;
    if (std::string(limit) == "minutes") config.train.exit_duration_in_mins = 10;
    else setenv("SLURM_JOB_END_TIME", std::to_string(time(nullptr) + 600).c_str(), 1);
    RunOptions options;
    options.stop_signal = [] { return std::this_thread::sleep_for(std::chrono::milliseconds(400)), 0; };
    const RunResult result = run(config, 1, options);
    unsetenv("SLURM_JOB_END_TIME");
    EXPECT_EQ(result.exit_code, 0) << limit << result.output;
    EXPECT_EQ(result.losses.size(), 3u) << limit;
  }
}

// The entropy next to the validation losses is the validation set's, not the training set's.
TEST(Evaluating, TellsTheEntropyOfTheValidationSet) {
  const TempDir dir;
  Config config = small_run(dir / "run");
  config.train.train_iters = 1;
  config.train.eval_interval = config.train.eval_iters = 1;
  const auto dataset = tiny_dataset();
  const DocumentRange valid = split_documents(config.data.split, dataset->sequences())[1];
  const std::string expected =
      fmt::format("unigram entropy is {:.4f} nats", unigram_entropy(count_tokens(*dataset, valid)));
  const RunResult result = run(config, 1);
  EXPECT_NE(result.output.find(expected), std::string::npos) << expected << result.output;
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
    int status = 0;  // from waitpid
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

  // Starts `trivet train` on two ranks through a shell. `script` is the shell's command, in which COMMAND is that
  // program with its arguments.
  pid_t start(const Config& config, const std::string& script, const std::string& more = "") {
    write_text(dir_ / "run.yaml", to_yaml(config));
    const std::string command = core_path() + " train " + (dir_ / "run.yaml") + " --ranks 2 " + more;
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

  // Starts the program and, once it has completed a step, sends the signals, with `pause` after the first.
  Ended signalled(const std::vector<int>& signals, std::chrono::milliseconds pause = {}, const std::string& more = "") {
    const size_t before = read_text(dir_ / "run/metrics.jsonl").size();
    const pid_t child = start(config_for(1'000'000), "exec $COMMAND", more);
    while (read_text(dir_ / "run/metrics.jsonl").find("\"loss\"", before) == std::string::npos) {
      Ended end;
      if (waitpid(child, &end.status, WNOHANG) != 0) return end;
      std::this_thread::yield();
    }
    // Without a pause, all signals arrive before it can react to the first: it is stopped while they are sent.
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
  // timeout(1) and schedulers send SIGTERM twice, a closing terminal sends SIGHUP.
  for (const std::vector<int>& signals : std::vector<std::vector<int>>{
           {SIGTERM}, {SIGUSR1}, {SIGUSR2}, {SIGXCPU}, {SIGTERM, SIGINT, SIGTERM}, {SIGHUP, SIGHUP}}) {
    const Ended end = signalled(signals);
    ASSERT_EQ(end.exit_code(), 75);
    EXPECT_NE(end.error.find("the run ends after this step and saves it"), std::string::npos) << end.error;
    const auto step = CheckpointStore(dir_ / "run/checkpoints").latest();
    ASSERT_TRUE(step.has_value());
    EXPECT_GT(*step, before);
    before = *step;
  }
}

// Ranks that use NCCL are processes, however the command was started; comm.backend: thread asks for threads.
TEST_F(Program, StartsAProcessForEachGpu) {
  if (!built_with_nccl() || cuda_device_count() < 2) GTEST_SKIP() << "of NCCL and two GPUs";
  write_text(dir_ / "mpirun", "#!/bin/sh\nprintf '<%s>' \"$@\" >&2\nexit 5\n");
  ASSERT_EQ(chmod((dir_ / "mpirun").c_str(), 0755), 0);
  const std::string script = "export PATH=" + (dir_ / "") + ":$PATH\nexec $COMMAND";
  for (const std::string backend : {"auto", "nccl"}) {
    const std::string more = "--set device.kind=cuda --set comm.backend=" + backend;
    const Ended end = run_to_end(config_for(2), script, more);
    EXPECT_EQ(end.exit_code(), 5);
    EXPECT_EQ(end.error, fmt::format("<-n><2><--bind-to><none><{}><train><{}><--ranks><2><--set><device.kind=cuda>"
                                     "<--set><comm.backend={}>",
                                     std::filesystem::canonical(core_path()).string(), dir_ / "run.yaml", backend));
  }
  for (const char* more : {"--set comm.backend=auto", "--set device.kind=cuda --set comm.backend=thread"}) {
    const Ended threads = run_to_end(config_for(4), script, more);
    EXPECT_EQ(threads.exit_code(), 0) << threads.error;
  }
  const Ended none = run_to_end(config_for(2), "export PATH=" + (dir_ / "none") + "\nexec $COMMAND",
                                "--set device.kind=cuda --set comm.backend=auto");
  EXPECT_EQ(none.exit_code(), 64);
  for (const char* part : {"comm.backend", "auto", "mpirun cannot be started", "thread"})
    EXPECT_NE(none.error.find(part), std::string::npos) << none.error;
}

// SIGQUIT (^\ at the terminal) and SIGALRM end the program; SIGQUIT does not if a script started it with the shell's &.
TEST_F(Program, LeavesAnOutcomeWhereASignalEndsIt) {
  for (const int signal : {SIGQUIT, SIGALRM}) {
    const Ended end = signalled({signal});
    EXPECT_EQ(end.signal(), signal) << end.error;
    const auto outcome = parse_json(read_text(dir_ / "run/outcome.json"));
    EXPECT_EQ(outcome.at("status"), "died");
    EXPECT_EQ(outcome.at("exit_code"), 128 + signal);
  }
  const auto usual = std::signal(SIGQUIT, SIG_IGN);  // which the program inherits
  const Ended end = signalled({SIGQUIT, SIGTERM});
  std::signal(SIGQUIT, usual);
  EXPECT_EQ(end.exit_code(), 75);
}

// A link on which a call would take hours is a hang like any other.
TEST_F(Program, EndsWhereALinkIsTooSlow) {
  Config config = config_for(5);
  config.comm.timeout_s = 0.5;
  config.comm.link_gbps = 1e-9;
  const Ended end = run_to_end(config, "exec $COMMAND");
  EXPECT_EQ(end.exit_code(), 124) << end.error;
  EXPECT_EQ(parse_json(read_text(dir_ / "run/outcome.json")).at("status"), "hung");
}

TEST_F(Program, SaysWhichFaultsDidNotHappen) {
  const Ended late = run_to_end(config_for(2), "exec $COMMAND", "--inject nan:0:3");
  EXPECT_EQ(late.exit_code(), 64);
  EXPECT_NE(late.error.find("--inject nan:0:3: step 3 is not in this run, whose train.train_iters is 2"),
            std::string::npos)
      << late.error;
  const Ended unsaved = run_to_end(config_for(2), "exec $COMMAND", "--inject enospc:last:1 --inject slow=1:0:1");
  EXPECT_EQ(unsaved.exit_code(), 0) << unsaved.error;
  EXPECT_EQ(unsaved.error, "[rank 1] --inject enospc:last:1: never happened in this run\n");
}

TEST_F(Program, RunsOnAfterASignalThatNohupIgnores) {
  const auto usual = std::signal(SIGHUP, SIG_IGN);  // which the program inherits
  const Ended end = signalled({SIGHUP, SIGTERM});
  std::signal(SIGHUP, usual);
  EXPECT_EQ(end.exit_code(), 75);  // because of the first signal that it saw
}

TEST_F(Program, ALaterSignalEndsItAtOnceAndSaysWhatIsLost) {
  // The run's second step takes hours.
  const Ended end = signalled({SIGTERM, SIGINT}, std::chrono::milliseconds(1200), "--inject slow=1000000:all:2");
  EXPECT_EQ(end.signal(), SIGINT);
  EXPECT_NE(end.error.find("trivet: SIGTERM: the run ends after this step"), std::string::npos) << end.error;
  EXPECT_NE(end.error.find("trivet: SIGINT: the run ends immediately; lost: step"), std::string::npos) << end.error;
}

// Runs until this disk operation, during which it gets two signals, and ends at the second.
[[noreturn]] void interrupt_at(Config config, DiskOp op, const std::string& name, int steps) {
  watch_stop_signals("", "");
  const auto fault = [&](DiskOp now, const std::string& path) {
    if (now != op || path.find(name) == std::string::npos) return DiskFate::normal;
    std::raise(SIGTERM);
    std::this_thread::sleep_for(std::chrono::milliseconds(1000 * kImpatienceSeconds + 100));
    std::raise(SIGINT);
    return DiskFate::normal;
  };
  run(config, 1, {.resume = "auto", .stop_signal = stop_after(steps), .disk_fault = fault});
  std::_Exit(1);
}

// The steps done and the checkpoint committed are those at this moment, not at the last step boundary.
TEST(Stopping, ALaterSignalCountsTheLostSteps) {
  const TempDir dir;
  Config config = small_run(dir / "run");
  config.checkpoint.save_interval = 2, config.checkpoint.keep_last = 1;
  EXPECT_EXIT(interrupt_at(config, DiskOp::write, "step-00000003", 3), testing::KilledBySignal(SIGINT),
              "SIGINT: the run ends immediately; lost: step 3, done since the last checkpoint\n$");
  config.train.run_dir = dir / "committed";
  EXPECT_EXIT(interrupt_at(config, DiskOp::remove, "step-00000002.tmp-old", 5), testing::KilledBySignal(SIGINT),
              "SIGINT: the run ends immediately; lost: the step in progress\n$");
}

// A log on a terminal: the progress bar below a step's line counts that step.
TEST_F(Program, TheBarCountsTheStepAboveIt) {
  const Ended end = run_to_end(
      config_for(4), "exec script -qec \"stty cols 80; $COMMAND\" /dev/null >" + (dir_ / "terminal") + " </dev/null");
  EXPECT_EQ(end.exit_code(), 0) << end.error;
  const std::string shown = read_text(dir_ / "terminal");
  for (int step = 1; step < 4; ++step) {
    const size_t line = shown.find(fmt::format("      {}/4  ", step));
    ASSERT_NE(line, std::string::npos) << shown;
    const size_t bar = shown.find("]  ", shown.find('\n', line));
    EXPECT_EQ(shown.substr(bar + 3, 3), fmt::format("{}/4", step)) << shown;
  }
}

// `trivet train | head`, and a terminal that has closed.
TEST_F(Program, TrainsOnWithoutAReader) {
  for (const char* script : {"$COMMAND | true; exit ${PIPESTATUS[0]}",  // its reader has exited
                             "exec $COMMAND >/dev/full",                // its disk is full
                             "$COMMAND 2> >(true) | true; exit ${PIPESTATUS[0]}",
                             "exec $COMMAND </dev/null 2</dev/null", "exec $COMMAND >&- 2>&-"}) {
    std::filesystem::remove_all(dir_ / "run");
    const Ended end = run_to_end(config_for(30), script);
    EXPECT_EQ(end.exit_code(), 0) << script << "\n" << end.error;
    expect_each_step_once(dir_ / "run", 30);
    const std::string log = read_text(dir_ / "run/log");
    const bool gone = std::string(script).find("2<") == std::string::npos;
    EXPECT_EQ(log.find("standard output is gone: ") != std::string::npos, gone) << script << "\n" << log;
    EXPECT_NE(log.find("30/30"), std::string::npos) << script << "\n" << log;
  }
}

// A paused pager behind `2>&1`: its pipe is full long before the signal arrives.
TEST_F(Program, SavesOnASignalWhereNobodyReadsItsOutput) {
  ASSERT_EQ(mkfifo((dir_ / "pipe").c_str(), 0600), 0);
  const FileDescriptor reader(open((dir_ / "pipe").c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
  ASSERT_GT(fcntl(reader, F_SETPIPE_SZ, 4096), 0);
  const pid_t child = start(config_for(1'000'000), "exec $COMMAND >" + (dir_ / "pipe") + " 2>&1");
  int status = 0;
  int64_t seconds = 0;  // without a new record
  for (size_t size = 0, now; read_text(dir_ / "run/metrics.jsonl").find("\"step\":500,") == std::string::npos;
       size = now) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    now = read_text(dir_ / "run/metrics.jsonl").size();
    seconds = now > size ? 0 : seconds + 1;
    if (seconds > 300) kill(child, SIGKILL);
    ASSERT_EQ(waitpid(child, &status, WNOHANG), 0) << "it has ended, or waits for its reader";
  }
  kill(child, SIGTERM);
  EXPECT_EQ(wait(child).exit_code(), 75);
  const int64_t last = records_of(dir_ / "run").rbegin()[1]["step"];
  EXPECT_EQ(CheckpointStore(dir_ / "run/checkpoints").latest(), last);
  EXPECT_NE(read_text(dir_ / "run/log").find(fmt::format("{}/1000000", last)), std::string::npos)
      << "the rows that nobody read";
}

TEST_F(Program, OfTheEngineAloneNamesWhatItLacks) {
  for (const char* arguments : {"plan run.yaml --json", "data --help", "mlperf lint x"}) {
    const int status = std::system(fmt::format("{} {} >{} 2>&1", core_path(), arguments, dir_ / "out").c_str());
    EXPECT_EQ(WEXITSTATUS(status), 64) << arguments;
    const std::string text = read_text(dir_ / "out");
    EXPECT_NE(text.find(": found trivet-core, "), std::string::npos) << text;
    EXPECT_NE(text.find("TRIVET_TOOLS"), std::string::npos) << text;
  }
}

// trivet's completions, whose function has another name, can be installed beside these.
TEST_F(Program, OfTheEngineAloneCompletesItsOwnName) {
  const std::string script = fmt::format("source <({} completion bash); complete -p trivet-core", core_path());
  write_text(dir_ / "script", script);
  EXPECT_EQ(std::system(fmt::format("bash {} >{}", dir_ / "script", dir_ / "out").c_str()), 0);
  EXPECT_NE(read_text(dir_ / "out").find("-F _trivet_core trivet-core"), std::string::npos) << read_text(dir_ / "out");
}

// Other programs make a pipe non-blocking for all who share it.
TEST_F(Program, WaitsForAReaderOfANonBlockingPipe) {
  const std::string command = core_path() + " config --keys";
  ASSERT_EQ(std::system((command + " >" + (dir_ / "whole")).c_str()), 0);
  int pipes[2];
  ASSERT_EQ(pipe2(pipes, O_CLOEXEC), 0);
  ASSERT_GT(fcntl(pipes[1], F_SETPIPE_SZ, 4096), 0);
  ASSERT_EQ(fcntl(pipes[1], F_SETFL, O_NONBLOCK), 0);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, pipes[1], 1);
  std::string program = core_path();
  char* argv[] = {program.data(), const_cast<char*>("config"), const_cast<char*>("--keys"), nullptr};
  pid_t child = 0;
  ASSERT_EQ(posix_spawn(&child, program.c_str(), &files, nullptr, argv, environ), 0);
  posix_spawn_file_actions_destroy(&files);
  close(pipes[1]);
  siginfo_t ended{};
  for (int held = 0; held < 4096 && ended.si_pid == 0; std::this_thread::yield()) {
    ASSERT_EQ(ioctl(pipes[0], FIONREAD, &held), 0);
    ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOHANG | WNOWAIT), 0);
  }
  std::string text(1 << 20, ' ');
  text.resize(read_all(pipes[0], text));
  close(pipes[0]);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(text, read_text(dir_ / "whole"));
}

TEST_F(Program, MeetsTheLimitOnTheSizeOfFilesAsAnError) {
  Config config = config_for(30);
  config.checkpoint.save_interval = 1;
  const Ended end = run_to_end(config, "ulimit -f 8; exec $COMMAND");  // units of 1024 bytes; a checkpoint needs more
  EXPECT_EQ(end.exit_code(), 74) << end.error;
  EXPECT_NE(end.error.find("File too large; the limit is 8192 bytes per file (ulimit -f)"), std::string::npos)
      << end.error;
}

TEST_F(Program, RefusesAStackThatItWouldOverflow) {
  const Config config = config_for(30);
  const Ended end = run_to_end(config, "ulimit -s 64; exec $COMMAND");
  EXPECT_EQ(end.exit_code(), 64);
  EXPECT_EQ(end.error, "trivet: the limit of the stack is 64 KiB, expected at least 256 (ulimit -s)\n");
#ifndef __SANITIZE_THREAD__  // ThreadSanitizer's runtime needs more
  EXPECT_EQ(run_to_end(config, "ulimit -s 256; exec $COMMAND").exit_code(), 0);
#endif
}

// Rates, remaining time, watchdog: none reads a clock that can be set.
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

}  // namespace
}  // namespace trivet::test
