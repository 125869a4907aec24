// Ablations: a class of cost removed, a switch changed.
#include "tools/plan/ablate.h"

#include <gtest/gtest.h>
#include <map>
#include <nlohmann/json.hpp>

#include "tests/tools/plan/plan_support.h"

namespace trivet::test {
namespace {

LegalRun run_of(const std::vector<std::string>& sets, int ranks) { return legal_run(tiny_run(sets), ranks); }

// Two GPUs per node, so that a network connects the data-parallel ranks.
const Ablation& ablated() {
  static const Ablation e =
      ablate(run_of({"parallel.tensor_model_parallel_size=2", "parallel.data_parallel_sharding_strategy=optim"}, 4),
             h100({"gpus_per_node=2"}));
  return e;
}

double without(const Ablation& e, const std::string& what) {
  for (const Ablation::Without& each : e.without)
    if (each.what == what) return each.step_seconds;
  ADD_FAILURE() << what;
  return 0;
}

TEST(Ablation, WithoutACostAStepIsFaster) {
  const Ablation& e = ablated();
  for (const Ablation::Without& each : e.without) EXPECT_LE(each.step_seconds, e.step_seconds) << each.what;
  EXPECT_EQ(without(e, "pipeline communication"), e.step_seconds);  // the run has no pipeline
}

TEST(Ablation, WhatBoundsTheStepIsTheFirst) {
  const Ablation e = ablate(run_of({}, 2), h100({"host_us=100"}));
  EXPECT_EQ(e.without.front().what, "the host's launches");
  EXPECT_LT(e.without.front().step_seconds, 0.5 * e.step_seconds);
  EXPECT_EQ(without(e, "GEMMs"), e.step_seconds);
}

TEST(Ablation, OfADeviceWithoutAHostItsClassesCount) {
  const Ablation e =
      ablate(run_of({"parallel.tensor_model_parallel_size=2"}, 4), h100({"gpus_per_node=2", "host_us=0"}));
  for (const char* what : {"GEMMs", "attention", "memory-bound operations", "the optimizer", "tensor communication",
                           "data communication", "fixed costs of kernels"})
    EXPECT_LT(without(e, what), e.step_seconds) << what;
  EXPECT_EQ(without(e, "the host's launches"), e.step_seconds);
}

// Each name's share of the critical path. The parts of a path are contiguous, from the end of one step to the end of
// the next.
std::map<std::string, double> shares_of_path(const std::vector<std::string>& sets, int ranks,
                                             const std::vector<std::string>& system_sets) {
  const LegalRun run = run_of(sets, ranks);
  const System system = h100(system_sets);
  const Rehearsal rehearsal = rehearse_on(run.loaded.config, run.layout, system);
  const SystemCosts costs(system, {});
  const Replayed replayed = replay(rehearsal.players, rehearsal.groups, costs, {.critical_path = true});
  int64_t begin = 0, end = 0;
  for (const auto& ends : replayed.step_ends) begin = std::max(begin, ends.end()[-2]), end = std::max(end, ends.back());
  int64_t at = begin;
  for (const PathPart& part : replayed.critical_path) {
    EXPECT_EQ(part.start_ns, at);
    EXPECT_GT(part.end_ns, part.start_ns);
    at = part.end_ns;
  }
  EXPECT_EQ(at, end);
  std::map<std::string, double> shares;
  for (const auto& [what, ns] : critical_path(rehearsal, costs))
    shares[what] = static_cast<double>(ns) / static_cast<double>(end - begin);
  double sum = 0;
  for (const auto& [what, share] : shares) sum += share;
  EXPECT_NEAR(sum, 1, 1e-12);
  return shares;
}

TEST(Ablation, TheCriticalPathAddsUpToTheStep) {
  const std::vector<std::string> all = {
      "parallel.tensor_model_parallel_size=2", "parallel.pipeline_model_parallel_size=2",
      "parallel.sequence_parallel=true",       "parallel.data_parallel_sharding_strategy=optim",
      "overlap.overlap_grad_reduce=true",      "overlap.overlap_param_gather=true"};
  for (const std::vector<std::string>& system :
       {std::vector<std::string>{}, {"host_us=0"}, {"host_us=50"}, {"gpus_per_node=2", "network_gb_per_s=1"}})
    shares_of_path(all, 8, system);
  EXPECT_GT(shares_of_path({}, 2, {"host_us=100"})["the host's launches"], 0.9);
  EXPECT_GT(shares_of_path({}, 2, {"host_us=0", "gpus_per_node=1", "network_gb_per_s=0.1"})["all_reduce (data)"], 0.6);
  EXPECT_GT(shares_of_path({}, 1, {"host_us=0", "kernel_us=0", "bf16_tflops=0.1", "memory_gb_per_s=100000"})["matmul"],
            0.8);
}

// On one core, a step takes the sum of its ranks' compute times.
TEST(Ablation, OfCpusTheClassesAddUp) {
  const System one_core =
      load_system("cpu", {"cores=1", "contention=1", "wake_us=0", "team_us=0"}, source_path("configs/systems"));
  const LegalRun run = run_of({"device.kind=cpu", "parallel.data_parallel_sharding_strategy=optim"}, 2);
  const Ablation e = ablate(run, one_core);
  double recovered = 0;
  for (const char* what : {"GEMMs", "attention", "memory-bound operations", "the optimizer",
                           "copies to and from the host", "data communication"})
    recovered += e.step_seconds - without(e, what);
  EXPECT_NEAR(recovered, e.step_seconds, 1e-3 * e.step_seconds);
  EXPECT_GT(e.step_seconds, without(e, "data communication"));
  EXPECT_EQ(e.step_seconds, without(e, "cores that slow each other"));
  int64_t path = 0;
  for (const Ablation::PathShare& part : e.path) path += part.ns;
  EXPECT_NEAR(static_cast<double>(path) * 1e-9, e.step_seconds, 0.05 * e.step_seconds);
}

TEST(Ablation, ASwitchIsTheRunWithIt) {
  const Ablation& e = ablated();
  double last = 0;
  std::map<std::string, const Ablation::Switched*> by_set;
  for (const Ablation::Switched& each : e.switches) {
    by_set[each.how.sets.front()] = &each;
    if (!each.refusal.empty()) continue;
    EXPECT_GE(each.step_seconds, last);
    last = each.step_seconds;
  }
  const RunPlan other =
      plan_run(tiny_run({"parallel.tensor_model_parallel_size=2", "parallel.data_parallel_sharding_strategy=optim",
                         "overlap.overlap_grad_reduce=true"}),
               4, h100({"gpus_per_node=2"}));
  const Ablation::Switched& same = *by_set.at("overlap.overlap_grad_reduce=true");
  EXPECT_EQ(same.step_seconds, other.prediction.step.step_seconds);
  EXPECT_EQ(same.memory_bytes, other.prediction.memory_bytes);
  EXPECT_GT(by_set.at("parallel.data_parallel_sharding_strategy=no_shard")->memory_bytes, e.memory_bytes);
  // Invalid switches are listed at the end.
  EXPECT_NE(by_set.at("overlap.defer_embedding_wgrad_compute=true")->refusal, "");
  EXPECT_NE(e.switches.back().refusal, "");
  EXPECT_EQ(json_of(e)["switches"].size(), e.switches.size());
}

// Each difference alone and, last, both together, which gives the other run.
TEST(Compare, TellsWhatEachDifferenceChanges) {
  const LoadedConfig a = tiny_run(), b = tiny_run({"parallel.tensor_model_parallel_size=2", "optimizer.lr=0.5"});
  const Ablation e = compare(a, b, 4, h100());
  ASSERT_EQ(e.switches.size(), 3u);
  const double of_a = plan_run(a, 4, h100()).prediction.step.step_seconds,
               of_b = plan_run(b, 4, h100()).prediction.step.step_seconds;
  EXPECT_EQ(e.step_seconds, of_a);
  EXPECT_EQ(e.switches[0].how.sets, std::vector<std::string>{"parallel.tensor_model_parallel_size=2"});
  EXPECT_EQ(e.switches[0].step_seconds, of_b);
  EXPECT_EQ(e.switches[1].step_seconds, of_a);
  EXPECT_EQ(e.switches[2].step_seconds, of_b);
  EXPECT_EQ(describe(e).size(), 1u);
}

}  // namespace
}  // namespace trivet::test
