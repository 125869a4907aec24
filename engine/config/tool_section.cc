#include "engine/config/tool_section.h"

#include "engine/config/fields.h"

namespace trivet {

ToolValues::ToolValues() {
  for (const ToolSection& section : tool_sections())
    if (section.defaults) sections_.push_back(section.defaults());
}

const ToolSection* directing_section(const Config& config) {
  for (const ToolSection& section : tool_sections()) {
    const Field* const key = section.procedure ? find_field(section.directing_key) : nullptr;
    if (key && !is_default(*key, config)) return &section;
  }
  return nullptr;
}

}  // namespace trivet
