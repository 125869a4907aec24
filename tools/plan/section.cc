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
#undef KEY
}

// Training uses the engine's own operations, so a run that trains must not set `plan:`.
void check_plan(const LoadedConfig& loaded, Rules& rule) {
  for (const Field& field : fields())
    rule(field.name, {}, loaded.trains && field.section() == "plan" && !is_default(field, loaded.config),
         "is for trivet plan: a run trains by the engine's own operations; leave it out");
}

}  // namespace

const PlanConfig& plan_of(const Config& config) { return config.tools.of<PlanConfig>(); }

ToolSection plan_section() {
  return {.name = "plan",
          .defaults = [] { return std::any(PlanConfig()); },
          .declare = declare_plan,
          .check_run = check_plan};
}

}  // namespace trivet
