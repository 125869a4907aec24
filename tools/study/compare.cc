#include "tools/study/compare.h"

#include <algorithm>
#include <filesystem>
#include <fmt/ranges.h>
#include <iterator>
#include <map>
#include <set>

#include "base/check.h"
#include "engine/config/load.h"
#include "tools/study/report.h"
#include "tools/study/study_file.h"

namespace trivet {
namespace {

// The levels that a row names, with the baseline level for factors added since. Empty if the row names a factor or
// level that is no longer in the study.
std::optional<Choice> choice_of(const Study& study, const RunRow& row) {
  std::map<std::string, std::string> labels(row.levels.begin(), row.levels.end());
  Choice choice;
  for (const Factor& factor : study.factors) {
    const auto label = labels.extract(factor.name);
    const auto level = label ? std::ranges::find(factor.levels, label.mapped(), &Level::label)
                             : factor.levels.begin() + static_cast<std::ptrdiff_t>(factor.baseline);
    if (level == factor.levels.end()) return {};
    choice.push_back(static_cast<size_t>(level - factor.levels.begin()));
  }
  return labels.empty() ? std::optional(choice) : std::nullopt;
}

// "factor=label" for every factor, independent of the factors' order.
std::set<std::string> point_names(const StudyResults& results, size_t point) {
  const std::vector<std::string> labels = labels_of(results.study, results.plan.points[point].choice);
  std::set<std::string> names;
  for (size_t f = 0; f < labels.size(); ++f) names.insert(results.study.factors[f].name + "=" + labels[f]);
  return names;
}

// [point of A]: the matching point of B, i.e. the same run, else the one with the same levels of the same factors.
std::vector<std::optional<size_t>> matches(const StudyResults& a, const StudyResults& b) {
  std::vector<std::optional<size_t>> match(a.plan.points.size());
  std::set<size_t> taken;
  const auto pair_up = [&](const auto& key_of) {
    std::map<decltype(key_of(b, 0)), size_t> of_b;
    for (size_t j = 0; j < b.plan.points.size(); ++j)
      if (!taken.contains(j)) of_b.emplace(key_of(b, j), j);
    for (size_t i = 0; i < match.size(); ++i)
      if (const auto other = of_b.find(key_of(a, i)); !match[i] && other != of_b.end())
        match[i] = other->second, taken.insert(other->second);
  };
  pair_up([](const StudyResults& of, size_t point) { return of.plan.points[point].id; });
  pair_up(point_names);
  return match;
}

// The points in the rows. If a choice was run with several base configurations, the last one counts.
Plan plan_of_rows(const Study& study, const std::vector<RunRow>& rows) {
  std::map<Choice, std::string> ids;
  for (const RunRow& row : rows)
    if (const auto choice = choice_of(study, row)) ids[*choice] = row.point;
  Plan plan;
  for (const auto& [choice, id] : ids) {
    Point& point = plan.points.emplace_back();
    point.choice = choice, point.id = id;
  }
  for (size_t i = 0; i < plan.points.size(); ++i)  // a point without a baseline is its own baseline: no effect
    plan.baselines.push_back(plan.find(study.baseline_of(plan.points[i].choice)).value_or(i));
  return plan;
}

// "key IN_A / IN_B" for each setting that differs between the resolved configurations of a run of each point.
std::set<std::string> differing_settings(const StudyResults& a, size_t i, const StudyResults& b, size_t j) {
  const auto config_of = [](const StudyResults& of, size_t point) {
    const auto run = std::ranges::find(of.rows, of.plan.points[point].id, &RunRow::point);
    return load_untrained(of.folder + "/" + run->folder + "/config.resolved.yaml").config;
  };
  std::set<std::string> texts;
  try {
    for (const auto& [key, in_a, in_b] : differences(config_of(a, i), config_of(b, j)))
      if (key != "train.run_dir") texts.insert(fmt::format("{} {} / {}", key, in_a, in_b));
  } catch (const Error&) {  // a run's folder may be gone, or its keys may come from another version
  }
  return texts;
}

Comparison compare(const LogRatios& a, const LogRatios& b) {
  return {.a = estimate_ratio(a), .b = estimate_ratio(b), .ratio = ratio_of(mean_of_logs(b) - mean_of_logs(a))};
}

std::string measured_text(const char* name, const StudyResults& results) {
  const auto [first, last] = std::ranges::minmax(results.rows, {}, &RunRow::started);
  return fmt::format("{}: {}, {}, measured {} to {}.", name, results.folder,
                     counted(std::ssize(results.plan.points), "point"), first.started, last.started);
}

std::vector<std::string> differences_of(const StudyResults& a, const StudyResults& b) {
  std::vector<std::string> differences;
  for (const std::string_view name : kProvenance) {
    const auto values = [&](const StudyResults& results) {
      std::set<std::string> found;
      for (const RunRow& row : results.rows) found.insert(provenance_value(row.provenance, name));
      return fmt::format("{}", fmt::join(found, ", "));
    };
    const std::string in_a = values(a), in_b = values(b);
    if (name != "load" && in_a != in_b)
      differences.push_back(fmt::format("A / B differ in {}: {} / {}.", name, in_a, in_b));
  }
  if (differences.empty()) differences.emplace_back("The same program on the same machine.");
  return differences;
}

}  // namespace

StudyResults load_results(const std::string& folder) {
  const std::string file = folder + "/study.yaml";
  if (!std::filesystem::exists(file))
    throw ConfigError(fmt::format(
        "{}: does not exist; expected the folder of a finished study (its `out`), with study.yaml and results.jsonl",
        file));
  StudyResults results{.folder = folder, .study = load_study(file), .rows = {}, .plan = {}};
  results.study.out = folder;
  results.rows = read_results(folder + "/results.jsonl");
  results.plan = plan_of_rows(results.study, results.rows);
  if (results.plan.points.empty()) throw ConfigError(folder + "/results.jsonl: has no run of any point of study.yaml");
  // Include every completed round, even if the file has since been changed to request fewer.
  for (const RunRow& row : results.rows) results.study.repeats = std::max(results.study.repeats, row.repeat);
  return results;
}

StudyComparison compare_studies(const StudyResults& a, const StudyResults& b) {
  const std::string& metric = a.study.metric;
  if (metric != b.study.metric)
    throw ConfigError(fmt::format("{}: metric: found {}, but {} has {}; expected the same", b.folder, b.study.metric,
                                  a.folder, metric));
  const Rounds rounds_a(a.study, a.plan, a.rows), rounds_b(b.study, b.plan, b.rows);
  StudyComparison comparison;
  std::vector<std::string> only_a, only_b;
  std::set<std::string> settings;  // settings that differ between A and B
  const std::vector<std::optional<size_t>> match = matches(a, b);
  for (size_t i = 0; i < match.size(); ++i) {
    if (!match[i]) {
      only_a.push_back(describe_choice(a.study, a.plan.points[i].choice));
      continue;
    }
    const size_t j = *match[i];
    if (const LogRatios in_a = rounds_a.log_values(i, metric), in_b = rounds_b.log_values(j, metric);
        !in_a.empty() && !in_b.empty()) {
      ComparedPoint& point = comparison.points.emplace_back();
      point.a = i, point.b = j, point.metric = compare(in_a, in_b);
      point.same_settings = a.plan.points[i].id == b.plan.points[j].id;
      if (!point.same_settings) settings.merge(differing_settings(a, i, b, j));
      const LogRatios effect_a = rounds_a.log_ratios(i, metric), effect_b = rounds_b.log_ratios(j, metric);
      const bool baseline = a.plan.baselines[i] == i || b.plan.baselines[j] == j;
      if (!baseline && !effect_a.empty() && !effect_b.empty()) point.effect = compare(effect_a, effect_b);
    }
  }
  for (size_t j = 0; j < b.plan.points.size(); ++j)
    if (std::ranges::count(match, std::optional(j)) == 0)
      only_b.push_back(describe_choice(b.study, b.plan.points[j].choice));
  if (comparison.points.empty())
    throw ConfigError(fmt::format(
        "{} and {}: no point has finished runs in both; points are compared by the names of their factors and levels",
        a.folder, b.folder));
  std::vector<Judged> metrics, effects;  // those with enough rounds
  const auto add = [](Comparison& one, std::vector<Judged>& to) {
    if (one.ratio.rounds >= kFewestRounds) to.push_back({&one.ratio, &one.corrected_p, &one.verdict});
  };
  for (ComparedPoint& point : comparison.points) {
    add(point.metric, metrics);
    if (point.effect) add(*point.effect, effects);
  }
  judge(a.study, metrics);
  judge(a.study, effects);

  std::vector<std::string>& texts = comparison.texts;
  texts = {measured_text("A", a), measured_text("B", b)};
  std::ranges::copy(differences_of(a, b), std::back_inserter(texts));
  texts.push_back(fmt::format(
      "B / A: {} in B over A, of runs at different times. Effect: a point over its baseline, each measured side by "
      "side, so that the speed of a machine cancels. Verdicts are on B, corrected for {} (Holm).",
      metric_name(metric), counted(std::ssize(comparison.points), "point")));
  if (const auto others = std::ranges::count(comparison.points, false, &ComparedPoint::same_settings); others > 0)
    texts.push_back(fmt::format("* {} other settings in A than in B: {}.",
                                others == 1 ? "1 point has" : fmt::format("{} points have", others),
                                settings.empty() ? "ranks or launcher; or their runs' folders are gone"
                                                 : fmt::format("{}", fmt::join(settings, "; "))));
  if (!only_a.empty()) texts.push_back(fmt::format("Only in A: {}.", fmt::join(only_a, "; ")));
  if (!only_b.empty()) texts.push_back(fmt::format("Only in B: {}.", fmt::join(only_b, "; ")));
  return comparison;
}

TextBlock comparison_table(const StudyResults& a, const StudyComparison& comparison) {
  TextBlock table = point_columns(a.study, "");
  for (const char* name : {"A", "B", "B / A (95 %)"}) table.column(name, 'r');
  table.column("verdict", 'l');
  for (const char* name : {"effect in A (95 %)", "effect in B (95 %)", "B's / A's (95 %)"}) table.column(name, 'r');
  table.column("verdict on it", 'l');
  for (const ComparedPoint& point : comparison.points) {
    std::vector<std::string> row = point_cells(a.study, a.plan, point.a);
    if (!point.same_settings) row[0] = "* " + row[0];
    row.insert(row.end(),
               {metric_text(a.study.metric, point.metric.a.value), metric_text(a.study.metric, point.metric.b.value),
                estimate_text(point.metric.ratio), std::string(word_of(point.metric.verdict))});
    if (point.effect)
      row.insert(row.end(), {estimate_text(point.effect->a), estimate_text(point.effect->b),
                             estimate_text(point.effect->ratio), std::string(word_of(point.effect->verdict))});
    else row.insert(row.end(), {"baseline", "baseline", "", ""});
    table.rows.push_back(std::move(row));
  }
  return table;
}

}  // namespace trivet
