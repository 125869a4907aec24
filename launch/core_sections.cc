// No tool is in trivet-core, whose configurations may not have the keys of one.
#include "engine/config/tool_section.h"

namespace trivet {

std::span<const ToolSection> tool_sections() {
  static constexpr ToolSection kSections[] = {{.name = "mlperf"}, {.name = "plan"}};
  return kSections;
}

}  // namespace trivet
