// The configuration sections that tools define, in the order in which a configuration lists them.
#include "engine/config/tool_section.h"
#include "tools/mlperf/section.h"
#include "tools/plan/section.h"
#include "tools/watch/prometheus.h"

namespace trivet {

std::span<const ToolSection> tool_sections() {
  static const ToolSection kSections[] = {mlperf_section(), plan_section(), prometheus_section()};
  return kSections;
}

}  // namespace trivet
