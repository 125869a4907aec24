#include "engine/config/blend_text.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>

#include "base/scalar.h"

namespace trivet {

BlendText parse_blend(std::string_view text) {
  BlendText blend;
  if (text.empty()) return blend;
  const std::vector<std::string_view> items = split_words(text);
  const auto is_number = [](std::string_view item) { return parse_number(item).has_value(); };
  double sum = 0;
  const bool weighted = items.size() > 1 && std::ranges::any_of(items, is_number);
  for (size_t i = 0; i < items.size() && blend.problem.empty(); ++i) {
    BlendSource source;
    if (weighted) {
      source.weight = parse_number(items[i]).value_or(0);
      if (!is_number(items[i])) blend.problem = fmt::format("{} has no weight before it", quote(items[i]));
      else if (source.weight <= 0) blend.problem = fmt::format("the weight {} is not above 0", items[i]);
      else if (++i == items.size() || is_number(items[i]))
        blend.problem = fmt::format("the weight {} is not followed by a prefix", items[i - 1]);
    }
    if (sum += source.weight; !std::isfinite(sum)) blend.problem = "the sum of the weights is not finite";
    if (!blend.problem.empty()) break;
    if (items[i].empty()) blend.problem = "a prefix is empty";
    source.prefix = items[i];
    blend.sources.push_back(std::move(source));
  }
  return blend;
}

}  // namespace trivet
