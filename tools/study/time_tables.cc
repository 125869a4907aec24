// The breakdown of step time by point, and by communication class next to the floor.
#include <algorithm>
#include <fmt/format.h>

#include "kernels/base/trace.h"
#include "tools/study/report.h"

namespace trivet {
namespace {

constexpr double kFloorLow = 0.95, kFloorHigh = 1.1;  // of wire over floor, to allow for clock error and copies

// A metric's median; "" if the runs do not report it.
std::string median_cell(const PointSummary& point, const std::string& metric) {
  const auto value = point.median(metric);
  return value ? metric_text(metric, *value) : "";
}

std::string hidden_cell(const std::optional<Estimate>& estimate) {
  if (!estimate) return "";
  const std::string value = percent_text(estimate->value);
  return !estimate->has_interval() ? value
                                   : fmt::format("{} ({} to {}, n {})", value, percent_text(estimate->low),
                                                 percent_text(estimate->high), estimate->rounds);
}

}  // namespace

TextBlock step_table(const Study& study, const Plan& plan, const Summary& summary) {
  TextBlock table = point_columns(study, "where the time of a step goes, median over the rounds");
  std::vector<std::pair<const char*, const char*>> columns{
      {"step", "step_seconds"},    {"compute", "compute_seconds"}, {"exposed", "exposed_seconds"},
      {"wait", "wait_seconds"},    {"idle", "idle_seconds"},       {"bubble", "bubble_fraction"},
      {"overlap", "overlap_ratio"}};
  std::erase_if(columns, [&](const auto& column) {
    return std::ranges::none_of(
        summary.points, [&](const PointSummary& point) { return point.median(column.second).value_or(0) != 0; });
  });
  for (const auto& [name, metric] : columns) table.column(name, 'r');
  const auto any = [&](auto of) {
    return std::ranges::any_of(summary.points, [&](const PointSummary& point) { return (point.*of).has_value(); });
  };
  const bool hidden = any(&PointSummary::hidden), inflation = any(&PointSummary::compute_inflation);
  if (hidden) table.column("hidden (95 %)", 'r');
  if (inflation) table.column("compute inflation (95 %)", 'r');
  for (size_t i = 0; i < plan.points.size(); ++i) {
    const PointSummary& point = summary.points[i];
    std::vector<std::string> row = point_cells(study, plan, i);
    for (const auto& [name, metric] : columns) row.push_back(median_cell(point, metric));
    if (hidden) row.push_back(hidden_cell(point.hidden));
    if (inflation) row.push_back(point.compute_inflation ? estimate_text(*point.compute_inflation) : "");
    table.rows.push_back(std::move(row));
  }
  return table;
}

TextBlock comm_table(const Study& study, const Plan& plan, const Summary& summary) {
  TextBlock table = point_columns(study, "communication of a rank and step by class, median over the rounds");
  table.column("class", 'l');
  for (const char* name : {"bytes", "floor", "wire", "wire / floor", "bus bandwidth", "exposed", "wait"})
    table.column(name, 'r');
  for (size_t i = 0; i < plan.points.size(); ++i)
    for (const std::string_view comm_class : kCommClasses) {
      const PointSummary& point = summary.points[i];
      const std::string name(comm_class);
      const auto bytes = point.median(name + "_wire_bytes"), wire = point.median(name + "_wire_seconds"),
                 floor = point.median(name + "_floor_seconds");
      if (!(bytes.value_or(0) > 0)) continue;
      std::vector<std::string> row = point_cells(study, plan, i);
      const bool moves = wire && *wire > 0;
      row.push_back(name);
      row.push_back(metric_text("bytes", *bytes));
      row.push_back(floor ? metric_text("seconds", *floor) : "unknown");
      row.push_back(median_cell(point, name + "_wire_seconds"));
      // Wire time at the floor: the link is the bottleneck. Below: a measurement error. Above: another bottleneck.
      const double ratio = moves && floor && *floor > 0 ? *wire / *floor : 0;
      row.push_back(ratio == 0 ? ""
                               : fmt::format("{:.2f}{}", ratio, ratio < kFloorLow || ratio > kFloorHigh ? " !" : ""));
      row.push_back(moves ? fmt::format("{:.3g} Gbit/s", 8e-9 * *bytes / *wire) : "");
      row.push_back(median_cell(point, name + "_exposed_seconds"));
      row.push_back(median_cell(point, name + "_wait_seconds"));
      table.rows.push_back(std::move(row));
    }
  return table;
}

std::string step_legend() {
  return "Each nanosecond of a rank's step counts once, as the first of: compute (and the optimizer); exposed, "
         "communication on the wire that this rank's compute does not hide; wait, for a peer's call; host; idle. Means "
         "over the ranks, medians over the rounds; a step next to a ratio is the baseline's mean times that ratio. "
         "Bubble: idle and waiting for another pipeline stage. Overlap: the share of the time on the "
         "wire that compute hides. Hidden: of the wire time that is exposed without overlap, the part that overlap "
         "hides. Compute inflation: compute time over the same without overlap, what sharing cores and memory costs.";
}

std::string comm_legend() {
  return fmt::format(
      "Bytes cross a rank's port: (n-1)/n of a reduce-scatter's or all-gather's, twice that of an all-reduce's. Floor: "
      "these bytes over the bandwidth of the link, plus its latency; unknown where no link is emulated or stated. "
      "Wire / floor is marked ! outside {:g} to {:g}: below, time or link is wrong; above, something other than the "
      "link bounds the calls, such as taken cores or the copies through memory. On an emulated link a call takes its "
      "floor by construction, unless another call is using the port. Bus bandwidth: bytes over wire.",
      kFloorLow, kFloorHigh);
}

}  // namespace trivet
