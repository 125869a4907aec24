// Sections of tools that trivet-core is built without: listed by name so that their keys get a specific error message.
#include "engine/config/tool_section.h"

namespace trivet {

std::span<const ToolSection> tool_sections() {
  static constexpr ToolSection kSections[] = {{.name = "mlperf"}, {.name = "plan"}, {.name = "prometheus"}};
  return kSections;
}

}  // namespace trivet
