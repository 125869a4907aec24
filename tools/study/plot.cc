#include <algorithm>
#include <array>
#include <cmath>
#include <fmt/format.h>

#include "base/svg.h"
#include "tools/study/report.h"

namespace trivet {
namespace {

constexpr double kWidth = 880, kRow = 22, kCharacter = 6.9, kBoldCharacter = 7.8, kTop = 30;

// Table columns that label a plot's rows.
using Names = std::vector<std::vector<std::string>>;
Names names_of(const TextBlock& table, size_t columns) {
  Names names;
  for (const auto& row : table.rows) names.emplace_back(row.begin() + 1, row.begin() + 1 + static_cast<long>(columns));
  return names;
}
Names names_of_points(const Study& study, const Plan& plan) {
  TextBlock table = point_columns(study, "");
  for (size_t i = 0; i < plan.points.size(); ++i) table.rows.push_back(point_cells(study, plan, i));
  return names_of(table, table.rows[0].size() - 1);
}

// Row labels on the left, in columns under headings; bars on the right, on a scale from 0 to `end`.
class BarChart : public Canvas {
 public:
  BarChart(const Names& names, double end, const std::string& unit) : rows_(names.size() - 1) {
    constexpr size_t kMost = 22;
    for (size_t column = 0; column < names[0].size(); ++column) {
      double longest = 0;
      for (size_t row = 0; row < names.size(); ++row) {
        const std::string name = shortened(names[row][column], kMost);
        text(left_, row == 0 ? kTop - 10 : y_of(row - 1) + 15, row == 0 ? "head soft" : "", name);
        longest = std::max(longest, static_cast<double>(name.size()) * (row == 0 ? kBoldCharacter : kCharacter));
      }
      left_ += longest + 14;
    }
    right_ = std::max(kWidth, left_ + 300) - 70;
    scale_ = (right_ - left_) / end;
    const double step = round_step(end, 8);
    for (int n = 0; n * step <= end * (1 + 1e-9); ++n) {
      line(x_of(n * step), kTop - 2, x_of(n * step), bottom() + 3, n == 0 ? "axis" : "grid");
      text(x_of(n * step), bottom() + 17, "soft mid", fmt::format("{:g}", n * step));
    }
    text((left_ + right_) / 2, bottom() + 34, "soft mid", unit);
  }

  double left() const { return left_; }
  double right() const { return right_; }
  double width() const { return right_ + 70; }
  double x_of(double value) const { return left_ + value * scale_; }
  double y_of(size_t row) const { return kTop + static_cast<double>(row) * kRow; }
  double bottom() const { return y_of(rows_); }
  // One segment of a row's bar, from one value to another.
  void part(size_t row, double from, double to, const std::string& kind, std::string_view title) {
    bar(x_of(from), y_of(row) + 4, (to - from) * scale_, kRow - 8, kind.c_str(), title);
  }
  void text_at_end(size_t row, const char* classes, std::string_view what) {
    text(width() - 8, y_of(row) + 15, classes, what);
  }
  void text_instead(size_t row, std::string_view what) { text(left_ + 6, y_of(row) + 15, "soft", what); }

 private:
  const size_t rows_;
  double left_ = 8, right_ = 0, scale_ = 0;
};

std::string direction(const Study& study) { return is_better_high(study.metric) ? "more is better" : "less is better"; }

// A row of estimate_chart().
struct EstimateBar {
  std::optional<Estimate> estimate;
  const char* kind;
  std::string value;    // the estimate as text, or why none exists
  std::string details;  // the tooltip
};

// Bars with 95 % intervals as whiskers. ratios: the values are ratios, and 1 is marked. unseen: the largest ratio that
// the study cannot detect; 0: unknown.
std::string estimate_chart(const Names& names, const std::vector<EstimateBar>& bars, bool ratios, double unseen,
                           const std::string& unit, const char* legend, const char* label) {
  double end = ratios ? 1.1 : 0, largest = 0;
  for (const EstimateBar& bar : bars)
    if (bar.estimate) largest = std::max(largest, bar.estimate->value);
  // An interval from two or three rounds can be arbitrarily wide.
  for (const EstimateBar& bar : bars)
    if (bar.estimate) end = std::max(end, std::min(bar.estimate->high, 1.5 * largest) * 1.04);
  if (!(end > 0)) end = 1;
  BarChart chart(names, end, unit);
  if (unseen > 0) {
    const double from = chart.x_of(1 / unseen), to = std::min(chart.x_of(unseen), chart.right());
    chart.bar(from, kTop - 2, to - from, chart.bottom() - kTop + 4, "rest", "effects that this study does not see");
  }
  for (size_t row = 0; row < bars.size(); ++row) {
    const auto& [estimate, kind, value, details] = bars[row];
    if (!estimate) {
      chart.text_instead(row, value);
      continue;
    }
    chart.part(row, 0, estimate->value, kind, details);
    if (estimate->has_interval() && estimate->high > estimate->low) {
      const double middle = chart.y_of(row) + kRow / 2;
      chart.put(
          "<path class=\"whisker\" d=\"M{0:.1f} {2:.1f}V{3:.1f}M{0:.1f} {4:.1f}H{1:.1f}M{1:.1f} {2:.1f}V{3:.1f}\"/>",
          chart.x_of(estimate->low), chart.x_of(std::min(estimate->high, end)), middle - 4, middle + 4, middle);
    }
    chart.text_at_end(row, std::string_view(kind) == "bar best" ? "end head" : "end", value);
  }
  if (ratios) chart.line(chart.x_of(1), kTop - 6, chart.x_of(1), chart.bottom() + 3, "one");
  chart.text(8, chart.bottom() + 52, "soft", legend);
  return chart.finish(chart.width(), chart.bottom() + 62, label);
}

}  // namespace

std::string ratio_plot(const Study& study, const Plan& plan, const Summary& summary) {
  const bool ratios =
      std::ranges::any_of(summary.points, [&](const PointSummary& point) { return point.ratio(study.metric); });
  std::vector<EstimateBar> bars;
  for (size_t i = 0; i < plan.points.size(); ++i) {
    const PointSummary& point = summary.points[i];
    std::optional<Estimate> estimate;
    if (const Estimate* ratio = point.ratio(study.metric)) estimate = *ratio;
    else if (!ratios && point.adjusted)
      estimate = {.rounds = 1, .value = *point.adjusted, .low = *point.adjusted, .high = *point.adjusted};
    if (!estimate) {
      bars.push_back({.estimate = {},
                      .kind = "",
                      .value = !point.failure.empty() ? "failed"
                               : point.done > 0       ? "no baseline to compare with"
                                                      : "not run",
                      .details = ""});
      continue;
    }
    const std::string value = ratios ? ratio_text(estimate->value) : metric_text(study.metric, estimate->value);
    // With few rounds, a point worse than a ruled-out baseline may not be ruled out itself; do not draw it green.
    const bool behind = ratios && (is_better_high(study.metric) ? estimate->value < 1 : estimate->value > 1);
    const bool green = summary.may_be_best(i) && !(behind && !summary.may_be_best(summary.conclusion_of(i).baseline));
    bars.push_back({.estimate = estimate,
                    .kind = green            ? "bar best"
                            : point.baseline ? "bar base"
                                             : "bar",
                    .value = value,
                    .details = fmt::format("{}, 95 %: {} to {} in {}", value, ratio_text(estimate->low),
                                           ratio_text(estimate->high), counted(estimate->rounds, "round"))});
  }
  std::string conditions;
  for (const Factor& factor : study.factors)
    if (factor.condition) conditions += (conditions.empty() ? " with the same " : ", ") + factor.name;
  return estimate_chart(
      names_of_points(study, plan), bars, ratios, ratios && summary.resolution ? 1 + summary.resolution->effect() : 0,
      ratios ? fmt::format("{} over the baseline's{}; {}", metric_name(study.metric), conditions, direction(study))
             : fmt::format("{}; {}", study.metric, direction(study)),
      "green: best, or tied and not worse than the baseline; whiskers: 95 %; grey band: effects too small to be "
      "found in four of five such studies",
      "ratio of each point to the baseline");
}

std::string effects_plot(const Study& study, const Plan& plan, const Summary& summary) {
  std::vector<EstimateBar> bars;
  for (const Conclusion& conclusion : summary.conclusions)
    for (const auto& levels : conclusion.effects)
      for (const auto& [contexts, ratio, min, max, corrected_p, verdict] : levels) {
        const bool baseline = verdict == Verdict::baseline, measured = baseline || contexts > 0;
        bars.push_back({.estimate = measured ? std::optional(ratio) : std::nullopt,
                        .kind = baseline ? "bar base" : "bar",
                        .value = measured ? ratio_text(ratio.value) : std::string(word_of(verdict)),
                        .details = fmt::format("{}, {} in {} of the others", estimate_text(ratio), word_of(verdict),
                                               counted(contexts, "setting"))});
      }
  const TextBlock table = effect_table(study, plan, summary);
  const auto columns = std::ranges::find(table.rows[0], "level") - table.rows[0].begin();
  return estimate_chart(
      names_of(table, static_cast<size_t>(columns)), bars, true, 0,
      fmt::format("{} over that with the factor's baseline level; {}", metric_name(study.metric), direction(study)),
      "whiskers: 95 %", "main effects of the factors");
}

std::string exposed_plot(const Study& study, const Plan& plan, const Summary& summary) {
  struct Class {
    const char *key, *name;
  };
  constexpr std::array<Class, 4> kClasses{{{"tensor", "tensor-parallel"},
                                           {"context", "context-parallel"},
                                           {"pipeline", "pipeline"},
                                           {"data", "data-parallel"}}};
  const auto milliseconds = [](const PointSummary& point, const std::string& part) {
    return 1e3 * point.median(part + "_seconds").value_or(0);
  };
  double end = 0;
  bool any = false, waits = false;
  for (const PointSummary& point : summary.points) {
    end = std::max(end, milliseconds(point, "step"));
    for (const Class& of : kClasses) {
      any |= point.find(std::string(of.key) + "_exposed_seconds") != nullptr;
      waits |= milliseconds(point, std::string(of.key) + "_wait") > 0;
    }
  }
  if (!any || !(end > 0)) return "";
  BarChart chart(names_of_points(study, plan), 1.02 * end, "milliseconds of a step; an average rank");
  for (size_t i = 0; i < plan.points.size(); ++i) {
    const PointSummary& point = summary.points[i];
    const double step = milliseconds(point, "step");
    if (step == 0) {
      chart.text_instead(i, point.failure.empty() ? "not run" : "failed");
      continue;
    }
    double begin = 0, exposed = 0;
    const auto part = [&](double length, const std::string& kind, const std::string& what) {
      if (!(length > 0)) return;
      chart.part(i, begin, begin + length, kind,
                 fmt::format("{}: {:.4g} ms, {}", what, length, percent_text(length / step)));
      begin += length;
    };
    for (const auto& [key, name] : kClasses) {
      const std::string of = key;
      part(milliseconds(point, of + "_exposed"), of, fmt::format("exposed {} communication", name));
      part(milliseconds(point, of + "_wait"), of + " wait", fmt::format("{} communication, waiting for a peer", name));
      exposed += milliseconds(point, of + "_exposed");
    }
    chart.part(i, begin, step, "rest", fmt::format("the rest of the step, which is {:.4g} ms", step));
    chart.text_at_end(i, "end", percent_text(exposed / step));
  }
  double x = chart.left();
  const auto legend = [&](const char* kind, const char* name) {
    chart.bar(x, chart.bottom() + 46, 11, 11, kind, name);
    chart.text(x + 16, chart.bottom() + 56, "soft", name);
    x += 34 + static_cast<double>(std::string_view(name).size()) * kCharacter;
  };
  for (const Class& of : kClasses) legend(of.key, of.name);
  if (waits) legend("data wait", "pale: waiting");
  legend("rest", "the rest");
  return chart.finish(std::max(chart.width(), x), chart.bottom() + 66, "exposed communication of each point");
}

}  // namespace trivet
