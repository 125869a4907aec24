// The value of data.path: a dataset, or a blend of several.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace trivet {

struct BlendSource {
  double weight = 0;  // 0: proportional to its size
  std::string prefix{};
};
struct BlendText {
  std::vector<BlendSource> sources{};
  std::string problem{};  // empty: none
};
// Parses data.path and similar keys: "prefix", "0.3,prefix,0.7,prefix" as in Megatron's --data-path, or prefixes alone.
BlendText parse_blend(std::string_view text);
// The prefix of the first source; empty if there is none.
inline std::string first_prefix(std::string_view text) {
  const BlendText blend = parse_blend(text);
  return blend.sources.empty() ? "" : blend.sources[0].prefix;
}

}  // namespace trivet
