#include "tools/plan/scale.h"

#include <algorithm>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace trivet {
namespace {

// The non-compute parts of a step, as fractions of the step.
std::vector<std::pair<std::string, double>> overheads_of(const StepStats& stats) {
  std::vector<std::pair<std::string, double>> parts;
  for (size_t k = 0; k < kCommClasses.size(); ++k)
    parts.emplace_back(fmt::format("exposed {} communication", kCommClasses[k]), stats.of_window(stats.exposed[k]));
  for (size_t k = 0; k < kCommClasses.size(); ++k)
    if (comm_of(kCommClasses[k]) != comm_of("pipeline"))
      parts.emplace_back(fmt::format("waiting for {} peers", kCommClasses[k]), stats.of_window(stats.wait[k]));
  parts.emplace_back("the bubble", stats.bubble_fraction());
  parts.emplace_back("the optimizer", stats.of_window(stats.optimizer));
  parts.emplace_back("the host", stats.of_window(stats.host));
  return parts;
}

ScalePoint point_of(const LoadedConfig& run, int ranks, const System& system, int64_t global_batch) {
  ScalePoint point{.ranks = ranks, .global_batch = global_batch};
  try {
    const std::string set = fmt::format("batch.global_batch_size={}", global_batch);
    RunPlan planned = plan_run(with_sets(run, std::vector{set}), ranks, system);
    point.prediction = std::move(planned.prediction);
    point.choice = std::move(planned.choice);
  } catch (const ConfigError& error) {
    point.refusal = error.what();
  }
  return point;
}

}  // namespace

void find_knee(ScaleCurve& curve) {
  for (size_t i = 0; i < curve.points.size(); ++i) {
    ScalePoint& point = curve.points[i];
    if (!point.refusal.empty()) continue;
    const auto per_rank = [](const ScalePoint& p) { return p.prediction.step.tokens_per_second / p.ranks; };
    if (!curve.first) curve.first = i;
    point.efficiency = per_rank(point) / per_rank(curve.points[*curve.first]);
    if (curve.beyond) continue;
    (point.efficiency >= ScaleCurve::kKnee ? curve.knee : curve.beyond) = i;
  }
}

ScaleCurve scale_curve(const LoadedConfig& run, const std::vector<int>& ranks, const System& system, Scaling scaling) {
  ScaleCurve curve{.scaling = scaling};
  auto batch = run.config.batch.global_batch_size;
  if (!batch) batch = legal_run(run, ranks.front()).loaded.config.batch.global_batch_size;
  for (const int n : ranks) {
    const int64_t grown = *batch * n;
    if (scaling == Scaling::strong) curve.points.push_back(point_of(run, n, system, *batch));
    else if (grown % ranks.front() == 0) curve.points.push_back(point_of(run, n, system, grown / ranks.front()));
    else
      curve.points.push_back(
          {.ranks = n,
           .refusal = fmt::format("a global batch of {} on {} ranks is fractional on {}", *batch, ranks.front(), n)});
  }
  find_knee(curve);
  return curve;
}

std::string knee_text(const ScaleCurve& curve) {
  if (!curve.first) return "no point is valid";
  size_t last = *curve.first;
  for (size_t i = 0; i < curve.points.size(); ++i)
    if (curve.points[i].refusal.empty()) last = i;
  const ScalePoint& knee = curve.points[*curve.knee];
  const ScalePoint& after = curve.points[curve.beyond.value_or(last)];
  if (&after == &curve.points[*curve.first]) return "a single point has no knee";
  const auto before_parts = overheads_of(curve.points[*curve.first].prediction.step.stats),
             parts = overheads_of(after.prediction.step.stats);
  size_t most = 0;
  for (size_t i = 0; i < parts.size(); ++i)
    if (parts[i].second - before_parts[i].second > parts[most].second - before_parts[most].second) most = i;
  constexpr double kGrows = 0.001;  // fraction of the step; smaller growth is ignored
  const std::string grown =
      parts[most].second > before_parts[most].second + kGrows
          ? fmt::format("mainly due to {}, which grew from {} to {} of the step", parts[most].first,
                        percent_text(before_parts[most].second), percent_text(parts[most].second))
          : std::string("and no overhead is a larger part of the step");
  if (!curve.beyond)
    return fmt::format("no knee up to {}: efficiency {}, {}", counted(after.ranks, "rank"),
                       percent_text(after.efficiency), grown);
  return fmt::format("knee at {}: efficiency {}; {} on {}, {}", counted(knee.ranks, "rank"),
                     percent_text(knee.efficiency), percent_text(after.efficiency), after.ranks, grown);
}

std::vector<TextBlock> describe(const ScaleCurve& curve) {
  TextBlock table{.title = fmt::format("{} scaling", word_of(curve.scaling))};
  for (const char* name : {"ranks", "batch", "step", "tokens/s", "MFU", "exposed", "bubble", "efficiency"})
    table.column(name, 'r');
  TextBlock remarks;
  for (const ScalePoint& point : curve.points) {
    if (!point.refusal.empty()) {
      remarks.rows.push_back({fmt::format("  {} ranks", point.ranks), point.refusal});
      continue;
    }
    const StepReport& step = point.prediction.step;
    table.rows.push_back({fmt::format("{}", point.ranks), fmt::format("{}", point.global_batch),
                          fmt::format("{:.4g} s", step.step_seconds), fmt::format("{:.4g}", step.tokens_per_second),
                          percent_text(step.mfu),
                          percent_text(step.stats.of_window(StepStats::sum(step.stats.exposed))),
                          percent_text(step.bubble_fraction), percent_text(point.efficiency)});
    if (!point.prediction.fits())
      remarks.rows.push_back({fmt::format("  {} ranks", point.ranks), "does not fit in memory"});
    if (!point.choice.empty()) remarks.rows.push_back({fmt::format("  {} ranks", point.ranks), point.choice});
  }
  remarks.rows.push_back({"  knee", knee_text(curve)});
  return {table, remarks};
}

nlohmann::ordered_json json_of(const ScaleCurve& curve) {
  nlohmann::ordered_json json{{"scaling", std::string(word_of(curve.scaling))}};
  for (const ScalePoint& point : curve.points) {
    nlohmann::ordered_json one{{"ranks", point.ranks}};
    const StepReport& step = point.prediction.step;
    if (!point.refusal.empty()) one["refusal"] = point.refusal;
    else
      one.update({{"global_batch_size", point.global_batch},
                  {"step_seconds", step.step_seconds},
                  {"tokens_per_second", step.tokens_per_second},
                  {"mfu", step.mfu},
                  {"exposed_fraction", step.stats.of_window(StepStats::sum(step.stats.exposed))},
                  {"bubble_fraction", step.bubble_fraction},
                  {"efficiency", point.efficiency},
                  {"fits", point.prediction.fits()}});
    json["points"].push_back(std::move(one));
  }
  if (curve.knee && curve.beyond) json["knee_ranks"] = curve.points[*curve.knee].ranks;
  json["knee"] = knee_text(curve);
  return json;
}

}  // namespace trivet
