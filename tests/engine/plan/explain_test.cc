// Explanations: a class of cost removed, a switch changed.
#include "engine/plan/explain.h"

#include <gtest/gtest.h>
#include <map>
#include <nlohmann/json.hpp>

#include "tests/engine/plan/plan_support.h"

namespace trivet::test {
namespace {

LegalRun run_of(const std::vector<std::string>& sets, int ranks) { return legal_run(tiny_run(sets), ranks); }

// Two GPUs a node, so that the data-parallel ranks have a network between them.
const Explanation& explained() {
  static const Explanation e =
      explain(run_of({"parallel.tensor_model_parallel_size=2", "parallel.data_parallel_sharding_strategy=optim"}, 4),
              h100({"gpus_per_node=2"}));
  return e;
}

double without(const Explanation& e, const std::string& what) {
  for (const Explanation::Without& each : e.without)
    if (each.what == what) return each.step_seconds;
  ADD_FAILURE() << what;
  return 0;
}

TEST(Explain, WithoutACostAStepIsFaster) {
  const Explanation& e = explained();
  for (const Explanation::Without& each : e.without) EXPECT_LE(each.step_seconds, e.step_seconds) << each.what;
  EXPECT_EQ(without(e, "pipeline communication"), e.step_seconds);  // it has none
}

TEST(Explain, WhatBoundsTheStepIsTheFirst) {
  const Explanation e = explain(run_of({}, 2), h100({"host_us=100"}));
  EXPECT_EQ(e.without.front().what, "the host's launches");
  EXPECT_LT(e.without.front().step_seconds, 0.5 * e.step_seconds);
  EXPECT_EQ(without(e, "matrix products"), e.step_seconds);
}

TEST(Explain, OfADeviceWithoutAHostItsClassesCount) {
  const Explanation e =
      explain(run_of({"parallel.tensor_model_parallel_size=2"}, 4), h100({"gpus_per_node=2", "host_us=0"}));
  for (const char* what : {"matrix products", "attention", "memory-bound operations", "the optimizer",
                           "tensor communication", "data communication", "fixed costs of kernels"})
    EXPECT_LT(without(e, what), e.step_seconds) << what;
  EXPECT_EQ(without(e, "the host's launches"), e.step_seconds);
}

TEST(Explain, ASwitchIsTheRunWithIt) {
  const Explanation& e = explained();
  double last = 0;
  std::map<std::string, const Explanation::Switch*> by_set;
  for (const Explanation::Switch& each : e.switches) {
    by_set[each.sets.front()] = &each;
    if (!each.refusal.empty()) continue;
    EXPECT_GE(each.step_seconds, last);
    last = each.step_seconds;
  }
  const PlannedRun other =
      plan_run(tiny_run({"parallel.tensor_model_parallel_size=2", "parallel.data_parallel_sharding_strategy=optim",
                         "overlap.overlap_grad_reduce=true"}),
               4, h100({"gpus_per_node=2"}));
  const Explanation::Switch& same = *by_set.at("overlap.overlap_grad_reduce=true");
  EXPECT_EQ(same.step_seconds, other.prediction.step.step_seconds);
  EXPECT_EQ(same.memory_bytes, other.prediction.memory_bytes);
  EXPECT_GT(by_set.at("parallel.data_parallel_sharding_strategy=no_shard")->memory_bytes, e.memory_bytes);
  // What cannot be is told, at the end.
  EXPECT_NE(by_set.at("overlap.defer_embedding_wgrad_compute=true")->refusal, "");
  EXPECT_NE(e.switches.back().refusal, "");
  EXPECT_EQ(json_of(e)["switches"].size(), e.switches.size());
}

}  // namespace
}  // namespace trivet::test
