// The picture of scale curves (scale.h).
#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <limits>
#include <set>

#include "base/svg.h"
#include "tools/plan/scale.h"

namespace trivet {
namespace {

constexpr double kLeft = 70, kWidth = 420, kHeight = 240, kGap = 90, kTop = 40;

// A panel over the ranks on a logarithmic scale. low, high: of its values, on a logarithmic scale where `logarithmic`.
class Panel {
 public:
  Panel(Canvas& canvas, double left, const std::string& title, std::pair<double, double> ranks, double low, double high,
        bool logarithmic)
      : canvas_(canvas), left_(left), ranks_(ranks), low_(low), high_(high), logarithmic_(logarithmic) {
    canvas.text(left, kTop - 14, "head", title);
    canvas.line(left, kTop + kHeight, left + kWidth, kTop + kHeight, "axis");
  }
  double x_of(double ranks) const {
    return left_ + kWidth * share(std::log2(ranks), std::log2(ranks_.first), std::log2(ranks_.second));
  }
  double y_of(double value) const {
    return kTop + kHeight * (1 - (logarithmic_ ? share(std::log(value), std::log(low_), std::log(high_))
                                               : share(value, low_, high_)));
  }
  void grid(double value, const std::string& text) const {
    canvas_.line(left_, y_of(value), left_ + kWidth, y_of(value), "grid");
    canvas_.text(left_ - 8, y_of(value) + 4, "soft end", text);
  }
  void ranks_at(double ranks) const {
    canvas_.text(x_of(ranks), kTop + kHeight + 18, "soft mid", fmt::format("{:g}", ranks));
  }
  void path(const std::vector<std::pair<double, double>>& points, const std::string& classes) const {
    std::string d;
    for (const auto& [ranks, value] : points)
      d += fmt::format("{}{:.1f} {:.1f}", d.empty() ? 'M' : 'L', x_of(ranks), y_of(value));
    canvas_.put("<path class=\"{}\" d=\"{}\"/>", classes, d);
  }
  void dot(double ranks, double value, const std::string& classes, const std::string& title) const {
    canvas_.put("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4.5\" class=\"dot {}\"><title>{}</title></circle>",
                x_of(ranks), y_of(value), classes, escaped(title));
  }

 private:
  static double share(double x, double low, double high) { return high > low ? (x - low) / (high - low) : 0.5; }
  Canvas& canvas_;
  const double left_;
  const std::pair<double, double> ranks_;
  const double low_, high_;
  const bool logarithmic_;
};

using Values = std::vector<std::pair<double, double>>;  // ranks, value

// What is drawn of a curve.
struct Drawn {
  std::string name, remark;
  Values speeds = {}, ideal = {}, efficiencies = {};
};

Drawn drawn(const ScaleCurve& curve) {
  Drawn d{.name = std::string(word_of(curve.scaling)), .remark = knee_text(curve)};
  for (const ScalePoint& point : curve.points) {
    if (!point.refusal.empty()) continue;
    const double speed = point.prediction.step.tokens_per_second;
    d.speeds.emplace_back(point.ranks, speed);
    d.ideal.emplace_back(point.ranks, speed / point.efficiency);
    d.efficiencies.emplace_back(point.ranks, point.efficiency);
  }
  return d;
}

// The smallest and the largest value.
std::pair<double, double> range_of(const std::vector<Drawn>& all, Values Drawn::*which,
                                   double std::pair<double, double>::*of) {
  std::pair<double, double> range{std::numeric_limits<double>::infinity(), 0};
  for (const Drawn& each : all)
    for (const auto& point : each.*which) range = {std::min(range.first, point.*of), std::max(range.second, point.*of)};
  return range;
}

void draw_points(const Panel& panel, const Drawn& curve, Values Drawn::*which, const std::string& series,
                 const std::string& unit, double scale) {
  panel.path(curve.*which, "line " + series);
  for (const auto& [ranks, value] : curve.*which)
    panel.dot(ranks, value, series, fmt::format("{}, {} ranks: {:.4g} {}", curve.name, ranks, scale * value, unit));
}

}  // namespace

std::string picture_of(const std::vector<ScaleCurve>& curves) {
  using Point = std::pair<double, double>;
  std::vector<Drawn> all;
  for (const ScaleCurve& curve : curves) all.push_back(drawn(curve));
  const Point ranks = range_of(all, &Drawn::speeds, &Point::first);
  if (ranks.second == 0) throw ConfigError("--picture: no point of the curves is legal, so there is nothing to draw");
  const double low = range_of(all, &Drawn::speeds, &Point::second).first;
  const double high = std::max(range_of(all, &Drawn::speeds, &Point::second).second,
                               range_of(all, &Drawn::ideal, &Point::second).second);
  const double top = range_of(all, &Drawn::efficiencies, &Point::second).second;
  Canvas canvas;
  const Panel speeds(canvas, kLeft, "tokens/s", ranks, low, high, true);
  const Panel efficiencies(canvas, kLeft + kWidth + kGap, "efficiency", ranks, 0, top, false);
  for (double power = std::pow(10, std::floor(std::log10(low))); power <= high; power *= 10)
    for (const double digit : {1., 2., 5.})
      if (const double tick = digit * power; tick >= low && tick <= high)
        speeds.grid(tick, fmt::format("{:.3g}", tick));
  for (int tenths = 0; tenths <= 10 * top; tenths += 2) efficiencies.grid(tenths / 10., percent_text(tenths / 10.));
  efficiencies.path({{ranks.first, ScaleCurve::kKnee}, {ranks.second, ScaleCurve::kKnee}}, "line one");
  std::set<double> marked;
  for (size_t c = 0; c < all.size(); ++c) {
    const std::string series = fmt::format("s{}", c);
    speeds.path(all[c].ideal, "line one");
    draw_points(speeds, all[c], &Drawn::speeds, series, "tokens/s", 1);
    draw_points(efficiencies, all[c], &Drawn::efficiencies, series, "%", 100);
    for (const auto& [n, speed] : all[c].speeds) marked.insert(n);
    const double y = kTop + kHeight + 42 + 18 * static_cast<double>(c);
    canvas.put("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4.5\" class=\"dot {}\"/>", kLeft, y - 4, series);
    canvas.text(kLeft + 10, y, "soft", fmt::format("{}: {}", all[c].name, all[c].remark));
  }
  for (const double n : marked) speeds.ranks_at(n), efficiencies.ranks_at(n);
  return canvas.finish(kLeft + 2 * kWidth + kGap + 40, kTop + kHeight + 50 + 18 * static_cast<double>(all.size()),
                       "scaling over ranks");
}

}  // namespace trivet
