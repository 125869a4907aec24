// The sections of tools that trivet-core is built without: named, so that their keys are refused in words of their own.
#include "engine/config/tool_section.h"

namespace trivet {

std::span<const ToolSection> tool_sections() {
  static constexpr ToolSection kSections[] = {{.name = "mlperf"}, {.name = "plan"}, {.name = "prometheus"}};
  return kSections;
}

}  // namespace trivet
