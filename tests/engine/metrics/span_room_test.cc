// The memory plan bounds the spans of a step: a step with more is still trained, but its time breakdown is reported as
// unknown.
#include <fmt/format.h>
#include <fstream>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "engine/train/run.h"
#include "parallel/comm/world.h"
#include "tests/support/temp_dir.h"
#include "tests/support/training.h"

namespace trivet::test {
namespace {

constexpr int64_t kMostSpans = 1 << 18;

struct TracedRun {
  std::string text;
  nlohmann::json row;  // the first step in metrics.jsonl
};

// One step of `micro_batches` micro-batches, each with more than 15 spans per layer.
TracedRun step_of(int64_t micro_batches) {
  const TempDir dir;
  Config config = tiny_config();
  config.data.path = tiny_dataset_prefix();
  config.model.seq_length = 4;
  config.model.hidden_size = 8;
  config.model.ffn_hidden_size = 8;
  config.batch = {.micro_batch_size = 1, .global_batch_size = micro_batches};
  config.train.train_iters = 1;
  config.optimizer.lr_warmup_iters = 0;
  config.optimizer.lr_decay_iters = 1;
  config.train.run_dir = dir / "run";
  std::ostringstream out;
  run_thread_ranks(
      1, [&](Communicator& world) { run_training({.config = config, .origins = {}, .path = "test"}, {}, world, out); });
  std::ifstream file(config.train.run_dir + "/metrics.jsonl");
  std::string line;
  while (std::getline(file, line) && line.find("\"loss\"") == std::string::npos) continue;
  return {out.str(), nlohmann::json::parse(line)};
}

TEST(SpanRoom, AStepWithMoreSpansIsTrainedAndItsColumnsAreUnknown) {
  if (kMatrixStride > 1) GTEST_SKIP() << "so many take a sanitizer a minute";
  const auto [text, row] = step_of(kMostSpans / 4 / 15);
  EXPECT_NE(text.find("step 1 has "), std::string::npos) << text;
  EXPECT_NE(text.find(fmt::format("than the {} that a rank has room for", kMostSpans)), std::string::npos) << text;
  EXPECT_TRUE(row["loss"].is_number());
  for (const char* unknown : {"exposed_fraction", "wait_fraction", "compute_fraction", "compute_seconds",
                              "idle_seconds", "data_wire_seconds", "overlap_ratio"})
    EXPECT_TRUE(row[unknown].is_null()) << unknown << " in " << row;
  EXPECT_EQ(text.find("time of a step, the mean of"), std::string::npos) << "of no step";
}

TEST(SpanRoom, AStepThatFitsIsMeasured) {
  const auto [text, row] = step_of(20);
  EXPECT_EQ(text.find("room for"), std::string::npos) << text;
  EXPECT_TRUE(row["exposed_fraction"].is_number());
  EXPECT_GT(row["compute_fraction"], 0);
  EXPECT_NE(text.find("time of a step, the mean of"), std::string::npos) << text;
}

}  // namespace
}  // namespace trivet::test
