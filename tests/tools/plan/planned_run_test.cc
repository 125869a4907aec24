// What the planner chooses by itself, what it writes, and the cost of a run.
#include "tools/plan/planned_run.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/metrics/trace_file.h"
#include "tests/support/message_of.h"
#include "tests/support/temp_dir.h"
#include "tests/tools/plan/plan_support.h"
#include "tools/plan/device_memory.h"
#include "tools/plan/run_cost.h"

namespace trivet::test {
namespace {

const std::string kLeaveBoth[] = {"batch.micro_batch_size=auto", "parallel.virtual_pipeline_model_parallel_size=auto"};

LoadedConfig left_to_planner(std::vector<std::string> sets = {}) {
  sets.insert(sets.end(), {"parallel.pipeline_model_parallel_size=2", kLeaveBoth[0], kLeaveBoth[1]});
  return tiny_run(sets);
}

TEST(RunPlan, OnlyThePlannerTakesAuto) {
  const LoadedConfig run = left_to_planner();
  const std::string problem = message_of([&] {
    LoadedConfig own = run;
    resolve(own, {.world_size = 2});
  });
  EXPECT_NE(problem.find("--set: batch.micro_batch_size: auto is for `trivet plan`"), std::string::npos) << problem;
  // v was "auto" in files of earlier runs. They still load, with the v that the schedule needs.
  LoadedConfig earlier = tiny_run({"parallel.pipeline_model_parallel_size=2", kLeaveBoth[1]});
  EXPECT_EQ(resolve(earlier, {.world_size = 2}).schedule.v, 1);
  // A later value replaces "auto", and an unset v takes the value that the schedule needs.
  EXPECT_TRUE(with_sets(tiny_run({kLeaveBoth[0]}), std::vector<std::string>{"batch.micro_batch_size=1"})
                  .left_to_planner.empty());
  EXPECT_EQ(legal_run(tiny_run({"parallel.pipeline_model_parallel_size=2"}), 2).layout.schedule.v, 1);
}

TEST(RunPlan, NeedsNeitherDataNorALength) {
  const TempDir dir;
  write_text(dir / "run.yaml",
             "model: {num_layers: 2, hidden_size: 64, num_attention_heads: 4, seq_length: 16, vocab_size: 64}\n"
             "optimizer: {lr_warmup_iters: 119, lr_wsd_decay_iters: 7, lr_decay_style: WSD}\n"
             "train: {eval_interval: 100}\n");
  const std::string refused = message_of([&] { load_config(dir / "run.yaml"); });
  EXPECT_NE(refused.find("data.path: is required"), std::string::npos) << refused;
  EXPECT_NE(refused.find("train.train_iters: is required"), std::string::npos) << refused;
  const RunPlan planned = plan_run(load_untrained(dir / "run.yaml"), 2, h100());
  EXPECT_GT(planned.prediction.step.step_seconds, 0);
  EXPECT_NO_THROW(legal_run(planned.run.loaded, 1));  // a resolved run can be planned again, as by --ablate
  EXPECT_NE(message_of([&] { tokens_of_run({}, planned.run.loaded.config, planned.run.layout); }).find("no length"),
            std::string::npos);
}

// The choice is the fastest of all runs with any of the possible values.
TEST(RunPlan, ChoosesTheFastestThatFits) {
  const RunPlan planned = plan_run(left_to_planner(), 2, h100());
  double best = std::numeric_limits<double>::infinity();
  int legal = 0;
  for (const char* size : {"1", "2", "3", "4", "8"})
    for (const auto& [kind, v] : {std::pair{"1f1b", "1"}, {"interleaved", "2"}, {"interleaved", "3"}}) {
      const std::string prefix = "parallel.";
      try {
        const LoadedConfig one =
            tiny_run({"parallel.pipeline_model_parallel_size=2", fmt::format("batch.micro_batch_size={}", size),
                      prefix + "pipeline_schedule=" + kind, prefix + "virtual_pipeline_model_parallel_size=" + v});
        best = std::min(best, plan_run(one, 2, h100()).prediction.step.step_seconds);
        ++legal;
      } catch (const ConfigError&) {
      }
    }
  EXPECT_EQ(planned.prediction.step.step_seconds, best);
  EXPECT_GE(legal, 6);
  EXPECT_NE(planned.choice.find(fmt::format("the fastest of {0} that fit, of {0} legal ones", legal)),
            std::string::npos)
      << planned.choice;
  EXPECT_EQ(planned.choice.find("makes parallel.pipeline_schedule interleaved") != std::string::npos,
            planned.run.loaded.config.parallel.pipeline_schedule == "interleaved")
      << planned.choice;
  EXPECT_NE(
      planned.choice.find(fmt::format("micro_batch_size is {}", planned.run.loaded.config.batch.micro_batch_size)),
      std::string::npos);
}

TEST(RunPlan, WhereNothingFitsItIsTheSmallest) {
  const System small = h100({"memory_gib=1"});
  const RunPlan planned = plan_run(left_to_planner(), 2, small);
  EXPECT_FALSE(planned.prediction.fits());
  EXPECT_GT(planned.prediction.step.step_seconds, 0);
  EXPECT_EQ(planned.run.loaded.config.batch.micro_batch_size, 1);
  EXPECT_NE(planned.choice.find("none fits"), std::string::npos) << planned.choice;
  EXPECT_EQ(planned.prediction.memory_bytes,
            sum_of(memory_of_worst_rank(planned.run.loaded.config, planned.run.layout, small)));
}

TEST(RunPlan, AutoNeedsABatchToDivide) {
  LoadedConfig run = left_to_planner();
  run.config.batch.global_batch_size.reset();
  EXPECT_EQ(message_of([&] { plan_run(run, 2, h100()); }),
            "batch.micro_batch_size: auto needs batch.global_batch_size, which is divided into micro-batches");
  const std::string refused = message_of([&] { plan_run(left_to_planner(), 3, h100()); });
  EXPECT_NE(refused.find("does not divide the world of 3 ranks"), std::string::npos) << refused;
}

// Head comments of shipped configurations state the planned numbers. The other configurations take longer to plan.
TEST(RunPlan, HeadsOfConfigurationsAreTrue) {
  for (const char* name : {"mlperf/llama31_8b", "mlperf/llama31_405b"}) {
    const std::string path = source_path(fmt::format("configs/{}.yaml", name)), text = read_text(path);
    const size_t at = text.find("s per step on ") + 14;
    std::string ranks = text.substr(at, text.find(' ', at) - at);
    std::erase(ranks, ',');
    const Prediction p = plan_run(load_untrained(path), std::stoi(ranks), h100()).prediction;
    EXPECT_NE(
        text.find(fmt::format("#   planned         {:.4g} s per step on {} ranks of h100-sxm, {:.1f} % MFU, {} of {}",
                              p.step.step_seconds, grouped(p.step.ranks), 100 * p.step.mfu, bytes_text(p.memory_bytes),
                              bytes_text(p.capacity_bytes))),
        std::string::npos)
        << name << ": " << p.step.step_seconds << " s, " << bytes_text(p.memory_bytes);
  }
}

// Other ranks' players stand in for ranks 1 and 3, but the trace names 1 and 3.
TEST(RunPlan, TracesTheRanksThatAreAskedFor) {
  const TempDir dir;
  const LoadedConfig run = tiny_run({"parallel.pipeline_model_parallel_size=2"});
  plan_run(run, 8, h100(), {.trace = dir / "plan.json", .trace_ranks = {3, 1, 6, 3}});
  std::set<std::string> processes;
  for_each_span(dir / "plan.json", [&](const TraceSpan& span) { processes.insert(span.process.substr(0, 6)); });
  EXPECT_EQ(processes, (std::set<std::string>{"rank 1", "rank 3", "rank 6"}));
  for (const int rank : {-1, 8})
    EXPECT_EQ(message_of([&] { plan_run(run, 8, h100(), {.trace = dir / "no.json", .trace_ranks = {rank}}); }),
              fmt::format("--trace-ranks: found {}, expected ranks from 0 to 7", rank));
}

TEST(RunPlan, ThePictureHasThePasses) {
  const TempDir dir;
  plan_run(tiny_run({"parallel.pipeline_model_parallel_size=2"}), 4, h100(), {.picture = dir / "plan.svg"});
  const std::string svg = read_text(dir / "plan.svg");
  EXPECT_NE(svg.find("1f1b planned on h100-sxm: p = 2, m = 2, v = 1"), std::string::npos);
  EXPECT_FALSE(file_exists(dir / "plan.svg.trace"));
}

TEST(RunCost, IsThatOfTheStepTimesTheSteps) {
  const RunPlan planned = plan_run(tiny_run(), 4, h100({"power_watts=500"}));
  const StepReport& step = planned.prediction.step;
  const auto& [config, layout] = std::tie(planned.run.loaded.config, planned.run.layout);
  EXPECT_EQ(tokens_of_run({}, config, layout), 20 * 8 * 16);  // train_iters, batch, sequence
  const RunCost cost = cost_of_run(step, 1e9, 2.5, h100({"power_watts=500"}));
  const double steps = 1e9 / (8 * 16), hours = steps * step.step_seconds / 3600;
  EXPECT_DOUBLE_EQ(cost.days(), hours / 24);
  EXPECT_DOUBLE_EQ(cost.money(), 2.5 * 4 * hours);
  EXPECT_DOUBLE_EQ(cost.step_money(), cost.money() / steps);
  EXPECT_DOUBLE_EQ(cost.energy_mwh(), 500 * 4 * hours / 1e6);
  nlohmann::ordered_json json;
  add_json(cost_of_run(step, 1e9, {}, h100({"power_watts=0"})), json);
  EXPECT_EQ(json["run_days"], cost.days());
  EXPECT_FALSE(json.contains("run_cost"));
  EXPECT_FALSE(json.contains("run_energy_mwh"));
  Config endless = config;
  endless.train.train_iters = 0;
  EXPECT_NE(message_of([&] { tokens_of_run({}, endless, layout); }).find("--price: the run has no length, expected"),
            std::string::npos);
}

}  // namespace
}  // namespace trivet::test
