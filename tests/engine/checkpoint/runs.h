// Short runs that a test starts as `trivet train` does, and what their folders contain afterwards.
#pragma once

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <functional>
#include <gtest/gtest.h>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/json.h"
#include "engine/checkpoint/store.h"
#include "engine/train/run.h"
#include "parallel/comm/world.h"
#include "tests/support/temp_dir.h"
#include "tests/support/training.h"

namespace trivet::test {

inline constexpr int kSteps = std::min(2 * kMatrixSteps, 20);  // an epoch of the tiny dataset ends in the 17th

inline Config small_run(const std::string& run_dir) {
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
  std::vector<double> losses;             // [step], since this start of the program
  std::map<int64_t, double> evaluations;  // also since this start, by step
  std::string output;
  int exit_code = -1;
  int64_t first_step = 0;
};

// The records of steps, evaluations, saves and resumes.
inline std::vector<nlohmann::json> records_of(const std::string& run_dir) {
  std::vector<nlohmann::json> records;
  std::istringstream lines(read_text(run_dir + "/metrics.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    const nlohmann::json record = parse_json(line);
    const std::string event = record.value("event", "");
    if (event != "start" && event != "note" && event != "end") records.push_back(record);
  }
  return records;
}

inline RunResult run(const Config& config, int ranks, const RunOptions& options = {}) {
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
    if (json.value("event", "") == "resume") result.losses.clear(), result.evaluations.clear();  // of earlier starts
    if (json.contains("validation_loss")) result.evaluations[json["step"]] = json["validation_loss"];
    if (!json.contains("loss")) continue;
    if (result.losses.empty()) result.first_step = json["step"];
    result.losses.push_back(json["loss"]);
  }
  return result;
}

// Asserts that metrics.jsonl contains each step once, in order, from 1 to `steps`.
inline void expect_each_step_once(const std::string& run_dir, int64_t steps) {
  int64_t step = 0;
  for (const auto& json : records_of(run_dir)) {
    if (!json.contains("loss")) continue;
    EXPECT_EQ(json["step"], ++step);
  }
  EXPECT_EQ(step, steps);
}

// Asks to stop in the n-th step, counted from the start of the program. One rank only: its process gets the signal.
inline std::function<int()> stop_after(int n) {
  auto left = std::make_shared<std::atomic<int>>(n);
  return [left, rank_thread = std::make_shared<std::once_flag>(), id = std::make_shared<std::thread::id>()] {
    std::call_once(*rank_thread, [&] { *id = std::this_thread::get_id(); });
    return std::this_thread::get_id() == *id && --*left <= 0 ? SIGTERM : 0;
  };
}

inline std::string step_path(const std::string& run_dir, int64_t step) {
  return CheckpointStore(run_dir + "/checkpoints").path_of(step);
}

}  // namespace trivet::test
