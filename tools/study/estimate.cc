#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <utility>

#include "tools/study/summary.h"

namespace trivet {
namespace {

std::optional<double> value_of(const RunRow* row, const std::string& metric) {
  const auto found = row->metrics.find(metric);
  return found == row->metrics.end() ? std::nullopt : std::optional(found->second);
}

// The logarithm of the metric's value; empty if it is missing or not positive.
std::optional<double> log_of(const RunRow* row, const std::string& metric) {
  const auto value = value_of(row, metric);
  return value && *value > 0 ? std::optional(std::log(*value)) : std::nullopt;
}

// [round]: the mean of the round's values.
std::map<int64_t, double> mean_by_round(const std::vector<std::pair<int64_t, double>>& values) {
  std::map<int64_t, std::vector<double>> rounds;
  for (const auto& [round, value] : values) rounds[round].push_back(value);
  std::map<int64_t, double> means;
  for (const auto& [round, of_round] : rounds) means[round] = estimate_mean(of_round).mean;
  return means;
}

}  // namespace

Rounds::Rounds(const Study& study, const Plan& plan, const std::vector<RunRow>& rows) : pairings_(plan.points.size()) {
  std::unordered_map<std::string_view, size_t> points;
  for (size_t i = 0; i < plan.points.size(); ++i) points.emplace(plan.points[i].id, i);
  using Run = std::pair<size_t, const RunRow*>;
  std::map<std::pair<int64_t, int64_t>, std::vector<Run>> segments;  // by round and call, in run order
  for (const RunRow& row : rows)
    if (const auto point = points.find(row.point);
        point != points.end() && row.outcome == RunEnd::done && row.repeat <= study.repeats)
      segments[{row.repeat, row.call}].emplace_back(point->second, &row);

  for (const auto& [of, runs] : segments)
    for (auto run = runs.begin(); run != runs.end(); ++run) {
      const auto is_baseline = [baseline = plan.baselines[run->first]](const Run& other) {
        return other.first == baseline;
      };
      Pairing pairing{.round = of.first, .call = of.second, .run = run->second};
      // A baseline run counts as its own preceding run.
      const auto before = std::find_if(std::reverse_iterator(run + 1), runs.rend(), is_baseline);
      const auto after = std::find_if(run, runs.end(), is_baseline);
      if (before != runs.rend()) pairing.before = before->second;
      if (after != runs.end()) pairing.after = after->second;
      if (pairing.before && pairing.after && pairing.before != pairing.after) {
        const auto since = static_cast<double>(run - before.base() + 1), until = static_cast<double>(after - run);
        pairing.weight_of_after = since / (since + until);
      }
      pairings_[run->first].push_back(pairing);
    }
}

LogRatios Rounds::log_ratios(size_t point, const std::string& metric) const {
  std::vector<std::pair<int64_t, double>> ratios;
  for (const Pairing& pairing : pairings_[point]) {
    if (!pairing.before && !pairing.after) continue;
    const auto own = log_of(pairing.run, metric);
    const auto before = log_of(pairing.before ? pairing.before : pairing.after, metric);
    const auto after = log_of(pairing.after ? pairing.after : pairing.before, metric);
    if (own && before && after)
      ratios.emplace_back(pairing.round, *own - std::lerp(*before, *after, pairing.weight_of_after));
  }
  return mean_by_round(ratios);
}

std::map<int64_t, double> Rounds::values(size_t point, const std::string& metric) const {
  std::vector<std::pair<int64_t, double>> values;
  for (const Pairing& pairing : pairings_[point])
    if (const auto value = value_of(pairing.run, metric)) values.emplace_back(pairing.round, *value);
  return mean_by_round(values);
}

LogRatios Rounds::log_values(size_t point, const std::string& metric) const {
  LogRatios logs;
  for (const auto& [round, value] : values(point, metric))
    if (value > 0) logs[round] = std::log(value);
  return logs;
}

std::map<int64_t, double> Rounds::quotients(size_t over, size_t under, const std::string& metric) const {
  std::vector<std::pair<int64_t, double>> quotients;
  for (const Pairing& a : pairings_[over])
    for (const Pairing& b : pairings_[under]) {
      if (a.round != b.round || a.call != b.call) continue;
      const auto x = value_of(a.run, metric), y = value_of(b.run, metric);
      if (x && y && *y > 0) quotients.emplace_back(a.round, *x / *y);
    }
  return mean_by_round(quotients);
}

std::set<std::string> Rounds::metrics(size_t point) const {
  std::set<std::string> names;
  for (const Pairing& pairing : pairings_[point])
    for (const auto& [name, value] : pairing.run->metrics) names.insert(name);
  return names;
}

std::string Rounds::first_folder(size_t point) const {
  return pairings_[point].empty() ? "" : pairings_[point].front().run->folder;
}

LogRatios operator-(const LogRatios& a, const LogRatios& b) {
  LogRatios difference;
  for (const auto& [round, value] : a)
    if (const auto other = b.find(round); other != b.end()) difference[round] = value - other->second;
  return difference;
}

MeanEstimate mean_of_logs(const LogRatios& values) {
  std::vector<double> logs;
  for (const auto& [round, value] : values) logs.push_back(value);
  return estimate_mean(logs);
}

Estimate ratio_of(const MeanEstimate& logs) {
  return {.rounds = logs.n,
          .value = std::exp(logs.mean),
          .low = std::exp(logs.mean - logs.half_width),
          .high = std::exp(logs.mean + logs.half_width),
          .p = logs.p};
}

double Resolution::effect() const {
  const double tail = (1 - kConfidence) / 2 / static_cast<double>(std::max<int64_t>(comparisons, 1));
  const double errors = student_t_quantile(1 - tail, rounds - 1) + student_t_quantile(0.8, rounds - 1);
  return std::expm1(errors * deviation / std::sqrt(static_cast<double>(rounds)));
}

int64_t rounds_wanted(const Study& study, const Plan& plan, const std::vector<RunRow>& rows) {
  if (!study.auto_repeats) return study.repeats;
  const Rounds rounds(study, plan, rows);
  const auto failed = failures_of(rows);
  int64_t fewest = study.repeats;
  bool wide = false;
  for (size_t i = 0; i < plan.points.size(); ++i) {
    if (failed.contains(plan.points[i].id)) continue;
    const auto values = rounds.values(i, study.metric);
    fewest = std::min(fewest, static_cast<int64_t>(values.size()));
    const LogRatios ratios = rounds.log_ratios(i, study.metric);
    if (!ratios.empty()) wide |= ratios.size() < 2 || estimate_ratio(ratios).width() > study.interval_width;
  }
  if (fewest < kFewestRounds) return kFewestRounds;
  return std::min(study.repeats, fewest + (wide ? 1 : 0));
}

}  // namespace trivet
