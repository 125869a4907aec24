// What a recorded operation costs in the frameworks of published runs.
#include "tools/plan/framework.h"

#include <gtest/gtest.h>

#include "tests/support/where.h"
#include "tools/plan/costs.h"

namespace trivet {
namespace {

const System& a100() {
  static const System system = load_system("a100-80", {}, source_path("configs/systems"));
  return system;
}
double seconds(const TapeWork& work, const PlanConfig& plan = {}) { return work_seconds(a100(), plan, work); }

TEST(PlanFramework, TheFrameworkFollowsFromTheOtherKeys) {
  EXPECT_EQ(framework_of({}), PlanFramework::trivet);
  EXPECT_EQ(framework_of({.fused_attention = false}), PlanFramework::megatron);
  EXPECT_EQ(framework_of({.fused_attention = false, .ops_per_layer = 50}), PlanFramework::pytorch);
  EXPECT_EQ(framework_of({.framework = PlanFramework::trivet, .fused_attention = false}), PlanFramework::trivet);
}

// Storing scores costs GEMMs over the full square, and passes over the scores: 4.5 for forward softmax and dropout.
TEST(PlanFramework, UnfusedAttentionMovesItsScores) {
  const TapeWork forward{.kind = TapeWork::attention,
                         .dtype = DType::bf16,
                         .m = 2048,
                         .n = 2048,
                         .k = 96,
                         .batch = 256,
                         .flops = int64_t{2} * 2048 * 2048 * 96 * 256};
  TapeWork backward = forward;
  backward.backward = true;
  const PlanConfig unfused{.fused_attention = false};
  const double pass = 2.0 * 2048 * 2048 * 256 / (a100().memory_gb_per_s * 1e9 * a100().memory_share);
  const double gemms = gemm_seconds(a100(), DType::bf16, {.m = 2048, .n = 2048, .k = 96, .batch = 256}) +
                       gemm_seconds(a100(), DType::bf16, {.m = 2048, .n = 96, .k = 2048, .batch = 256});
  EXPECT_NEAR(seconds(forward, unfused), gemms + 4.5 * pass + 3e-6 * a100().kernel_us, 1e-9);
  EXPECT_GT(seconds(forward, unfused), 2 * seconds(forward));
  EXPECT_GT(seconds(backward, unfused), seconds(forward, unfused));
}

TEST(PlanFramework, GeluIsAKernelOfItsOwnElsewhere) {
  const TapeWork plain{.kind = TapeWork::gemm, .dtype = DType::bf16, .m = 4096, .n = 8192, .k = 2048};
  TapeWork gelu = plain;
  gelu.activation = true;
  EXPECT_EQ(seconds(gelu), seconds(plain));
  EXPECT_GT(seconds(gelu, {.fused_attention = false}), seconds(plain, {.fused_attention = false}));
}

// The engine saves the output of a recomputed group; Megatron computes fc2 again, a GEMM of as many FLOPs as fc1.
TEST(PlanFramework, MegatronRecomputesTheLastGemm) {
  TapeWork fc1{.kind = TapeWork::gemm, .dtype = DType::bf16, .activation = true, .m = 4096, .n = 8192, .k = 2048};
  const PlanConfig megatron{.framework = PlanFramework::megatron}, pytorch{.framework = PlanFramework::pytorch};
  const double first = seconds(fc1, megatron), first_of_pytorch = seconds(fc1, pytorch);
  fc1.recomputed = true;
  EXPECT_GT(seconds(fc1, megatron), 1.7 * first);
  EXPECT_EQ(seconds(fc1, pytorch), first_of_pytorch);
}

TEST(PlanFramework, ASlowHostLaunchesMoreKernels) {
  EXPECT_DOUBLE_EQ(launch_seconds(a100(), {}), 1e-6 * a100().host_us);
  EXPECT_DOUBLE_EQ(launch_seconds(a100(), {.host_us_per_op = 20, .ops_per_layer = 45}), 100e-6);
}

}  // namespace
}  // namespace trivet
