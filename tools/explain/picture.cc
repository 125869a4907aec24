#include "tools/explain/picture.h"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <map>

#include "base/svg.h"

namespace trivet {
namespace {

constexpr double kLeft = 24, kColumn = 576, kGap = 24, kRow = 22, kNames = 154, kCell = 68, kLane = 26;
constexpr size_t kLineCells = 15, kMostCells = 3 * kLineCells;

std::string class_of_call(const Queued& q) { return std::string(kCommClasses.at(class_of(q.group->category))); }

void draw_row(Canvas& canvas, const LayerRow& row, double x, double y) {
  const Queued& q = row.queued;
  const std::string classes = q.call ? class_of_call(q) : q.pass == "recompute" ? "W" : std::string(q.pass);
  const std::string left = q.call ? fmt::format("{}  {}", row.name, row.size) : row.name;
  const std::string right = q.call               ? fmt::format("{} bytes", grouped(q.call->bytes))
                            : row.linear.empty() ? row.size
                                                 : fmt::format("{}   {}", row.size, row.linear);
  canvas.bar(x, y, kColumn, kRow - 3, classes.c_str(), fmt::format("{}: {}, {}", q.pass, left, right));
  canvas.text(x + 8, y + 14, q.call ? "head paper" : "", left);
  canvas.text(x + kColumn - 8, y + 14, q.call ? "head paper end" : "end", right);
}

// Forward runs from top to bottom, backward from bottom to top, so that corresponding operations are roughly level.
double draw_layer(Canvas& canvas, const std::vector<LayerRow>& layer, double top) {
  const auto forward = std::ranges::count(layer, "F", [](const LayerRow& row) { return row.queued.pass; });
  const auto rows = static_cast<double>(std::max<int64_t>(forward, std::ssize(layer) - forward));
  const double right = kLeft + kColumn + kGap, first = top + 44;
  canvas.text(kLeft, top + 14, "head", "One layer and micro-batch");
  canvas.text(kLeft, top + 34, "soft", "forward, from top to bottom");
  canvas.text(right, top + 34, "soft", "backward, from bottom to top");
  double down = first, up = first + kRow * rows;
  for (const LayerRow& row : layer) {
    if (row.queued.pass == "F") draw_row(canvas, row, kLeft, down), down += kRow;
    else draw_row(canvas, row, right, up -= kRow);
  }
  return first + kRow * rows;
}

struct PassCell {
  std::string_view pass = {};
  int microbatch = -1, unit = -1;
  bool operator==(const PassCell&) const = default;
};
struct LaneCall {
  int64_t calls = 0, bytes = 0;
  std::vector<std::string> buckets = {};
};

// One cell per unit that a pass runs through, with the calls queued between this cell and the next.
struct StepCells {
  explicit StepCells(const RecordedStep& step) {
    for (const Queued& q : step.queued) {
      const PassCell at{q.pass, q.pass.empty() ? -1 : q.label.microbatch, q.pass.empty() ? -1 : q.label.first_unit};
      if (q.work && (cells.empty() || cells.back() != at)) cells.push_back(at);
      if (!q.call) continue;
      LaneCall& lane = lanes[{class_of_call(q), q.call->name}][cells.empty() ? 0 : cells.size() - 1];
      ++lane.calls, lane.bytes += q.call->bytes;
      if (q.label.bucket >= 0) lane.buckets.push_back(fmt::format("b{}", q.label.bucket));
    }
  }
  std::vector<PassCell> cells;
  std::map<std::pair<std::string, std::string>, std::map<size_t, LaneCall>> lanes;  // by class and call, by cell
};

// Two lines of text in a box.
void draw_cell(Canvas& canvas, double x, double y, double height, const std::string& classes, const std::string& name,
               const std::string& second, const std::string& title) {
  const char* const ink = classes.size() > 1 && classes != "layer" ? "small mid paper" : "small mid";
  canvas.bar(x, y, kCell - 2, height, classes.c_str(), title);
  canvas.text(x + kCell / 2 - 1, y + height / 2 - 2, ink, shortened(name, 12));
  canvas.text(x + kCell / 2 - 1, y + height / 2 + 8, ink, shortened(second, 12));
}

double draw_line(Canvas& canvas, const StepCells& step, size_t first, const std::vector<std::string>& units, double y) {
  const size_t end = std::min(step.cells.size(), first + kLineCells);
  const auto x_of = [&](size_t cell) { return kLeft + kNames + kCell * static_cast<double>(cell - first); };
  canvas.text(kLeft, y + 20, "", "compute");
  for (size_t i = first; i < end; ++i) {
    const auto& [pass, microbatch, unit] = step.cells[i];
    const std::string name = pass.empty() ? "step" : fmt::format("{}{}", pass, microbatch);
    const std::string of = unit < 0 ? "" : units[static_cast<size_t>(unit)];
    draw_cell(canvas, x_of(i), y, 30, pass.empty() ? "layer" : std::string(pass), name, of, name + " " + of);
  }
  y += 36;
  for (const auto& [of, calls] : step.lanes) {
    canvas.text(kLeft, y + 15, "", fmt::format("{} {}", of.first, of.second));
    for (const auto& [cell, lane] : calls) {
      if (cell < first || cell >= end) continue;
      const std::string name =
          lane.buckets.empty() ? counted(lane.calls, "call") : fmt::format("{}", fmt::join(lane.buckets, " "));
      draw_cell(canvas, x_of(cell), y, kLane - 3, of.first, name, bytes_text(lane.bytes),
                fmt::format("{}, {}: {} bytes", counted(lane.calls, "call"), name, grouped(lane.bytes)));
    }
    y += kLane;
  }
  return y;
}

double draw_step(Canvas& canvas, const RecordedStep& recorded, const std::vector<std::string>& units, double top) {
  const StepCells step(recorded);
  const size_t drawn = std::min(step.cells.size(), kMostCells);
  canvas.text(kLeft, top + 14, "head",
              fmt::format("A step, in the order in which the host queues it{}",
                          drawn < step.cells.size()
                              ? fmt::format(": its first {} passes through a unit, of {}", drawn, step.cells.size())
                              : ""));
  double y = top + 30;
  for (size_t first = 0; first < drawn; first += kLineCells) y = draw_line(canvas, step, first, units, y) + 14;
  return y;
}

}  // namespace

std::string render_explained_svg(std::string_view title, const std::vector<LayerRow>& layer, const RecordedStep& step,
                                 const std::vector<std::string>& units) {
  Canvas canvas;
  canvas.text(kLeft, 24, "head", title);
  double y = 36;
  if (!layer.empty()) y = draw_layer(canvas, layer, y) + kGap;
  y = draw_step(canvas, step, units, y) + kGap;
  return canvas.finish(kLeft + kColumn + kGap + kColumn + kLeft, y, title);
}

}  // namespace trivet
