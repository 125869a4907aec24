#include "tools/plan/framework.h"

#include <array>

#include "base/check.h"
#include "tools/plan/costs.h"

namespace trivet {
namespace {

// Bytes of other frameworks over the engine's for the same operation, counted from their kernels, in passes over a
// tensor of 16 bits; a pass in fp32 is two.
//   elementwise  eager PyTorch, a GPT's layer forward and backward. Norms 4 and 8, dropout of probability 0 5 and 5,
//                residual additions 6 and 6, copies of q, k and v 6 and 6, casts 4 and 6: 56. The engine: 10 and 8
//   loss         to fp32 3, log-softmax 4, its gradient 6, to 16 bits 3, a copy of the logits 2: 18. The engine: 3
//   optimizer    an fp32 pass for each of Adam's twelve eager operations and of the norm's and the clipping's.
//                Megatron: fused, with copies of gradients to fp32 and of weights from it
//   kernels      launches where the engine has one: each begins and ends with idle compute units
//   attention    FlashAttention 1, of 2022, over FlashAttention 2 (Dao 2023, section 4.1): its time
struct FrameworkProfile {
  double elementwise = 1, loss = 1, optimizer = 1, kernels = 1, attention_forward = 1, attention_backward = 1;
};
FrameworkProfile profile_of(PlanFramework framework) {
  switch (framework) {
    case PlanFramework::trivet: return {};
    case PlanFramework::megatron: return {.loss = 6, .optimizer = 1.5, .kernels = 3};
    case PlanFramework::pytorch:
      return {.elementwise = 4,
              .loss = 5,
              .optimizer = 5,
              .kernels = 5,
              .attention_forward = 1.6,
              .attention_backward = 1.8};
  }
  fail("a framework without costs");
}

// Launches of the forward pass of the engine's GPT block: two norms, four GEMMs, attention, two residual additions.
constexpr double kLaunchesOfBlock = 9;

// Attention that stores its scores, as Megatron's CoreAttention: GEMMs over the full square, a fused kernel for scale,
// mask and softmax, and one for dropout, whose mask is a byte an element: published runs had dropout.
double unfused_attention_seconds(const System& system, const TapeWork& w) {
  const double scores = static_cast<double>(w.batch * w.m * w.n * size_of(w.dtype)), dropout = 2.5;
  const Gemm of_scores{.m = w.m, .n = w.n, .k = w.k, .batch = w.batch};   // and of their gradient
  const Gemm of_queries{.m = w.m, .n = w.k, .k = w.n, .batch = w.batch};  // the output, and the gradient of queries
  const Gemm of_keys{.m = w.n, .n = w.k, .k = w.m, .batch = w.batch};     // gradients of keys and of values
  const auto gemms = [&](double scores_count, double queries, double keys) {
    return scores_count * gemm_seconds(system, w.dtype, of_scores) +
           queries * gemm_seconds(system, w.dtype, of_queries) + keys * gemm_seconds(system, w.dtype, of_keys);
  };
  if (w.backward) return gemms(1, 1, 2) + memory_seconds(system, scores * (3 + dropout));
  return gemms(1, 1, 0) + memory_seconds(system, scores * (2 + dropout));
}

double gemm_work_seconds(const System& system, PlanFramework framework, const TapeWork& w) {
  double seconds = gemm_seconds(system, w.dtype, {.m = w.m, .n = w.n, .k = w.k});
  if (framework == PlanFramework::trivet || !w.activation) return seconds;
  const double output = static_cast<double>(w.m * w.n * product_bytes(w.dtype));
  seconds += memory_seconds(system, output * (w.backward ? 3 : 2));
  if (w.recomputed && framework == PlanFramework::megatron) {
    const double residual = static_cast<double>(w.m * w.k * product_bytes(w.dtype));
    seconds += gemm_seconds(system, w.dtype, {.m = w.m, .n = w.k, .k = w.n}) + memory_seconds(system, 3 * residual);
  }
  return seconds;
}

}  // namespace

PlanFramework framework_of(const PlanConfig& plan) {
  if (plan.framework) return *plan.framework;
  if (plan.ops_per_layer) return PlanFramework::pytorch;
  return plan.fused_attention ? PlanFramework::trivet : PlanFramework::megatron;
}

double work_seconds(const System& system, const PlanConfig& plan, const TapeWork& w) {
  const PlanFramework framework = framework_of(plan);
  const FrameworkProfile profile = profile_of(framework);
  const auto bytes = static_cast<double>(w.bytes);
  const double more_kernels = 1e-6 * system.kernel_us * (profile.kernels - 1);
  switch (w.kind) {
    case TapeWork::gemm: return gemm_work_seconds(system, framework, w) + more_kernels;
    case TapeWork::attention:
      if (!plan.fused_attention) return unfused_attention_seconds(system, w) + more_kernels;
      return attention_seconds(system, w.dtype, static_cast<double>(w.flops), w.backward) *
                 (w.backward ? profile.attention_backward : profile.attention_forward) +
             more_kernels;
    case TapeWork::loss: return memory_seconds(system, profile.loss * bytes) + more_kernels;
    case TapeWork::memory:
      return memory_seconds(system,
                            bytes * (w.category == Category::optimizer ? profile.optimizer : profile.elementwise)) +
             more_kernels;
    case TapeWork::copy: break;
  }
  return memory_seconds(system, bytes);
}

double launch_seconds(const System& system, const PlanConfig& plan) {
  const double launches = plan.ops_per_layer ? static_cast<double>(*plan.ops_per_layer) / kLaunchesOfBlock : 1;
  return 1e-6 * plan.host_us_per_op.value_or(system.host_us) * launches;
}

}  // namespace trivet
