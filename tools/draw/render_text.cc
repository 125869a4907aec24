#include <algorithm>
#include <cctype>
#include <cmath>
#include <fmt/format.h>

#include "base/svg.h"
#include "tools/draw/render.h"

namespace trivet {
namespace {

// One character per column, and the op that owns it, for colours.
struct Row {
  std::string text;
  std::vector<const Op*> owner;
};

// The 256-colour background of a chunk's shade, light to dark.
int background_of(const Op& op, int chunks) {
  constexpr int shades[4][4] = {{117, 75, 33, 25}, {120, 77, 35, 28}, {123, 80, 37, 30}, {253, 250, 247, 244}};
  const int shade = chunks == 1 ? 0 : op.chunk * 3 / (chunks - 1);
  return shades[static_cast<size_t>(op.kind)][std::min(shade, 3)];
}

std::string colored(const Row& row, int chunks) {
  std::string text;
  const Op* last = nullptr;
  for (size_t i = 0; i < row.text.size(); ++i) {
    const Op* op = row.owner[i];
    if (op != last) text += op ? fmt::format("\x1b[30;48;5;{}m", background_of(*op, chunks)) : "\x1b[0m";
    text += row.text[i];
    last = op;
  }
  if (last) text += "\x1b[0m";
  return text;
}

// Columns per unit of time: wide enough for every op's label if the line has room, else such that the shortest op takes
// a whole number of columns, so that multiples of its duration stay aligned.
double scale_of(const Timeline& timeline, double makespan, double columns) {
  double scale = 0, shortest = makespan;
  for (const OpSpan& span : timeline.ops) {
    const double length = span.end - span.start;
    if (length <= 0) continue;
    const auto label = static_cast<double>(to_string(span.op, timeline.v > 1).size());
    scale = std::max(scale, (label + 1) / length);
    shortest = std::min(shortest, length);
  }
  if (scale * makespan <= columns) return scale;
  const double whole = std::floor(columns / makespan * shortest);
  return whole > 0 ? whole / shortest : columns / makespan;
}

// "F3.1", or "f3" (lower case: an odd chunk), or "f": the longest one that fits.
std::string label_of(const Op& op, int chunks, size_t room) {
  std::string label = to_string(op, chunks > 1);
  if (label.size() <= room) return label;
  label = to_string(op, false);
  if (op.chunk % 2 == 1) label[0] = static_cast<char>(std::tolower(label[0]));
  return label.size() <= room ? label : label.substr(0, 1);
}

}  // namespace

std::string bubble_text(const Timeline& timeline) {
  const Bubble bubble = bubble_of(timeline);
  return fmt::format("bubble {:.1f} % of ideal, {:.1f} % of total", 100 * bubble.of_ideal(), 100 * bubble.of_total());
}

std::string render_text(const Timeline& timeline, const TextOptions& options) {
  double first = 0, last = 0;
  for (const OpSpan& span : timeline.ops) {
    first = &span == timeline.ops.data() ? span.start : std::min(first, span.start);
    last = std::max(last, span.end);
  }
  if (last <= first) return "";
  const std::string widest = fmt::format("rank {} ", timeline.p - 1);
  const double room = std::max(20, options.columns - static_cast<int>(widest.size()) - 1);
  const double scale = scale_of(timeline, last - first, room);
  const auto column = [&](double time) { return static_cast<size_t>(std::lround((time - first) * scale)); };

  std::vector<Row> rows(static_cast<size_t>(timeline.p));
  for (Row& row : rows) {
    row.text.assign(column(last), '.');
    row.owner.assign(column(last), nullptr);
  }
  for (const OpSpan& span : timeline.ops) {
    Row& row = rows[static_cast<size_t>(span.rank)];
    const size_t from = column(span.start), width = column(span.end) - from;
    if (width == 0) continue;
    const std::string whole_label = to_string(span.op, timeline.v > 1);
    std::string cell = width == 1 || width == whole_label.size() ? std::string() : std::string(1, '|');
    cell += label_of(span.op, timeline.v, width - cell.size());
    cell.resize(width, ' ');
    row.text.replace(from, width, cell);
    std::fill_n(row.owner.begin() + static_cast<long>(from), width, &span.op);
  }

  std::string text;
  for (size_t rank = 0; rank < rows.size(); ++rank) {
    const std::string line = options.colors ? colored(rows[rank], timeline.v) : rows[rank].text;
    text += fmt::format("{:<{}}{}|\n", fmt::format("rank {}", rank), widest.size(), line);
  }
  // Axis labels: a round time about every 20 columns.
  const double step = round_step(20, scale);
  std::string axis(column(last) + 1, ' ');
  for (int i = 0; first + i * step <= last; ++i) {
    const std::string mark = fmt::format("^{:g}{}", i * step, timeline.unit);
    axis.resize(std::max(axis.size(), column(first + i * step) + mark.size()), ' ');
    axis.replace(column(first + i * step), mark.size(), mark);
  }
  return text + fmt::format("{:<{}}{}\n", "time", widest.size(), axis);
}

}  // namespace trivet
