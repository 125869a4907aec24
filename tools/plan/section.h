// The section `plan:` of a configuration: what `trivet plan` assumes of the program that trains where it is not this
// engine (framework.h).
#pragma once

#include <cstdint>
#include <optional>

#include "base/words.h"
#include "engine/config/tool_section.h"

namespace trivet {

enum class PlanFramework { trivet, megatron, pytorch };
constexpr auto words_of(PlanFramework) { return word_list("trivet", "megatron", "pytorch"); }

struct PlanConfig {
  // pytorch, where ops_per_layer is given; megatron, where attention is not fused; else trivet
  std::optional<PlanFramework> framework = {};
  bool fused_attention = true;                // false: scores are stored, and softmax is a kernel of its own
  std::optional<double> host_us_per_op = {};  // the system's host_us
  std::optional<int64_t> ops_per_layer = {};  // kernels that the forward pass of a layer launches; the engine's own
  std::optional<bool> fsdp_prefetch = {};     // gathers of ZeRO-3 go a unit ahead; overlap.overlap_param_gather
};
const PlanConfig& plan_of(const Config& config);

ToolSection plan_section();

}  // namespace trivet
