#include "engine/config/batch_sizes.h"

#include <charconv>
#include <cmath>
#include <string_view>

#include "base/scalar.h"

namespace trivet {
namespace {

// Parses a non-negative integer with at most one suffix letter; empty if the text is anything else.
std::optional<int64_t> parse_count(std::string_view text, std::string_view letters) {
  int64_t scale = 1;
  if (const size_t letter = text.empty() ? letters.npos : letters.find(text.back()); letter != letters.npos) {
    scale = std::llround(std::pow(10, 3 * (static_cast<double>(letter) + 1)));
    text.remove_suffix(1);
  }
  int64_t value = 0;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = end.ec == std::errc() && end.ptr == text.data() + text.size() && value >= 0;
  if (!whole || value > int64_t{1'000'000'000'000'000} / scale) return std::nullopt;
  return value * scale;
}

}  // namespace

BatchSizes ramp_of_batch_sizes(int64_t start, int64_t increment, int64_t samples, int64_t full) {
  const int64_t steps = (full - start) / increment;
  BatchSizes sizes{{{0, start}}};
  for (int64_t i = 1; i <= steps; ++i)  // size i begins where consumed / (samples / steps) reaches i
    sizes.parts.push_back({(i * samples + steps - 1) / steps, start + i * increment});
  return sizes;
}

std::optional<BatchSizes> parse_batch_size_schedule(const std::string& text, int64_t seq_length) {
  BatchSizes sizes;
  std::string with_commas = text;
  std::ranges::replace(with_commas, ' ', ',');
  for (const std::string_view item : split_words(with_commas)) {
    if (item.empty()) continue;
    const size_t colon = item.find(':');
    if (colon == item.npos) return std::nullopt;
    const auto tokens = parse_count(item.substr(0, colon), "KMBT"), samples = parse_count(item.substr(colon + 1), "");
    if (!tokens || samples.value_or(0) < 1 || *samples > kMostBatchSamples) return std::nullopt;
    const int64_t from = *tokens / std::max<int64_t>(seq_length, 1);
    if (sizes.parts.empty() ? *tokens != 0 : from <= sizes.parts.back().from) return std::nullopt;
    sizes.parts.push_back({from, *samples});
  }
  return sizes.parts.empty() ? std::nullopt : std::optional(std::move(sizes));
}

}  // namespace trivet
