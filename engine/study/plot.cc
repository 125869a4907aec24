#include <algorithm>
#include <array>
#include <cmath>
#include <fmt/format.h>
#include <iterator>

#include "base/svg.h"
#include "engine/study/report.h"

namespace trivet {
namespace {

constexpr double kWidth = 880, kRow = 22, kCharacter = 6.9, kBoldCharacter = 7.8, kTop = 30;

// The rows of the two bar plots: on the left the levels of each varied factor, in columns; on the right the bars.
class PlotRows {
 public:
  PlotRows(const Study& study, const Plan& plan, Canvas& canvas) : plan_(plan), canvas_(canvas) {
    double x = 8;
    for (size_t f = 0; f < study.factors.size(); ++f) {
      const Factor& factor = study.factors[f];
      if (factor.levels.size() < 2) continue;
      double longest = static_cast<double>(shortened(factor.name, kMost).size()) * kBoldCharacter;
      for (const Level& level : factor.levels)
        longest = std::max(longest, static_cast<double>(shortened(level.label, kMost).size()) * kCharacter);
      columns_.push_back({&factor, f, x});
      x += longest + 14;
    }
    left_ = x;
    right_ = std::max(kWidth, left_ + 300) - 70;
  }

  double left() const { return left_; }
  double right() const { return right_; }
  double width() const { return right_ + 70; }
  double y_of(size_t point) const { return kTop + static_cast<double>(point) * kRow; }
  double bottom() const { return y_of(plan_.points.size()); }

  void draw(double scale_end, const std::string& unit) {
    for (const Column& column : columns_) {
      canvas_.text(column.x, kTop - 10, "head soft", shortened(column.factor->name, kMost));
      for (size_t i = 0; i < plan_.points.size(); ++i)
        canvas_.text(column.x, y_of(i) + 15, "",
                     shortened(column.factor->levels[plan_.points[i].choice[column.index]].label, kMost));
    }
    const double step = round_step(scale_end, 8);
    for (int n = 0; n * step <= scale_end * (1 + 1e-9); ++n) {
      const double x = left_ + n * step / scale_end * (right_ - left_);
      canvas_.line(x, kTop - 2, x, bottom() + 3, n == 0 ? "axis" : "grid");
      canvas_.text(x, bottom() + 17, "soft mid", fmt::format("{:g}", n * step));
    }
    canvas_.text((left_ + right_) / 2, bottom() + 34, "soft mid", unit);
  }

 private:
  static constexpr size_t kMost = 22;
  struct Column {
    const Factor* factor;
    size_t index;
    double x;
  };
  const Plan& plan_;
  Canvas& canvas_;
  std::vector<Column> columns_;
  double left_ = 0, right_ = 0;
};

std::string direction(const Study& study) { return is_better_high(study.metric) ? "more is better" : "less is better"; }

}  // namespace

std::string ratio_plot(const Study& study, const Plan& plan, const Summary& summary) {
  Canvas canvas;
  PlotRows rows(study, plan, canvas);
  const bool ratios =
      std::ranges::any_of(summary.points, [&](const PointSummary& point) { return point.ratio(study.metric); });
  const auto estimate_of = [&](size_t i) -> std::optional<Estimate> {
    const PointSummary& point = summary.points[i];
    if (const Estimate* ratio = point.ratio(study.metric)) return *ratio;
    if (ratios || !point.adjusted) return {};
    return Estimate{.rounds = 1, .value = *point.adjusted, .low = *point.adjusted, .high = *point.adjusted};
  };
  double end = ratios ? 1.1 : 0, largest = 0;
  for (size_t i = 0; i < plan.points.size(); ++i)
    if (const auto estimate = estimate_of(i)) largest = std::max(largest, estimate->value);
  // An interval of two or three rounds may be of any width.
  for (size_t i = 0; i < plan.points.size(); ++i)
    if (const auto estimate = estimate_of(i)) end = std::max(end, std::min(estimate->high, 1.5 * largest) * 1.04);
  if (!(end > 0)) end = 1;
  std::string conditions;
  for (const Factor& factor : study.factors)
    if (factor.condition) conditions += (conditions.empty() ? " with the same " : ", ") + factor.name;
  rows.draw(
      end, ratios ? fmt::format("{} over the baseline's{}; {}", metric_name(study.metric), conditions, direction(study))
                  : fmt::format("{}; {}", study.metric, direction(study)));
  const double scale = (rows.right() - rows.left()) / end;
  if (ratios && summary.resolution) {
    const double seen = 1 + summary.resolution->effect(), from = rows.left() + scale / seen;
    canvas.bar(from, kTop - 2, std::min(rows.left() + scale * seen, rows.right()) - from, rows.bottom() - kTop + 4,
               "rest", "effects that this study does not see");
  }
  for (size_t i = 0; i < plan.points.size(); ++i) {
    const double y = rows.y_of(i), middle = y + kRow / 2;
    const auto estimate = estimate_of(i);
    if (!estimate) {
      canvas.text(rows.left() + 6, y + 15, "soft",
                  !summary.points[i].failure.empty() ? "failed"
                  : summary.points[i].done > 0       ? "no baseline to compare with"
                                                     : "not run");
      continue;
    }
    const std::string value = ratios ? ratio_text(estimate->value) : metric_text(study.metric, estimate->value);
    const bool best = summary.may_be_best(i);
    const char* kind = best ? "bar best" : summary.points[i].baseline ? "bar base" : "bar";
    canvas.bar(rows.left(), y + 4, estimate->value * scale, kRow - 8, kind,
               fmt::format("{}, 95 %: {} to {} in {}", value, ratio_text(estimate->low), ratio_text(estimate->high),
                           counted(estimate->rounds, "round")));
    const double from = rows.left() + estimate->low * scale, to = rows.left() + std::min(estimate->high, end) * scale;
    if (estimate->has_interval() && estimate->high > estimate->low)
      canvas.put(
          "<path class=\"whisker\" d=\"M{0:.1f} {2:.1f}V{3:.1f}M{0:.1f} {4:.1f}H{1:.1f}M{1:.1f} {2:.1f}V{3:.1f}\"/>",
          from, to, middle - 4, middle + 4, middle);
    canvas.text(rows.width() - 8, y + 15, best ? "end head" : "end", value);
  }
  if (ratios) canvas.line(rows.left() + scale, kTop - 6, rows.left() + scale, rows.bottom() + 3, "one");
  return canvas.finish(rows.width(), rows.bottom() + 42, "ratio of each point to the baseline");
}

std::string exposed_plot(const Study& study, const Plan& plan, const Summary& summary) {
  struct Class {
    const char *key, *name;
  };
  constexpr std::array<Class, 3> kClasses{
      {{"tensor", "tensor-parallel"}, {"pipeline", "pipeline"}, {"data", "data-parallel"}}};
  Canvas canvas;
  PlotRows rows(study, plan, canvas);
  double end = 0;
  bool any = false, waits = false;
  for (const PointSummary& point : summary.points) {
    end = std::max(end, point.median("step_seconds").value_or(0) * 1e3);
    for (const Class& of : kClasses) {
      any |= point.exposed(of.key).has_value();
      waits |= point.wait(of.key).value_or(0) > 0;
    }
  }
  if (!any || !(end > 0)) return "";
  end *= 1.02;
  rows.draw(end, "milliseconds of a step; an average rank");
  const double scale = (rows.right() - rows.left()) / end;
  for (size_t i = 0; i < plan.points.size(); ++i) {
    const PointSummary& point = summary.points[i];
    const auto step = point.median("step_seconds");
    const double y = rows.y_of(i);
    if (!step) {
      canvas.text(rows.left() + 6, y + 15, "soft", point.failure.empty() ? "not run" : "failed");
      continue;
    }
    double x = rows.left(), exposed = 0;
    const auto part = [&](double fraction, const std::string& kind, const std::string& what) {
      if (!(fraction > 0)) return;
      canvas.bar(x, y + 4, fraction * *step * 1e3 * scale, kRow - 8, kind.c_str(),
                 fmt::format("{}: {:.4g} ms, {}", what, fraction * *step * 1e3, percent_text(fraction)));
      x += fraction * *step * 1e3 * scale;
    };
    for (const Class& of : kClasses) {
      const double share = point.exposed(of.key).value_or(0);
      part(share, of.key, fmt::format("exposed {} communication", of.name));
      exposed += share;
      part(point.wait(of.key).value_or(0), std::string(of.key) + " wait",
           fmt::format("{} communication, waiting for a peer", of.name));
    }
    const double full = rows.left() + *step * 1e3 * scale;
    canvas.bar(x, y + 4, full - x, kRow - 8, "rest",
               fmt::format("the rest of the step, which is {:.4g} ms", *step * 1e3));
    canvas.text(rows.width() - 8, y + 15, "end", percent_text(exposed));
  }
  double x = rows.left();
  const auto legend = [&](const char* kind, const char* name) {
    canvas.put("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"11\" height=\"11\" class=\"{}\"/>", x, rows.bottom() + 46,
               kind);
    canvas.text(x + 16, rows.bottom() + 56, "soft", name);
    x += 34 + static_cast<double>(std::string_view(name).size()) * kCharacter;
  };
  for (const Class& of : kClasses) legend(of.key, of.name);
  if (waits) legend("data wait", "pale: waiting");
  legend("rest", "the rest");
  return canvas.finish(std::max(rows.width(), x), rows.bottom() + 66, "exposed communication of each point");
}

std::string effects_plot(const Study& study, const Plan& plan, const Summary& summary) {
  constexpr double kHeight = 150, kLevel = 74, kLeft = 46, kPanelGap = 26, kPanelTop = 50, kBelow = 40;
  double low = 1, high = 1;
  for (const Conclusion& conclusion : summary.conclusions)
    for (const auto& levels : conclusion.effects)
      for (const Effect& effect : levels)
        if (effect.contexts > 0) low = std::min(low, effect.ratio.low), high = std::max(high, effect.ratio.high);
  high = std::min(high, 4.);  // intervals of two or three rounds may be of any width
  const double pad = std::max(0.02, (high - low) * 0.08);
  low -= pad, high += pad;
  const double step = round_step(high - low, 5);

  Canvas canvas;
  double x = kLeft, top = kPanelTop, widest = 0;
  const auto panel = [&](const Conclusion& conclusion, size_t f) {
    const Factor& factor = study.factors[f];
    const std::vector<Effect>& effects = conclusion.effects[f];
    const double width = static_cast<double>(effects.size()) * kLevel;
    if (x > kLeft && x + width > kWidth) x = kLeft, top += kPanelTop + kHeight + kBelow;
    const auto y_of = [&](double value) { return top + (high - std::min(value, high)) / (high - low) * kHeight; };
    const auto x_of = [&](size_t level) { return x + (static_cast<double>(level) + 0.5) * kLevel; };
    canvas.text(x, top - 14, "head", shortened(factor.name, static_cast<size_t>(width / kBoldCharacter)));
    canvas.text(x, top - 30, "soft",
                shortened(describe_conditions(study, plan.points[conclusion.points[0]].choice),
                          static_cast<size_t>(width / kCharacter)));
    for (double tick = std::ceil(low / step) * step; tick <= high; tick += step) {
      canvas.line(x, y_of(tick), x + width, y_of(tick), "grid");
      if (x == kLeft) canvas.text(x - 6, y_of(tick) + 4, "soft end", fmt::format("{:.3g}", tick));
    }
    canvas.line(x, y_of(1), x + width, y_of(1), "one");
    for (size_t level = 0; level < effects.size(); ++level) {
      const Effect& effect = effects[level];
      canvas.text(x_of(level), top + kHeight + 18, "soft mid", shortened(factor.levels[level].label, 10));
      if (effect.contexts == 0 && level != factor.baseline) continue;
      const Estimate& ratio = effect.ratio;
      if (ratio.high > ratio.low) canvas.line(x_of(level), y_of(ratio.low), x_of(level), y_of(ratio.high), "range");
      canvas.put("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4.5\" class=\"dot{}\"><title>{}</title></circle>",
                 x_of(level), y_of(ratio.value), level == factor.baseline ? " base" : "",
                 escaped(fmt::format("{}: {}, {} in {} of the others", factor.levels[level].label, estimate_text(ratio),
                                     word_of(effect.verdict), counted(effect.contexts, "setting"))));
    }
    x += width + kPanelGap;
    widest = std::max(widest, x);
  };
  for (const Conclusion& conclusion : summary.conclusions)
    for (size_t f = 0; f < study.factors.size(); ++f)
      if (!conclusion.effects[f].empty()) panel(conclusion, f);
  return canvas.finish(std::max(widest, 300.), top + kHeight + kBelow, "main effects of the factors");
}

}  // namespace trivet
