// Readers of a run that is still training: its retention removes the checkpoint that they chose as the latest.
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/inotify.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include "base/files.h"
#include "engine/checkpoint/open_checkpoint.h"
#include "engine/train/backend.h"
#include "tests/engine/checkpoint/runs.h"
#include "tests/support/message_of.h"
#include "tests/support/where.h"

namespace trivet::test {
namespace {

namespace fs = std::filesystem;

// A run with its first step's checkpoint, which replace() removes, as keep_last 1 does at the second step.
class LiveRun : public ::testing::Test {
 protected:
  void SetUp() override {
    Config config = small_run(dir_ / "made");
    config.train.train_iters = 2;
    config.checkpoint.save_interval = 1;
    run(config, 1);
    begin();
  }
  void begin() {
    fs::remove_all(dir_ / "run");
    fs::copy(dir_ / "made", dir_ / "run", fs::copy_options::recursive);
    fs::rename(step_path(dir_ / "run", 2), step_path(dir_ / "run", 2) + ".tmp-x");
    write_text(dir_ / "run/checkpoints/latest", "step-00000001\n");
  }
  void replace() {
    const CheckpointStore store(dir_ / "run/checkpoints");
    store.commit(2, store.path_of(2) + ".tmp-x");
    store.remove_old(2, store.path_of(2) + ".tmp-x", {.last = 1});
  }

  TempDir dir_;
};

TEST_F(LiveRun, WhatWasReplacedIsReadAgain) {
  const auto find = [&] { return find_checkpoints(dir_ / "run", {}).front(); };
  std::vector<std::string> read;
  const auto step = read_latest(find, [&](const std::string& directory) {
    read.push_back(directory);
    if (read.size() == 1) replace();
    return open_checkpoint(directory).state.step;
  });
  EXPECT_EQ(step, 2);
  EXPECT_EQ(read, (std::vector{step_path(dir_ / "run", 1), step_path(dir_ / "run", 2)}));
}

TEST_F(LiveRun, OnlyWhatWasReplacedIsReadAgain) {
  const std::string run = dir_ / "run", first = step_path(run, 1);
  int reads = 0;
  const auto reading = [&](const std::string& path, const std::function<void()>& meanwhile) {
    reads = 0;
    return message_of<DataError>([&] {
      read_latest([&] { return find_checkpoints(path, {}).front(); },
                  [&](const std::string& directory) {
                    ++reads;
                    meanwhile();
                    open_checkpoint(directory);
                  });
    });
  };
  // A checkpoint that is named explicitly, and a damaged one that is still the latest.
  EXPECT_EQ(reading(first, [&] { replace(); }), first + ": there is no such checkpoint");
  EXPECT_EQ(reads, 1);
  begin();
  EXPECT_NE(reading(run, [&] { fs::remove(first + "/manifest.json"); }).find("manifest.json: not found"),
            std::string::npos);
  EXPECT_EQ(reads, 1);
  begin();
  EXPECT_EQ(reading(run, [&] { fs::remove_all(run); }), first + ": there is no such checkpoint");
  EXPECT_EQ(reads, 1);
  // A run that is faster than its reader.
  int forever = 0;
  const auto another = [&] { return std::to_string(++forever); };
  EXPECT_EQ(message_of<IoError>([&] { read_latest(another, [](const std::string&) { throw IoError("gone"); }); }),
            "gone");
  EXPECT_LE(forever, 200);
}

// Replaced after it was chosen and opened, before its weights are read.
TEST_F(LiveRun, AnEvaluationReadsTheNextOne) {
  Config config = small_run(dir_ / "evaluation");
  config.train.skip_train = true;
  RunOptions options;
  options.resume = dir_ / "run";
  options.make_backend = [this, once = std::make_shared<std::once_flag>()](const Config& c, Communicator& world,
                                                                           int threads) {
    std::call_once(*once, [this] { replace(); });
    return make_backend(c, world, threads);
  };
  const RunResult result = run(config, 2, options);
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_NE(result.output.find("step-00000002"), std::string::npos) << result.output;
}

// For each command: the checkpoint is replaced when its manifest is opened for the n-th time.
TEST_F(LiveRun, CommandsReadTheNextOne) {
  for (const std::string command :
       {"checkpoint inspect --tensors run", "checkpoint inspect run", "checkpoint verify run",
        "checkpoint convert run made-of-it --to trivet", "generate run --prompt-tokens 1,2 --tokens 3",
        "generate run --prompt-tokens 1,2 --tokens 3 --tensor-parallel 2"})
    for (int opening = 1; opening <= (command.starts_with("generate") ? 3 : 1); ++opening)
      for (int repeat = 0; repeat < 2; ++repeat) {
        begin();
        for (const char* made : {"made-of-it", "made-of-it.yaml"}) fs::remove_all(dir_ / made);
        const int watch = inotify_init1(IN_CLOEXEC);
        const std::string manifest = step_path(dir_ / "run", 1) + "/manifest.json";
        ASSERT_GE(inotify_add_watch(watch, manifest.c_str(), IN_OPEN), 0);
        std::atomic<bool> ended = false;
        std::thread replacer([&] {
          for (int left = opening; left > 0 && !ended;) {
            pollfd poll_of{.fd = watch, .events = POLLIN, .revents = 0};
            if (poll(&poll_of, 1, 20) <= 0) continue;
            alignas(inotify_event) char events[4096];
            const ssize_t bytes = read(watch, events, sizeof events);
            left -= static_cast<int>(bytes / static_cast<ssize_t>(sizeof(inotify_event)));
            if (left <= 0) replace();
          }
        });
        const std::string all =
            fmt::format("cd {} && env -u OMPI_COMM_WORLD_SIZE CUDA_VISIBLE_DEVICES= {} {} >out 2>&1", dir_ / "",
                        command.starts_with("checkpoint convert") ? program_path() : core_path(), command);
        const int status = std::system(all.c_str());
        ended = true;
        replacer.join();
        close(watch);
        EXPECT_EQ(WEXITSTATUS(status), 0) << command << ", opening " << opening << "\n" << read_text(dir_ / "out");
      }
}

}  // namespace
}  // namespace trivet::test
