#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <numeric>
#include <set>

#include "base/svg.h"
#include "tools/study/scaling.h"

namespace trivet {
namespace {

// The runs' compute budgets. Those within a tenth of the smallest among them count as one budget, their mean.
std::vector<double> budgets_of(std::span<const ScalingRun> runs) {
  std::multiset<double> flops;
  for (const ScalingRun& run : runs) flops.insert(run.flops());
  std::vector<double> budgets;
  for (auto first = flops.begin(), last = first; first != flops.end(); first = last) {
    last = flops.upper_bound(1.1 * *first);
    budgets.push_back(std::reduce(first, last) / static_cast<double>(std::distance(first, last)));
  }
  return budgets;
}

std::string range_text(std::pair<double, double> range) {
  return fmt::format("{:.4g} to {:.4g}", range.first, range.second);
}

}  // namespace

TextBlock law_table(std::span<const ScalingRun> runs, const ScalingFit& fit) {
  TextBlock table{
      .title = "L(N, D) = E + A / N^alpha + B / D^beta", .rows = {{"", "fit", "95 % interval"}}, .align = "lrl"};
  const double flops = budgets_of(runs).back();
  const std::pair<std::string, std::function<double(const ScalingLaw&)>> numbers[] = {
      {"E", &ScalingLaw::E},
      {"A", &ScalingLaw::A},
      {"alpha", &ScalingLaw::alpha},
      {"B", &ScalingLaw::B},
      {"beta", &ScalingLaw::beta},
      {"best N ~ C^", [](const ScalingLaw& law) { return law.beta / (law.alpha + law.beta); }},
      {fmt::format("best N at C = {:.3g}", flops), [=](const ScalingLaw& law) { return law.best_parameters(flops); }}};
  for (const auto& [name, of] : numbers)
    table.rows.push_back({name, fmt::format("{:.4g}", of(fit.law)), range_text(fit.interval(of))});
  const auto& left = fit.residuals;
  const double squares = std::inner_product(left.begin(), left.end(), left.begin(), 0.0);
  table.rows.push_back({"residual", percent_text(std::sqrt(squares / static_cast<double>(left.size()))),
                        fmt::format("of L, rms of {} runs", left.size())});
  return table;
}

TextBlock prediction_table(std::span<const ScalingRun> runs, const ScalingFit& fit) {
  TextBlock table{.title = "predictions", .align = "lrrrlrr"};
  table.rows.push_back({"run", "N", "D", "predicted", "95 % interval", "measured", "error"});
  for (const ScalingRun& run : runs) {
    if (!run.predicted) continue;
    const auto loss = [&](const ScalingLaw& law) { return law.loss(run.parameters, run.tokens); };
    const bool made = std::isfinite(run.loss);
    table.rows.push_back({run.name, grouped(std::llround(run.parameters)), grouped(std::llround(run.tokens)),
                          fmt::format("{:.4f}", loss(fit.law)), range_text(fit.interval(loss, true)),
                          made ? fmt::format("{:.4f}", run.loss) : "not yet",
                          made ? fmt::format("{:+.2f} %", 100 * (loss(fit.law) / run.loss - 1)) : ""});
  }
  return table;
}

std::string isoflop_picture(std::span<const ScalingRun> runs, const ScalingFit& fit) {
  constexpr double kLeft = 60, kTop = 40, kWidth = 620, kHeight = 330, kMargin = 0.2;
  const std::vector<double> budgets = budgets_of(runs);
  const auto loss_of = [&](double flops, double parameters) {
    return fit.law.loss(parameters, flops / 6 / parameters);
  };
  const auto [smallest, largest] = std::ranges::minmax(runs, {}, &ScalingRun::parameters);
  double low = loss_of(budgets.back(), fit.law.best_parameters(budgets.back())), high = low;
  for (const ScalingRun& run : runs)
    if (std::isfinite(run.loss)) low = std::min(low, run.loss), high = std::max(high, run.loss);
  low *= 0.98, high *= 1.01;
  Canvas canvas;
  Chart chart{canvas,
              kLeft,
              kTop,
              kWidth,
              kHeight,
              std::log10(smallest.parameters) - kMargin,
              std::log10(largest.parameters) + kMargin,
              low,
              high};
  chart.draw_axes("loss over parameters N, at equal FLOPs C = 6 N D", false);
  for (double power = 1e3; power < 1e13; power *= 10)
    for (const double digit : {1, 2, 5})
      if (const double along = std::log10(digit * power); along > chart.first && along < chart.last)
        canvas.text(chart.x_of(along), kTop + kHeight + 18, "soft mid", grouped(std::llround(digit * power)));
  for (size_t i = 0; i < budgets.size(); ++i) {
    const std::string series = fmt::format("s{}", i % 6);
    std::vector<std::pair<double, double>> curve;
    for (double along = chart.first; along <= chart.last; along += 0.01)
      if (const double loss = loss_of(budgets[i], std::pow(10, along)); loss < high) curve.emplace_back(along, loss);
    chart.draw_curve(curve, series);
    for (const ScalingRun& run : runs)
      if (std::isfinite(run.loss) && std::abs(run.flops() / budgets[i] - 1) < 0.1)
        canvas.dot(chart.x_of(std::log10(run.parameters)), chart.y_of(run.loss), series,
                   fmt::format("{}: {:.4f}", run.name, run.loss));
    const double y = kTop + kHeight + 46 + 18 * static_cast<double>(i), best = fit.law.best_parameters(budgets[i]);
    canvas.dot(kLeft, y - 4, series);
    canvas.text(kLeft + 10, y, "soft",
                fmt::format("C = {:.3g}: lowest at N = {:.3g}, D = {:.3g}, L = {:.3f}", budgets[i], best,
                            budgets[i] / 6 / best, loss_of(budgets[i], best)));
  }
  return canvas.finish(kLeft + kWidth + 30, kTop + kHeight + 50 + 18 * static_cast<double>(budgets.size()),
                       "isoFLOP curves of a scaling law");
}

}  // namespace trivet
