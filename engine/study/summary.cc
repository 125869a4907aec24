#include "engine/study/summary.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <map>

namespace trivet {
namespace {

// Finished rows of a point, [repeat - 1]; null where there is none.
std::vector<const RunRow*> done_rows(const Study& study, const std::vector<RunRow>& rows, const Point& point) {
  std::vector<const RunRow*> found;
  for (int64_t repeat = 1; repeat <= study.repeats; ++repeat) {
    const RunRow* row = find_row(rows, point.id, repeat);
    found.push_back(row && row->outcome == RunEnd::done ? row : nullptr);
  }
  return found;
}

std::optional<double> metric_of(const RunRow* row, const std::string& metric) {
  if (!row) return {};
  const auto found = row->metrics.find(metric);
  return found == row->metrics.end() ? std::nullopt : std::optional(found->second);
}

PointSummary summarize_point(const Study& study, const Point& point, const std::vector<RunRow>& rows) {
  PointSummary summary;
  std::map<std::string, std::vector<double>> values;
  for (const RunRow* row : done_rows(study, rows, point)) {
    if (!row) continue;
    ++summary.done;
    if (summary.folder.empty()) summary.folder = row->folder;
    for (const auto& [key, value] : row->metrics) values[key].push_back(value);
  }
  for (const auto& [key, numbers] : values) summary.metrics[key] = sample_of(numbers);
  for (int64_t repeat = 1; repeat <= study.repeats; ++repeat)
    if (const RunRow* row = find_row(rows, point.id, repeat); row && row->outcome != RunEnd::done)
      summary.failure = row->reason;
  return summary;
}

std::optional<Sample> ratio_of(const Study& study, const std::vector<RunRow>& rows, const Point& point,
                               const Point& baseline) {
  const auto over = done_rows(study, rows, point), under = done_rows(study, rows, baseline);
  std::vector<double> ratios;
  for (size_t i = 0; i < over.size(); ++i) {
    const auto a = metric_of(over[i], study.metric), b = metric_of(under[i], study.metric);
    if (a && b && *b != 0) ratios.push_back(*a / *b);
  }
  return ratios.empty() ? std::nullopt : std::optional(sample_of(ratios));
}

// compute_inflation and hidden_fraction.
void compare_with_others(const Study& study, const Plan& plan, const std::vector<RunRow>& rows, const Point& point,
                         PointSummary& summary) {
  const auto rows_of = [&](const std::string& id) {
    const auto found = std::ranges::find(plan.points, id, &Point::id);
    return found == plan.points.end() ? std::vector<const RunRow*>(static_cast<size_t>(study.repeats))
                                      : done_rows(study, rows, *found);
  };
  if (point.id == point.without_overlap) return;
  const auto own = rows_of(point.id), own_fast = rows_of(point.without_link);
  const auto plain = rows_of(point.without_overlap), plain_fast = rows_of(point.without_both);
  std::vector<double> inflations, hidden;
  for (size_t i = 0; i < own.size(); ++i) {
    const auto compute = metric_of(own[i], "compute_seconds"), plain_compute = metric_of(plain[i], "compute_seconds");
    if (compute && plain_compute && *plain_compute > 0) inflations.push_back(*compute / *plain_compute);
    if (point.id == point.without_link) continue;
    const std::string step = "step_seconds";
    const auto t = metric_of(own[i], step), t_fast = metric_of(own_fast[i], step);
    const auto n = metric_of(plain[i], step), n_fast = metric_of(plain_fast[i], step);
    if (t && t_fast && n && n_fast && *n - *n_fast >= kMeasurable * *n)
      hidden.push_back(1 - (*t - *t_fast) / (*n - *n_fast));
  }
  if (!inflations.empty()) summary.metrics["compute_inflation"] = sample_of(inflations);
  if (!hidden.empty()) summary.metrics["hidden_fraction"] = sample_of(hidden);
}

std::vector<std::vector<Effect>> effects_of(const Study& study, const Plan& plan, const Summary& summary) {
  std::map<Choice, double> medians;
  for (size_t i = 0; i < plan.points.size(); ++i)
    if (const auto value = summary.points[i].median(study.metric); value && *value > 0)
      medians[plan.points[i].choice] = *value;
  std::vector<std::vector<Effect>> effects;
  for (size_t f = 0; f < study.factors.size(); ++f) {
    effects.emplace_back(study.factors[f].levels.size());
    for (size_t level = 0; level < effects[f].size(); ++level) {
      std::vector<double> ratios;
      for (const auto& [choice, value] : medians) {
        if (choice[f] != level) continue;
        Choice reference = choice;
        reference[f] = study.factors[f].baseline;
        if (const auto found = medians.find(reference); found != medians.end()) ratios.push_back(value / found->second);
      }
      if (ratios.empty()) continue;
      const Sample sample = sample_of(ratios);
      effects[f][level] = {sample.n, geometric_mean(ratios), sample.min, sample.max};
    }
  }
  return effects;
}

// Whether `a` was better than `b` in every round that has both, and there is one.
bool better_in_every_round(const Study& study, const std::vector<RunRow>& rows, const Point& a, const Point& b) {
  const auto of_a = done_rows(study, rows, a), of_b = done_rows(study, rows, b);
  int64_t rounds = 0;
  for (size_t i = 0; i < of_a.size(); ++i) {
    const auto x = metric_of(of_a[i], study.metric), y = metric_of(of_b[i], study.metric);
    if (!x || !y) continue;
    ++rounds;
    if (is_better_high(study.metric) ? *x <= *y : *x >= *y) return false;
  }
  return rounds > 0;
}

std::vector<Winner> find_winners(const Study& study, const Plan& plan, const Summary& summary,
                                 const std::vector<RunRow>& rows) {
  std::vector<std::vector<size_t>> groups;  // measured points of the same conditions
  for (size_t i = 0; i < plan.points.size(); ++i) {
    if (!summary.points[i].median(study.metric)) continue;
    const auto same = std::ranges::find_if(groups, [&](const std::vector<size_t>& group) {
      return study.baseline_of(plan.points[group[0]].choice) == study.baseline_of(plan.points[i].choice);
    });
    if (same == groups.end()) groups.push_back({i});
    else same->push_back(i);
  }
  std::vector<Winner> winners;
  for (const std::vector<size_t>& group : groups) {
    const bool ratios = std::ranges::all_of(group, [&](size_t i) { return summary.points[i].ratio.has_value(); });
    const auto value = [&](size_t i) {
      return ratios ? summary.points[i].ratio->median : *summary.points[i].median(study.metric);
    };
    Winner winner{.point = group[0], .others = static_cast<int64_t>(group.size()) - 1};
    for (const size_t i : group)
      if (is_better_high(study.metric) ? value(i) > value(winner.point) : value(i) < value(winner.point))
        winner.point = i;
    for (const size_t i : group)
      if (i != winner.point && !better_in_every_round(study, rows, plan.points[winner.point], plan.points[i]))
        winner.rivals.push_back(i);
    winners.push_back(std::move(winner));
  }
  return winners;
}

struct Reference {
  const RunRow* row;
  std::string what;
};

// The first step at which two runs differ by more than they may; "": none.
std::string difference(const std::vector<double>& losses, const std::vector<double>& expected, double tolerance) {
  if (losses.size() != expected.size()) return fmt::format("{} steps against {}", losses.size(), expected.size());
  for (size_t i = 0; i < losses.size(); ++i) {
    const double apart = std::abs(losses[i] - expected[i]);
    if (tolerance == 0 ? losses[i] != expected[i] : !(apart <= tolerance * std::abs(expected[i])))
      return fmt::format("the loss of step {} is {}, but {} (relative difference {:.2g})", i + 1, losses[i],
                         expected[i], apart / std::abs(expected[i]));
  }
  return "";
}

// [point]: where its losses differ from those they must agree with, the first finished run of its group; "" where they
// do not. Every finished repeat is compared, every step.
std::vector<std::string> find_disagreements(const Study& study, const Plan& plan, const std::vector<RunRow>& rows) {
  std::vector<std::string> found(plan.points.size());
  if (!study.check_agreement) return found;
  std::map<std::string, Reference> references;  // by Point::numbers
  for (size_t i = 0; i < plan.points.size(); ++i)
    for (int64_t repeat = 1; repeat <= study.repeats; ++repeat) {
      const RunRow* row = find_row(rows, plan.points[i].id, repeat);
      if (!row || row->outcome != RunEnd::done) continue;
      const std::string what = fmt::format("repeat {} of {}", repeat, describe_choice(study, plan.points[i].choice));
      const auto [reference, first] = references.try_emplace(plan.points[i].numbers, Reference{row, what});
      if (first || !found[i].empty()) continue;
      const std::string text = difference(row->losses, reference->second.row->losses, study.tolerance);
      if (!text.empty()) found[i] = fmt::format("repeat {}: {} in {}", repeat, text, reference->second.what);
    }
  return found;
}

std::optional<double> of_step(const PointSummary& point, const std::string& seconds) {
  const auto part = point.median(seconds), step = point.median("step_seconds");
  return part && step ? std::optional(*part / *step) : std::nullopt;
}

}  // namespace

const Sample* PointSummary::find(std::string_view metric) const {
  const auto found = metrics.find(std::string(metric));
  return found == metrics.end() ? nullptr : &found->second;
}

std::optional<double> PointSummary::median(std::string_view metric) const {
  const Sample* sample = find(metric);
  return sample ? std::optional(sample->median) : std::nullopt;
}

std::optional<double> PointSummary::exposed(const std::string& comm_class) const {
  return of_step(*this, comm_class + "_exposed_seconds");
}
std::optional<double> PointSummary::wait(const std::string& comm_class) const {
  return of_step(*this, comm_class + "_wait_seconds");
}

Summary summarize(const Study& study, const Plan& plan, const std::vector<RunRow>& rows) {
  Summary summary;
  const std::vector<std::string> disagreements = find_disagreements(study, plan, rows);
  for (size_t i = 0; i < plan.points.size(); ++i) {
    PointSummary point = summarize_point(study, plan.points[i], rows);
    const Choice reference = study.baseline_of(plan.points[i].choice);
    const auto baseline = std::ranges::find(plan.points, reference, &Point::choice);
    point.baseline = plan.points[i].choice == reference;
    if (baseline != plan.points.end()) point.ratio = ratio_of(study, rows, plan.points[i], *baseline);
    compare_with_others(study, plan, rows, plan.points[i], point);
    point.disagreement = disagreements[i];
    summary.disagreements += !point.disagreement.empty();
    summary.done += point.done;
    summary.failed += !point.failure.empty();
    for (const auto& [key, sample] : point.metrics) summary.metrics.insert(key);
    summary.points.push_back(std::move(point));
  }
  summary.runs = static_cast<int64_t>(plan.points.size()) * study.repeats;
  for (const RunRow& row : rows) {
    const bool planned = std::ranges::any_of(plan.points, [&](const Point& point) { return point.id == row.point; });
    if (!planned || row.repeat > study.repeats) ++summary.other_rows;
    else summary.machines.insert(row.machine.substr(0, row.machine.rfind(", load ")));
  }
  summary.effects = effects_of(study, plan, summary);
  summary.winners = find_winners(study, plan, summary, rows);
  return summary;
}

}  // namespace trivet
