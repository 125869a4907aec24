#include "tools/plan/framework.h"

#include <array>

#include "base/check.h"
#include "tools/plan/costs.h"

namespace trivet {
namespace {

// Ratios of the bytes that other frameworks move for an operation to those that the engine moves, counted from the
// frameworks' kernels in passes over a 16-bit tensor; an fp32 pass counts as two.
//   elementwise  eager PyTorch, a GPT layer's forward and backward: norms 4 and 8, dropout of probability 0 5 and 5,
//                residual additions 6 and 6, copies of q, k and v 6 and 6, casts 4 and 6: 56. The engine: 10 and 8
//   loss         casts to and from fp32 3 and 3, log-softmax 4, its gradient 6, a copy of logits 2: 18. The engine: 3
//   optimizer    an fp32 pass per eager operation: twelve for Adam, plus those for the norm and clipping.
//                Megatron: fused, plus copies of gradients to fp32 and of weights from fp32
//   kernels      kernel launches per launch of the engine: each begins and ends with idle compute units
//   attention    time of FlashAttention 1 (2022) relative to FlashAttention 2 (Dao 2023, section 4.1)
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

// Launches in the forward pass of the engine's GPT block: two norms, four GEMMs, attention, two residual additions.
constexpr double kLaunchesOfBlock = 9;

// Attention that stores its scores, like Megatron's CoreAttention: GEMMs over the full square, one fused kernel for
// scale, mask and softmax, and one for dropout (as published runs used it), whose mask takes one byte per element.
double unfused_attention_seconds(const System& system, const TapeWork& w) {
  const double scores = static_cast<double>(w.batch * w.m * w.n * size_of(w.dtype)), dropout = 2.5;
  const Gemm of_scores{.m = w.m, .n = w.n, .k = w.k, .batch = w.batch};   // the scores and their gradient
  const Gemm of_queries{.m = w.m, .n = w.k, .k = w.n, .batch = w.batch};  // the output, and the gradient of queries
  const Gemm of_keys{.m = w.n, .n = w.k, .k = w.m, .batch = w.batch};     // the gradients of keys and values
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
