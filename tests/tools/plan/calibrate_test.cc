// Measured rows, the fit of a system spec's constants to them, and the shipped specs' errors on the shipped rows.
#include "tools/plan/calibrate.h"

#include <fmt/format.h>
#include <fstream>
#include <gtest/gtest.h>
#include <numeric>

#include "engine/config/load.h"
#include "tests/support/message_of.h"
#include "tests/support/temp_dir.h"
#include "tests/support/where.h"
#include "tools/plan/calibration_report.h"
#include "tools/plan/device_memory.h"

namespace trivet::test {
namespace {

const std::string kPages = source_path("configs/systems");

constexpr const char* kRun =
    "model: {num_layers: 2, hidden_size: 1024, num_attention_heads: 8, seq_length: 512, vocab_size: 1024}\n"
    "precision: {dtype: bf16}\ndata: {path: none}\ntrain: {train_iters: 1}\n";

class Rows : public testing::Test {
 protected:
  std::string write(const std::string& rows) {
    std::ofstream(dir_ / "run.yaml") << kRun;
    std::ofstream(dir_ / "rows.csv") << rows;
    return dir_ / "rows.csv";
  }
  std::string problem_of(const std::string& rows) {
    const std::string path = write(rows);
    return message_of([&] { read_rows(path); });
  }
  const TempDir dir_;
};

TEST_F(Rows, AreRunsOfTheOrdinaryConfiguration) {
  const auto rows =
      read_rows(write("# a comment\nrun,ranks,system.network_gb_per_s,batch.global_batch_size,"
                      "tokens_per_second_per_rank\nrun.yaml,2,12.5,8,1000\nrun.yaml,1,,4,500\n"));
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].layout.mesh[Axis::dp], 2);
  EXPECT_EQ(rows[0].system_sets, std::vector<std::string>{"network_gb_per_s=12.5"});
  EXPECT_DOUBLE_EQ(rows[0].step_seconds, 8 * 512 / 2000.0);
  EXPECT_TRUE(rows[1].system_sets.empty());
}

TEST_F(Rows, NonsenseIsNamedWithItsLine) {
  EXPECT_NE(problem_of("run,ranks,tokens\n").find("rows.csv:1: columns: found \"tokens\""), std::string::npos);
  EXPECT_NE(problem_of("run,ranks\n").find("found 0 of step_seconds"), std::string::npos);
  EXPECT_NE(problem_of("run,ranks,step_seconds\nrun.yaml,1,-3\n").find("rows.csv:2: step_seconds: found \"-3\""),
            std::string::npos);
  EXPECT_NE(problem_of("run,ranks,step_seconds\nrun.yaml,1\n").find("rows.csv:2: cells: found 2, expected 3"),
            std::string::npos);
  EXPECT_NE(problem_of("run,ranks,step_seconds\nrun.yaml,0,1\n").find("rows.csv:2: ranks"), std::string::npos);
  EXPECT_NE(problem_of("run,ranks,model.hiden_size,step_seconds\nrun.yaml,1,8,1\n").find("model.hiden_size"),
            std::string::npos);
  EXPECT_NE(problem_of("run,ranks,parallel.tensor_model_parallel_size,step_seconds\nrun.yaml,3,2,1\n").find(":2:"),
            std::string::npos);
  EXPECT_NE(problem_of("# nothing\n").find("rows: found none"), std::string::npos);
}

const SystemKey& key(std::string_view name) { return *std::ranges::find(system_keys(), name, &SystemKey::name); }

// Fitted to rows that were predicted with other constants, a spec recovers those constants.
TEST_F(Rows, AFitFindsTheConstantsThatMadeThem) {
  std::string text = "run,ranks,batch.micro_batch_size,model.seq_length,step_seconds\n";
  for (const auto& [b, s] : {std::pair{1, 512}, {4, 512}, {16, 512}, {1, 4096}, {2, 8192}, {4, 2048}})
    text += fmt::format("run.yaml,1,{},{},1\n", b, s);
  std::vector<MeasuredRow> rows = read_rows(write(text));
  std::vector<size_t> all(rows.size());
  std::iota(all.begin(), all.end(), size_t{0});
  const std::vector<const SystemKey*> keys{&key("gemm_share"), &key("attention_forward"), &key("memory_share")};
  const std::vector<double> truth{0.5, 0.3, 0.6};
  const std::string page = kPages + "/a100-80.yaml";
  const std::vector<double> made = MeasuredRuns(rows, page, {}).predict(all, keys, truth);
  for (size_t i = 0; i < rows.size(); ++i) rows[i].step_seconds = made[i];
  const MeasuredRuns runs(rows, page, {});
  const std::vector<double> found = fit(runs, all, keys, {0.7, 0.6, 0.8});

  for (size_t k = 0; k < keys.size(); ++k) EXPECT_NEAR(found[k], truth[k], 0.05 * truth[k]) << keys[k]->name;
  EXPECT_LT(errors_of(runs, all, runs.predict(all, keys, found)).most, 0.005);
  rows[2].step_seconds *= 3;  // an outlier
  const MeasuredRuns with_outlier(rows, page, {});
  const Errors errors = errors_of(with_outlier, all, with_outlier.predict(all, keys, truth));
  EXPECT_NEAR(errors.most, 2.0 / 3, 1e-6);
  EXPECT_NEAR(errors.median, 0, 1e-6);
  EXPECT_NEAR(errors.bias, -2.0 / 3 / 6, 1e-6);
  // The outlier shifts the constants by less than its own error.
  const std::vector<double> pulled = fit(with_outlier, all, keys, truth);
  for (size_t k = 0; k < keys.size(); ++k) EXPECT_NEAR(pulled[k], truth[k], 0.5 * truth[k]) << keys[k]->name;
}

TEST_F(Rows, TheirTablesHaveTheirNumbersInColumns) {
  const auto rows =
      read_rows(write("run,ranks,batch.global_batch_size,step_seconds\nrun.yaml,1,4,1\nrun.yaml,2,8,100\n"));
  const MeasuredRuns runs(rows, kPages + "/a100-80.yaml", {});
  std::vector<double> predicted = {1, 100};
  for (const TextBlock& block : describe_errors(runs, predicted)) {
    EXPECT_EQ(block.align.find_first_not_of("lr"), std::string::npos) << block.title;
    EXPECT_EQ(block.align.substr(0, 2), "lr") << block.title;
  }
}

// Two sources contradict each other; that one of them has more rows does not make it right.
TEST_F(Rows, AFitGivesEveryFileTheSameWeight) {
  const std::string head = "run,ranks,batch.micro_batch_size,model.seq_length,step_seconds\n";
  const std::string row = "run.yaml,1,4,2048,1\n";
  std::ofstream(dir_ / "many.csv") << head << row << row << row << row << row;
  std::vector<MeasuredRow> rows = read_rows(write(head + row));
  for (MeasuredRow& more : read_rows(dir_ / "many.csv")) rows.push_back(std::move(more));
  std::vector<size_t> all(rows.size());
  std::iota(all.begin(), all.end(), size_t{0});
  const std::vector<const SystemKey*> keys{&key("gemm_share")};
  const std::string page = kPages + "/a100-80.yaml";
  const MeasuredRuns asked(rows, page, {});
  for (size_t i = 0; i < rows.size(); ++i)
    rows[i].step_seconds = asked.predict(all, keys, std::vector<double>{i == 0 ? 0.4 : 0.6})[i];
  EXPECT_NEAR(fit(MeasuredRuns(rows, page, {}), all, keys, {0.49})[0], 0.49, 0.04);
}

TEST_F(Rows, AFittedPageKeepsItsComments) {
  const std::vector<const SystemKey*> keys{&key("gemm_share")};
  const std::vector<double> values{0.5};
  EXPECT_EQ(with_values("gemm_share: 0.7   # why\nsms: 8\n", keys, values),
            fmt::format("{:<28} # fitted; before: why\nsms: 8\n", "gemm_share: 0.5"));
}

// vTrain's runs recompute activations. A score takes 5 bytes, in 30 layers with 8 samples of 2,048 tokens and 32 heads.
TEST(PlanMemory, StoredScoresCount) {
  const System system = load_system("a100-80", {}, kPages);
  const auto bytes_of = [&](const std::vector<std::string>& sets) {
    LoadedConfig loaded = load_untrained(source_path("configs/systems/rows/vtrain_3b6.yaml"), sets);
    const int ranks = loaded.config.parallel.pipeline_model_parallel_size;
    const Layout layout = resolve(loaded, {.world_size = ranks});
    for (const MemoryItem& item : memory_of_worst_rank(loaded.config, layout, system))
      if (item.name == "attention scores") return item.bytes;
    return int64_t{-1};
  };
  const int64_t layer = int64_t{5} * 32 * 8 * 2048 * 2048;
  EXPECT_EQ(bytes_of({"batch.micro_batch_size=8"}), layer);
  const std::string none = "model.recompute_granularity=none", zero = "model.recompute_num_layers=0";
  EXPECT_EQ(bytes_of({"batch.micro_batch_size=8", none, "model.recompute_method=none", zero}), 30 * layer);
  EXPECT_EQ(bytes_of({"batch.micro_batch_size=8", "model.recompute_method=block", "model.recompute_num_layers=10"}),
            20 * layer);
  // The first of two stages has two micro-batches in flight.
  EXPECT_EQ(bytes_of({"batch.micro_batch_size=8", none, "model.recompute_method=none", zero,
                      "batch.global_batch_size=64", "parallel.pipeline_model_parallel_size=2"}),
            2 * 15 * layer);
  EXPECT_EQ(bytes_of({"plan.fused_attention=true"}), -1);
}

// Korthikanti et al. 2022: 5 a s^2 b / t bytes per layer.
TEST(PlanMemory, TensorRanksShareStoredScores) {
  const System system = load_system("a100-80", {}, kPages);
  for (const int t : {2, 4}) {
    LoadedConfig loaded = load_untrained(
        source_path("configs/systems/rows/vtrain_3b6.yaml"),
        std::vector{std::string("batch.micro_batch_size=8"), fmt::format("parallel.tensor_model_parallel_size={}", t)});
    const Layout layout = resolve(loaded, {.world_size = t});
    int64_t bytes = 0;
    for (const MemoryItem& item : memory_of_worst_rank(loaded.config, layout, system))
      if (item.name == "attention scores") bytes = item.bytes;
    EXPECT_EQ(bytes, int64_t{5} * 32 / t * 8 * 2048 * 2048);
  }
}

// The scoreboard: errors that a planner change must not increase. Whole tables: docs/plan.md.
struct Table {
  const char *rows, *page;
  size_t every;  // stride in rows
  double median, mean;
};
class Scoreboard : public testing::TestWithParam<Table> {};
TEST_P(Scoreboard, ErrorsAreNoWorse) {
  const Table& table = GetParam();
  std::vector<MeasuredRow> rows;
  std::vector<MeasuredRow> all = read_rows(source_path("configs/systems/rows/") + table.rows);
  for (size_t i = 0; i < all.size(); i += table.every)
    if (all[i].layout.mesh[Axis::pp] <= 8) rows.push_back(all[i]);
  const MeasuredRuns runs(rows, kPages + '/' + table.page, {});
  std::vector<size_t> which(rows.size());
  std::iota(which.begin(), which.end(), size_t{0});
  const Errors errors = errors_of(runs, which, runs.predict(which));
  EXPECT_LE(errors.median, table.median);
  EXPECT_LE(errors.mean, table.mean);
  EXPECT_GT(errors.mean, 0);
  RecordProperty("mean", fmt::format("{:.4f}", errors.mean));
}
INSTANTIATE_TEST_SUITE_P(Plan, Scoreboard,
                         testing::Values(Table{"vtrain_a100.csv", "a100-80.yaml", 3, 0.06, 0.093},
                                         Table{"fsdp_a100.csv", "a100-80.yaml", 6, 0.038, 0.046},
                                         Table{"korthikanti_a100.csv", "a100-80.yaml", 1, 0.016, 0.018},
                                         Table{"fsdp_h100.csv", "h100-sxm.yaml", 6, 0.03, 0.031},
                                         Table{"megatron_h100.csv", "h100-sxm.yaml", 1, 0.074, 0.058}));

}  // namespace
}  // namespace trivet::test
