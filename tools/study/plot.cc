#include <algorithm>
#include <array>
#include <cmath>
#include <fmt/format.h>
#include <iterator>
#include <map>

#include "base/check.h"
#include "base/statistics.h"
#include "base/svg.h"
#include "tools/study/report.h"

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

// Panels over the levels of a factor, side by side, and below each other where a row is full.
class LevelPanels {
 public:
  LevelPanels(Canvas& canvas, double low, double high) : canvas_(canvas), low_(low), high_(high) {}

  // The next panel: its titles and axes.
  void begin(const Factor& factor, const std::string& conditions) {
    x_ = next_;
    width_ = static_cast<double>(factor.levels.size()) * kLevel;
    if (x_ > kLeft && x_ + width_ > kWidth) x_ = kLeft, top_ += kPanelTop + kHeight + kBelow;
    next_ = x_ + width_ + kPanelGap;
    widest_ = std::max(widest_, next_);
    canvas_.text(x_, top_ - 14, "head", shortened(factor.name, static_cast<size_t>(width_ / kBoldCharacter)));
    canvas_.text(x_, top_ - 30, "soft", shortened(conditions, static_cast<size_t>(width_ / kCharacter)));
    const double step = round_step(high_ - low_, 5);
    for (double tick = std::ceil(low_ / step) * step; tick <= high_; tick += step) {
      canvas_.line(x_, y_of(tick), x_ + width_, y_of(tick), "grid");
      if (x_ == kLeft) canvas_.text(x_ - 6, y_of(tick) + 4, "soft end", fmt::format("{:.3g}", tick + 0.));  // no -0
    }
    for (size_t level = 0; level < factor.levels.size(); ++level)
      canvas_.text(x_of(static_cast<double>(level)), top_ + kHeight + 18, "soft mid",
                   shortened(factor.levels[level].label, 10));
  }
  double x_of(double level) const { return x_ + (level + 0.5) * kLevel; }
  double y_of(double value) const { return top_ + (high_ - std::min(value, high_)) / (high_ - low_) * kHeight; }
  void line_at(double value) { canvas_.line(x_, y_of(value), x_ + width_, y_of(value), "one"); }
  void dot(double level, double value, const std::string& classes, const std::string& title) {
    canvas_.put("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4.5\" class=\"dot {}\"><title>{}</title></circle>",
                x_of(level), y_of(value), classes, escaped(title));
  }
  void range(double level, double low, double high, const char* classes) {
    if (high > low) canvas_.line(x_of(level), y_of(low), x_of(level), y_of(high), classes);
  }
  double left() const { return kLeft; }
  double width() const { return std::max(widest_, 300.); }
  double bottom() const { return top_ + kHeight + kBelow; }

 private:
  static constexpr double kHeight = 150, kLevel = 74, kLeft = 46, kPanelGap = 26, kPanelTop = 50, kBelow = 40;
  Canvas& canvas_;
  const double low_, high_;
  double x_ = 0, next_ = kLeft, top_ = kPanelTop, width_ = 0, widest_ = 0;
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
  canvas.text(8, rows.bottom() + 52, "soft",
              "green: best, or tied for best; whiskers: 95 %; grey band: effects too small to be found in four of "
              "five such studies");
  return canvas.finish(rows.width(), rows.bottom() + 62, "ratio of each point to the baseline");
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
  double low = 1, high = 1;
  for (const Conclusion& conclusion : summary.conclusions)
    for (const auto& levels : conclusion.effects)
      for (const Effect& effect : levels)
        if (effect.contexts > 0) low = std::min(low, effect.ratio.low), high = std::max(high, effect.ratio.high);
  high = std::min(high, 4.);  // intervals of two or three rounds may be of any width
  const double pad = std::max(0.02, (high - low) * 0.08);

  Canvas canvas;
  LevelPanels panels(canvas, low - pad, high + pad);
  for (const Conclusion& conclusion : summary.conclusions)
    for (size_t f = 0; f < study.factors.size(); ++f) {
      const Factor& factor = study.factors[f];
      const std::vector<Effect>& effects = conclusion.effects[f];
      if (effects.empty()) continue;
      panels.begin(factor, describe_conditions(study, plan.points[conclusion.points[0]].choice));
      panels.line_at(1);
      for (size_t level = 0; level < effects.size(); ++level) {
        const auto& [contexts, ratio, min, max, corrected_p, verdict] = effects[level];
        if (contexts == 0 && level != factor.baseline) continue;
        panels.range(static_cast<double>(level), ratio.low, ratio.high, "range");
        panels.dot(static_cast<double>(level), ratio.value, level == factor.baseline ? "base" : "",
                   fmt::format("{}: {}, {} in {} of the others", factor.levels[level].label, estimate_text(ratio),
                               word_of(verdict), counted(contexts, "setting")));
      }
    }
  return canvas.finish(panels.width(), panels.bottom(), "main effects of the factors");
}

std::string bucket_plot(const Study& study, const Plan& plan, const Summary& summary) {
  size_t f = 0;
  while (f < study.factors.size() && !study.factors[f].sets("parallel.bucket_size")) ++f;
  double high = 0;
  for (const PointSummary& point : summary.points)
    if (const Sample* exposed = point.find("data_exposed_seconds")) high = std::max(high, 1e3 * exposed->max);
  if (f == study.factors.size() || study.factors[f].levels.size() < 2 || !(high > 0)) return "";

  Canvas canvas;
  LevelPanels panels(canvas, 0, 1.06 * high);
  Study without = study;  // the factor: to name series by the others
  without.factors[f].levels.resize(1);
  std::vector<std::string> names;
  for (const Conclusion& conclusion : summary.conclusions) {
    std::map<Choice, std::vector<size_t>> series;  // by the levels of the other factors
    for (const size_t i : conclusion.points) {
      Choice others = plan.points[i].choice;
      others[f] = 0;
      if (summary.points[i].find("data_exposed_seconds")) series[others].push_back(i);
    }
    panels.begin(study.factors[f], describe_conditions(study, plan.points[conclusion.points[0]].choice));
    for (const auto& [others, points] : series) {
      const std::string name = describe_chosen(without, others);
      const auto found = std::ranges::find(names, name);
      const std::string color = fmt::format("s{}", (found - names.begin()) % 6);
      if (found == names.end()) names.push_back(name);
      for (const size_t i : points) {
        const auto level = static_cast<double>(plan.points[i].choice[f]);
        const Sample& exposed = *summary.points[i].find("data_exposed_seconds");
        panels.range(level, 1e3 * exposed.min, 1e3 * exposed.max, ("line " + color).c_str());
        panels.dot(
            level, 1e3 * exposed.median, color,
            fmt::format("{}: {:.4g} ms ({:.4g} to {:.4g} in {})", describe_choice(study, plan.points[i].choice),
                        1e3 * exposed.median, 1e3 * exposed.min, 1e3 * exposed.max, counted(exposed.n, "round")));
      }
    }
  }
  double y = panels.bottom() + 8;
  canvas.text(panels.left(), y, "soft", "milliseconds of a step with data-parallel communication exposed");
  for (size_t i = 0; i < names.size(); ++i) {
    y += 20;
    canvas.put("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\" class=\"dot s{}\"/>", panels.left() + 6, y - 4, i % 6);
    canvas.text(panels.left() + 18, y, "", names[i].empty() ? "measured" : names[i]);
  }
  return canvas.finish(std::max(panels.width(), 480.), y + 16, "exposed data-parallel communication by bucket size");
}

}  // namespace trivet
