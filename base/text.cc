#include "base/text.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>

#include "base/scalar.h"

namespace trivet {
namespace {

// The width in terminal columns, counting every character of a UTF-8 text as one column.
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

std::string counted(int64_t n, std::string_view noun) {
  return fmt::format("{} {}{}", grouped(n), noun, n == 1 ? "" : noun.ends_with("ch") ? "es" : "s");  // batches
}

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

std::string csv_line(const std::vector<std::string>& cells) {
  std::string line;
  for (size_t i = 0; i < cells.size(); ++i) {
    if (i > 0) line += ',';
    const bool quoted = cells[i].find_first_of("\",\r\n") != std::string::npos;
    if (quoted) line += '"';
    if (cells[i].find_first_of("=+@") == 0 && !parse_number(cells[i])) line += '\'';  // or a spreadsheet evaluates it
    for (const char c : cells[i]) line += c == '"' ? std::string("\"\"") : std::string(1, c);
    if (quoted) line += '"';
  }
  return line + "\r\n";
}

std::vector<std::string> csv_cells(std::string_view line) {
  std::vector<std::string> cells(1);
  bool quoted = false, was_quoted = false;
  const auto end_cell = [&] {
    std::string& cell = cells.back();
    if (!was_quoted) cell.erase(cell.find_last_not_of(' ') + 1);
    was_quoted = false;
  };
  for (size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    std::string& cell = cells.back();
    if (quoted && c == '"' && line.substr(i + 1).starts_with('"')) cell += line[++i];
    else if (c == '"' && (quoted || cell.empty())) quoted = !quoted, was_quoted = true;
    else if (!quoted && c == ',') end_cell(), cells.emplace_back();
    else if (quoted || c != ' ' || (!cell.empty() && !was_quoted)) cell += c;
  }
  end_cell();
  return quoted ? std::vector<std::string>{} : cells;
}

std::string wrapped(std::string_view text, size_t columns, size_t indent) {
  if (columns == 0) return std::string(text);
  std::string lines;
  size_t used = indent;
  bool begins = true;
  const auto next_line = [&] { lines += '\n' + std::string(indent, ' '), used = indent, begins = true; };
  for (size_t i = 0; i < text.size();) {
    const size_t end = std::min(text.find_first_of(" \n", i), text.size());
    const std::string_view word = text.substr(i, end - i);
    if (!begins && used + 1 + width_of(word) > columns) next_line();
    if (!begins) lines += ' ', ++used;
    lines += word, used += width_of(word), begins = false;
    if (end < text.size() && text[end] == '\n') next_line();
    i = end + 1;
  }
  return lines;
}

namespace {

constexpr size_t kGap = 2;  // between columns, and before the first column of a block with a title

// The narrowest column in which to wrap `text`: its longest word, but at least 24 columns or the text's width if less.
size_t least_width(std::string_view text) {
  size_t least = std::min<size_t>(width_of(text), 24);
  for (size_t i = 0; i < text.size();) {
    const size_t end = std::min(text.find_first_of(" \n", i), text.size());
    least = std::max(least, width_of(text.substr(i, end - i)));
    i = end + 1;
  }
  return least;
}

std::string aligned(const std::string& cell, size_t width, char alignment) {
  const std::string padding(width - std::min(width, width_of(cell)), ' ');
  return alignment == 'r' ? padding + cell : cell + padding;
}

// If the table is too wide, splits it into parts, each with the first column and as many of the others as fit.
std::string render_table(const TextBlock& block, const std::vector<size_t>& widths, size_t indent, size_t columns) {
  std::string text;
  for (size_t begin = 1, end = 1; text.empty() || begin < widths.size(); begin = end) {
    if (!text.empty()) text += '\n';
    size_t width = indent + widths[0];
    for (; end < widths.size() && (end == begin || columns == 0 || width + kGap + widths[end] <= columns); ++end)
      width += kGap + widths[end];
    for (const auto& row : block.rows) {
      std::string line(indent, ' ');
      const auto add = [&](size_t i) {
        line += aligned(row[i], widths[i], i < block.align.size() ? block.align[i] : 'l');
      };
      add(0);
      for (size_t i = begin; i < std::min(end, row.size()); ++i) line += std::string(kGap, ' '), add(i);
      text += line.substr(0, line.find_last_not_of(' ') + 1) + '\n';
    }
  }
  return text;
}

// Renders rows of cells. A cell is placed in its column, or directly after its predecessor if it does not fit there,
// or else, like all that follow, on a line of its own.
std::string render_texts(const TextBlock& block, const std::vector<size_t>& widths, size_t indent, size_t columns) {
  const size_t below = indent + 3 * kGap;
  std::string text;
  for (const auto& row : block.rows) {
    std::string line(indent, ' ');
    size_t column = indent, used = indent;  // where the column begins; where the line ends so far
    bool broken = false;
    for (size_t i = 0; i < row.size(); ++i) {
      const size_t gap = i == 0 ? 0 : kGap, width = width_of(row[i]);
      const size_t needed = i + 1 == row.size() ? least_width(row[i]) : width;
      const auto fits = [&](size_t at) { return columns == 0 || i == 0 || (!broken && at + needed <= columns); };
      const size_t behind = used + gap, at = fits(std::max(column, behind)) ? std::max(column, behind) : behind;
      if (fits(at)) {
        line += std::string(at - used, ' ') + wrapped(row[i], columns, at);
        used = at + width;
      } else {
        broken = true;
        line = line.substr(0, line.find_last_not_of(' ') + 1) + '\n' + std::string(below, ' ') +
               wrapped(row[i], columns, below);
      }
      column += widths[i] + kGap;
    }
    text += line.substr(0, line.find_last_not_of(' ') + 1) + '\n';
  }
  return text;
}

}  // namespace

std::string render(const std::vector<TextBlock>& blocks, int columns) {
  size_t first = 0;
  for (const TextBlock& block : blocks)
    if (const auto widths = column_widths(block); !widths.empty()) first = std::max(first, widths[0]);
  std::string text;
  for (const TextBlock& block : blocks) {
    auto widths = column_widths(block);
    if (!widths.empty()) widths[0] = first;
    if (!block.title.empty()) text += block.title + '\n';
    const bool table = block.align.find('r') != std::string::npos;
    text += (table ? render_table : render_texts)(block, widths, block.title.empty() ? 0 : kGap,
                                                  static_cast<size_t>(columns));
  }
  return text;
}

}  // namespace trivet
