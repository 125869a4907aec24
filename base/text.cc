#include "base/text.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>

namespace trivet {
namespace {

// In columns of a terminal, taking every character of a UTF-8 text for one wide.
size_t width_of(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

std::vector<size_t> column_widths(const TextBlock& block) {
  std::vector<size_t> widths;
  for (const auto& row : block.rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width_of(row[i]));
  }
  return widths;
}

}  // namespace

std::string grouped(int64_t n) {
  std::string text = std::to_string(n);
  const size_t first = n < 0 ? 1 : 0;
  for (size_t i = text.size(); i > first + 3;) text.insert(i -= 3, 1, ',');
  return text;
}

std::string bytes_text(int64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < std::size(kUnits); ++unit) value /= 1024;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.2f} {}", value, kUnits[unit]);
}

std::string duration_text(double seconds) {
  if (!(seconds >= 0 && seconds < 1e12)) return "-";
  const auto total = static_cast<int64_t>(std::lround(seconds));
  const int64_t d = total / 86'400, h = total / 3600 % 24, m = total / 60 % 60, s = total % 60;
  if (d > 0) return fmt::format("{}d {:02}:{:02}:{:02}", d, h, m, s);
  if (h > 0) return fmt::format("{}:{:02}:{:02}", h, m, s);
  return fmt::format("{}:{:02}", m, s);
}

std::string percent_text(double fraction) {
  return std::isfinite(fraction) ? fmt::format("{:.1f}%", 100 * fraction) : "-";
}

std::string counted(int64_t n, std::string_view noun) { return fmt::format("{} {}{}", n, noun, n == 1 ? "" : "s"); }

std::string shortened(std::string_view text, size_t most) {
  size_t characters = 0, bytes = 0;
  while (bytes < text.size()) {
    size_t next = bytes + 1;
    while (next < text.size() && (static_cast<unsigned char>(text[next]) & 0xc0) == 0x80) ++next;
    if (++characters > most) return std::string(text.substr(0, bytes)) + "…";
    bytes = next;
  }
  return std::string(text);
}

std::string render(const std::vector<TextBlock>& blocks) {
  size_t first = 0;
  for (const TextBlock& block : blocks)
    if (const auto widths = column_widths(block); !widths.empty()) first = std::max(first, widths[0]);
  std::string text;
  for (const TextBlock& block : blocks) {
    auto widths = column_widths(block);
    if (!widths.empty()) widths[0] = first;
    if (!block.title.empty()) text += block.title + '\n';
    for (const auto& row : block.rows) {
      std::string line = block.title.empty() ? "" : "  ";
      for (size_t i = 0; i < row.size(); ++i) {
        const std::string padding(widths[i] - width_of(row[i]), ' ');
        const bool right = i < block.align.size() && block.align[i] == 'r';
        line += i == 0 ? "" : "  ";
        line += right ? padding + row[i] : row[i] + padding;
      }
      text += line.substr(0, line.find_last_not_of(' ') + 1) + '\n';
    }
  }
  return text;
}

}  // namespace trivet
