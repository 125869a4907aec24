// The configuration section `plan:`: what `trivet plan` assumes about the training program if it is not this engine
// (framework.h).
#pragma once

#include <cstdint>
#include <optional>

#include "base/words.h"
#include "engine/config/tool_section.h"

namespace trivet {

enum class PlanFramework { trivet, megatron, pytorch };
constexpr auto words_of(PlanFramework) { return word_list("trivet", "megatron", "pytorch"); }

struct PlanConfig {
  // default: pytorch if ops_per_layer is given, megatron if attention is not fused, else trivet
  std::optional<PlanFramework> framework = {};
  bool fused_attention = true;                // false: scores are stored, and softmax is a separate kernel
  std::optional<double> host_us_per_op = {};  // default: the system's host_us
  std::optional<int64_t> ops_per_layer = {};  // kernels in the forward pass of a layer; default: the engine's
};
const PlanConfig& plan_of(const Config& config);

ToolSection plan_section();

}  // namespace trivet
