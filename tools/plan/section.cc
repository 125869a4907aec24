#include "tools/plan/section.h"

#include "engine/config/field_types.h"
#include "engine/config/rules.h"

namespace trivet {
namespace {

void declare_plan(std::vector<Field>& table) {
#define KEY(member, ...)                   \
  add_field<decltype(PlanConfig::member)>( \
      table, "plan." #member, [](Config& c) -> void* { return &c.tools.of<PlanConfig>().member; }, __VA_ARGS__)
  KEY(framework,
      "trivet plan: the framework whose kernels are modelled; auto: pytorch with ops_per_layer, megatron without fused "
      "attention, else trivet");
  KEY(fused_attention, "trivet plan: attention is a single kernel that stores no scores");
  KEY(host_us_per_op, "trivet plan: the host's time to launch a kernel; auto: the system's host_us",
      range(0, 10'000, "us"));
  KEY(ops_per_layer,
      "trivet plan: kernels launched by a layer's forward pass; other passes scale with it; auto: the engine's",
      range(1, 10'000, "kernels"));
  KEY(fsdp_prefetch, "trivet plan: with optim_grads_params, gather weights one unit ahead; auto: overlap_param_gather");
#undef KEY
}

// Training uses the engine's own operations, so a run that trains must not set `plan:`.
void check_plan(const LoadedConfig& loaded, Rules& rule) {
  const Config& config = loaded.config;
  const Config defaults;
  for (const Field& field : fields())
    rule(field.name, {},
         loaded.trains && field.section() == "plan" && format_field(field, config) != format_field(field, defaults),
         "is for trivet plan: a run trains by the engine's own operations; leave it out");
  constexpr auto kStrategy = "parallel.data_parallel_sharding_strategy";
  const Sharding sharding = config.parallel.data_parallel_sharding_strategy;
  rule("plan.fsdp_prefetch", {kStrategy}, plan_of(config).fsdp_prefetch && sharding != Sharding::optim_grads_params,
       "needs optim_grads_params, found {}: no other strategy gathers weights unit by unit", word_of(sharding));
}

void derive_plan(LoadedConfig& loaded, int64_t, Problems&, std::vector<std::string>&) {
  if (const auto ahead = plan_of(loaded.config).fsdp_prefetch) loaded.config.overlap.overlap_param_gather = *ahead;
}

}  // namespace

const PlanConfig& plan_of(const Config& config) { return config.tools.of<PlanConfig>(); }

ToolSection plan_section() {
  return {.name = "plan",
          .defaults = [] { return std::any(PlanConfig()); },
          .declare = declare_plan,
          .check_run = check_plan,
          .derive = derive_plan};
}

}  // namespace trivet
