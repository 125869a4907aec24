// The picture of scaling curves (scale.h).
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

using Values = std::vector<std::pair<double, double>>;  // log2 of the ranks, value

// A curve's points to draw.
struct Drawn {
  std::string name, remark;
  Values speeds = {}, ideal = {}, efficiencies = {};
};

Drawn drawn(const ScaleCurve& curve) {
  Drawn d{.name = std::string(word_of(curve.scaling)), .remark = knee_text(curve)};
  for (const ScalePoint& point : curve.points) {
    if (!point.refusal.empty()) continue;
    const double speed = point.prediction.step.tokens_per_second;
    const double along = std::log2(point.ranks);
    d.speeds.emplace_back(along, speed);
    d.ideal.emplace_back(along, speed / point.efficiency);
    d.efficiencies.emplace_back(along, point.efficiency);
  }
  return d;
}

// The smallest and the largest value over all curves.
std::pair<double, double> range_of(const std::vector<Drawn>& all, Values Drawn::*which,
                                   double std::pair<double, double>::*of) {
  std::pair<double, double> range{std::numeric_limits<double>::infinity(), 0};
  for (const Drawn& each : all)
    for (const auto& point : each.*which) range = {std::min(range.first, point.*of), std::max(range.second, point.*of)};
  return range;
}

void draw_points(const Chart& chart, const Drawn& curve, Values Drawn::*which, const std::string& series,
                 const std::string& unit, double scale) {
  chart.draw_curve(curve.*which, series);
  for (const auto& [along, value] : curve.*which)
    chart.canvas.dot(chart.x_of(along), chart.y_of(value), series,
                     fmt::format("{}, {:.0f} ranks: {:.4g} {}", curve.name, std::exp2(along), scale * value, unit));
}

}  // namespace

std::string picture_of(const std::vector<ScaleCurve>& curves) {
  using Point = std::pair<double, double>;
  std::vector<Drawn> all;
  for (const ScaleCurve& curve : curves) all.push_back(drawn(curve));
  const Point ranks = range_of(all, &Drawn::speeds, &Point::first);
  if (ranks.first > ranks.second)
    throw ConfigError("--picture: no point of the curves is valid, so there is nothing to draw");
  const double low = range_of(all, &Drawn::speeds, &Point::second).first;
  const double high = std::max(range_of(all, &Drawn::speeds, &Point::second).second,
                               range_of(all, &Drawn::ideal, &Point::second).second);
  const double top = range_of(all, &Drawn::efficiencies, &Point::second).second;
  Canvas canvas;
  Chart speeds{canvas, kLeft, kTop, kWidth, kHeight, ranks.first, ranks.second, low, high, true};
  Chart efficiencies{canvas, kLeft + kWidth + kGap, kTop, kWidth, kHeight, ranks.first, ranks.second, 0, top};
  speeds.draw_axes("tokens/s", false);
  efficiencies.draw_axes("efficiency", false);
  efficiencies.draw_curve({{ranks.first, ScaleCurve::kKnee}, {ranks.second, ScaleCurve::kKnee}}, "one");
  std::set<double> marked;
  for (size_t c = 0; c < all.size(); ++c) {
    const std::string series = fmt::format("s{}", c);
    speeds.draw_curve(all[c].ideal, "one");
    draw_points(speeds, all[c], &Drawn::speeds, series, "tokens/s", 1);
    draw_points(efficiencies, all[c], &Drawn::efficiencies, series, "%", 100);
    for (const auto& [n, speed] : all[c].speeds) marked.insert(n);
    const double y = kTop + kHeight + 42 + 18 * static_cast<double>(c);
    canvas.dot(kLeft, y - 4, series);
    canvas.text(kLeft + 10, y, "soft", fmt::format("{}: {}", all[c].name, all[c].remark));
  }
  for (const double along : marked)
    for (const Chart& chart : {speeds, efficiencies})
      canvas.text(chart.x_of(along), kTop + kHeight + 18, "soft mid", fmt::format("{:.0f}", std::exp2(along)));
  return canvas.finish(kLeft + 2 * kWidth + kGap + 40, kTop + kHeight + 50 + 18 * static_cast<double>(all.size()),
                       "scaling over ranks");
}

}  // namespace trivet
