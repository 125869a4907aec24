#include "tools/study/summary.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fmt/format.h>

namespace trivet {
namespace {

PointSummary summarize_point(const Study& study, const Plan& plan, const Rounds& rounds, size_t point) {
  PointSummary summary;
  for (const std::string& metric : rounds.metrics(point)) {
    std::vector<double> values;
    for (const auto& [round, value] : rounds.values(point, metric)) values.push_back(value);
    summary.metrics[metric] = sample_of(values);
    summary.done = std::max(summary.done, static_cast<int64_t>(values.size()));
    if (const LogRatios ratios = rounds.log_ratios(point, metric); !ratios.empty())
      summary.ratios[metric] = estimate_ratio(ratios);
  }
  summary.folder = rounds.first_folder(point);
  summary.baseline = plan.baselines[point] == point;

  const Estimate* ratio = summary.ratio(study.metric);
  const LogRatios logs = rounds.log_values(ratio ? plan.baselines[point] : point, study.metric);
  if (!logs.empty()) summary.adjusted = estimate_ratio(logs).value * (ratio ? ratio->value : 1);
  else summary.adjusted = summary.median(study.metric);
  return summary;
}

// Fills in hidden and compute_inflation.
void compare_with_plain(const Plan& plan, const Rounds& rounds, size_t point, Summary& summary) {
  const auto found = std::ranges::find(plan.points, plan.points[point].without_overlap, &Point::id);
  const auto plain = static_cast<size_t>(found - plan.points.begin());
  if (found == plan.points.end() || plain == point || plan.baselines[plain] != plan.baselines[point]) return;
  const std::string compute = "compute_seconds", wire = "exposed_seconds";
  const LogRatios inflation = rounds.log_ratios(point, compute) - rounds.log_ratios(plain, compute);
  if (!inflation.empty()) summary.points[point].compute_inflation = estimate_ratio(inflation);

  if (summary.points[plain].median("exposed_fraction").value_or(0) < kMeasurable) return;
  std::vector<double> hidden;
  for (const auto& [round, quotient] : rounds.quotients(point, plain, wire)) hidden.push_back(1 - quotient);
  if (hidden.empty()) return;
  const MeanEstimate mean = estimate_mean(hidden);
  summary.points[point].hidden = Estimate{.rounds = mean.n,
                                          .value = mean.mean,
                                          .low = mean.mean - mean.half_width,
                                          .high = mean.mean + mean.half_width,
                                          .p = mean.p};
}

}  // namespace

void judge(const Study& study, std::vector<Judged> all) {
  std::ranges::sort(all, {}, [](const Judged& one) { return one.ratio->p; });
  double largest = 0;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const auto& [ratio, corrected_p, verdict] = all[rank];
    largest = std::max(largest, std::min(1.0, ratio->p * static_cast<double>(all.size() - rank)));
    *corrected_p = largest;
    *verdict = largest > 1 - kConfidence                            ? Verdict::within_noise
               : (ratio->value > 1) == is_better_high(study.metric) ? Verdict::better
                                                                    : Verdict::worse;
  }
}

namespace {

void judge_points(const Study& study, Summary& summary) {
  std::vector<Judged> all;
  for (PointSummary& point : summary.points) {
    const Estimate* ratio = point.ratio(study.metric);
    point.verdict = !point.failure.empty()          ? Verdict::failed
                    : !point.disagreement.empty()   ? Verdict::differs
                    : !ratio                        ? Verdict::not_measured
                    : point.baseline                ? Verdict::baseline
                    : ratio->rounds < kFewestRounds ? Verdict::too_few
                                                    : Verdict::within_noise;
    if (point.verdict == Verdict::within_noise) all.push_back({ratio, &point.corrected_p, &point.verdict});
  }
  judge(study, all);
}

// One conclusion per baseline, with its points.
std::vector<Conclusion> group(const Study& study, const Plan& plan, const Summary& summary) {
  std::vector<Conclusion> conclusions;
  for (size_t i = 0; i < plan.points.size(); ++i) {
    auto of = std::ranges::find(conclusions, plan.baselines[i], &Conclusion::baseline);
    if (of == conclusions.end()) {
      of = conclusions.emplace(of);
      of->baseline = plan.baselines[i];
    }
    of->points.push_back(i);
    const Estimate* ratio = summary.points[i].ratio(study.metric);
    if (ratio && summary.points[i].failure.empty()) of->rounds = std::max(of->rounds, ratio->rounds);
  }
  return conclusions;
}

// The points that can be a conclusion's best, best first: they did not fail, their losses agree, and they have run
// enough rounds if any point has.
std::vector<size_t> candidates_of(const Study& study, const Summary& summary, const Conclusion& conclusion) {
  const auto ratio = [&](size_t i) { return summary.points[i].ratio(study.metric); };
  std::vector<size_t> candidates;
  for (const size_t i : conclusion.points)
    if (summary.points[i].failure.empty() && summary.points[i].disagreement.empty() && ratio(i) &&
        ratio(i)->rounds >= std::min(kFewestRounds, conclusion.rounds))
      candidates.push_back(i);
  std::ranges::stable_sort(candidates, [&](size_t a, size_t b) {
    return is_better_high(study.metric) ? ratio(a)->value > ratio(b)->value : ratio(a)->value < ratio(b)->value;
  });
  return candidates;
}

void find_best(const Study& study, const Rounds& rounds, Summary& summary) {
  int64_t comparisons = 0;
  std::vector<std::vector<size_t>> candidates;
  for (const Conclusion& conclusion : summary.conclusions) {
    candidates.push_back(candidates_of(study, summary, conclusion));
    comparisons += std::max<int64_t>(0, static_cast<int64_t>(candidates.back().size()) - 1);
  }
  for (size_t n = 0; n < candidates.size(); ++n) {
    Conclusion& conclusion = summary.conclusions[n];
    if (candidates[n].empty()) continue;
    conclusion.leader = candidates[n].front();
    if (conclusion.rounds < kFewestRounds || candidates[n].size() < 2) continue;
    std::map<size_t, LogRatios> ratios;
    for (const size_t i : candidates[n]) ratios[i] = rounds.log_ratios(i, study.metric);
    const auto is_better = [&](size_t a, size_t b) {
      const Estimate apart = estimate_ratio(ratios[a] - ratios[b]);
      return apart.rounds >= kFewestRounds && (apart.value > 1) == is_better_high(study.metric) &&
             apart.p * static_cast<double>(comparisons) <= 1 - kConfidence;
    };
    for (const size_t i : candidates[n])
      if (std::ranges::none_of(candidates[n], [&](size_t other) { return other != i && is_better(other, i); }))
        conclusion.best.push_back(i);
  }
}

// Compares a level with its factor's baseline level, in every setting of the other factors under these conditions.
Effect effect_of(const Study& study, const Plan& plan, const Rounds& rounds, const Summary& summary,
                 const Conclusion& conclusion, size_t factor, size_t level) {
  std::vector<Choice> choices;
  for (const Point& point : plan.points) choices.push_back(point.choice);
  for (const SamePoint& same : plan.same) choices.push_back(same.choice);
  std::map<std::pair<size_t, size_t>, LogRatios> contexts;  // by pair of points, because choices may share a run
  size_t most = 0;
  for (const Choice& choice : choices) {
    Choice reference = choice;
    reference[factor] = study.factors[factor].baseline;
    const auto over = plan.find(choice), under = plan.find(reference);
    const auto usable = [&](const auto& point) {
      return point && plan.baselines[*point] == conclusion.baseline && summary.points[*point].failure.empty();
    };
    if (choice[factor] != level || !usable(over) || !usable(under) || over == under) continue;
    LogRatios ratios = rounds.log_ratios(*over, study.metric) - rounds.log_ratios(*under, study.metric);
    most = std::max(most, ratios.size());
    contexts[{*over, *under}] = std::move(ratios);
  }
  // The mean uses only rounds that all contexts share, so a context with few rounds would discard the others' rounds.
  std::erase_if(contexts, [&](const auto& context) {
    return context.second.size() < std::max<size_t>(1, std::min<size_t>(most, kFewestRounds));
  });
  std::map<int64_t, std::vector<double>> by_round;
  Effect effect;
  effect.contexts = static_cast<int64_t>(contexts.size());
  for (const auto& [points, ratios] : contexts) {
    const double ratio = estimate_ratio(ratios).value;
    effect.min = points == contexts.begin()->first ? ratio : std::min(effect.min, ratio);
    effect.max = points == contexts.begin()->first ? ratio : std::max(effect.max, ratio);
    for (const auto& [round, value] : ratios) by_round[round].push_back(value);
  }
  LogRatios means;
  for (const auto& [round, values] : by_round)
    if (values.size() == contexts.size()) means[round] = estimate_mean(values).mean;
  effect.ratio = estimate_ratio(means);
  return effect;
}

void find_effects(const Study& study, const Plan& plan, const Rounds& rounds, Summary& summary) {
  std::vector<Judged> all;
  for (Conclusion& conclusion : summary.conclusions) {
    conclusion.effects.resize(study.factors.size());
    for (size_t f = 0; f < study.factors.size(); ++f) {
      const Factor& factor = study.factors[f];
      if (factor.condition || factor.levels.size() < 2) continue;
      for (size_t level = 0; level < factor.levels.size(); ++level) {
        Effect effect;
        if (level == factor.baseline) effect.verdict = Verdict::baseline;
        else effect = effect_of(study, plan, rounds, summary, conclusion, f, level);
        if (effect.ratio.rounds > 0) effect.verdict = Verdict::too_few;
        conclusion.effects[f].push_back(effect);
      }
    }
    for (std::vector<Effect>& levels : conclusion.effects)
      for (Effect& effect : levels)
        if (effect.ratio.rounds >= kFewestRounds) all.push_back({&effect.ratio, &effect.corrected_p, &effect.verdict});
  }
  judge(study, all);
}

std::optional<Resolution> resolution_of(const Study& study, const Plan& plan, const Rounds& rounds,
                                        const Summary& summary) {
  Resolution resolution{.rounds = summary.rounds, .equal_points = plan.noise.has_value()};
  double squares = 0;
  int64_t degrees = 0;
  for (size_t i = 0; i < plan.points.size(); ++i) {
    if (plan.baselines[i] == i) continue;
    ++resolution.comparisons;
    const MeanEstimate mean = mean_of_logs(rounds.log_ratios(i, study.metric));
    squares +=
        mean.standard_error * mean.standard_error * static_cast<double>(mean.n * std::max<int64_t>(0, mean.n - 1));
    degrees += std::max<int64_t>(0, mean.n - 1);
  }
  if (plan.noise) resolution.deviation = *plan.noise;
  else if (degrees > 0) resolution.deviation = std::sqrt(squares / static_cast<double>(degrees));
  else return {};
  return resolution.rounds < 2 ? std::nullopt : std::optional(resolution);
}

struct Reference {
  const RunRow* row;
  Choice choice;
};

// Describes the first step at which the losses differ by more than `tolerance`; "" if none does.
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

// [point]: where its losses first differ from those of its group's first finished run; "": nowhere. Compares every step
// of every finished repeat.
std::vector<std::string> find_disagreements(const Study& study, const Plan& plan, const std::vector<RunRow>& rows) {
  std::vector<std::string> found(plan.points.size());
  if (!study.check_agreement) return found;
  std::map<std::string, Reference> references;  // by Point::numbers
  for (size_t i = 0; i < plan.points.size(); ++i)
    for (const RunRow& row : rows) {
      if (row.point != plan.points[i].id || row.outcome != RunEnd::done || row.repeat > study.repeats) continue;
      const auto [reference, first] =
          references.try_emplace(plan.points[i].numbers, Reference{&row, plan.points[i].choice});
      if (first || !found[i].empty()) continue;
      const RunRow& expected = *reference->second.row;
      const std::string text = difference(row.losses, expected.losses, study.tolerance);
      if (!text.empty())
        found[i] = fmt::format("repeat {}: {} in repeat {} of {}", row.repeat, text, expected.repeat,
                               describe_choice(study, reference->second.choice));
    }
  return found;
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

const Estimate* PointSummary::ratio(std::string_view metric) const {
  const auto found = ratios.find(std::string(metric));
  return found == ratios.end() ? nullptr : &found->second;
}

const Conclusion& Summary::conclusion_of(size_t point) const {
  return *std::ranges::find_if(
      conclusions, [&](const Conclusion& conclusion) { return std::ranges::count(conclusion.points, point) > 0; });
}

bool Summary::may_be_best(size_t point) const { return std::ranges::count(conclusion_of(point).best, point) > 0; }

bool Summary::wins(size_t point) const { return may_be_best(point) && conclusion_of(point).best.size() == 1; }

Summary summarize(const Study& study, const Plan& plan, const std::vector<RunRow>& rows) {
  Summary summary;
  const Rounds rounds(study, plan, rows);
  const std::vector<std::string> disagreements = find_disagreements(study, plan, rows);
  const auto failures = failures_of(rows);
  for (size_t i = 0; i < plan.points.size(); ++i) {
    PointSummary point = summarize_point(study, plan, rounds, i);
    if (const auto failed = failures.find(plan.points[i].id); failed != failures.end())
      point.failure =
          failed->second->reason.empty() ? std::string(word_of(failed->second->outcome)) : failed->second->reason;
    point.disagreement = disagreements[i];
    summary.disagreements += !point.disagreement.empty();
    summary.failed += !point.failure.empty();
    for (const auto& [key, sample] : point.metrics) summary.metrics.insert(key);
    summary.points.push_back(std::move(point));
  }
  for (size_t i = 0; i < plan.points.size(); ++i) compare_with_plain(plan, rounds, i, summary);
  for (const RunRow& row : rows) {
    const bool planned = std::ranges::count(plan.points, row.point, &Point::id) > 0 && row.repeat <= study.repeats;
    summary.other_rows += !planned;
    summary.done += planned && row.outcome == RunEnd::done;
    if (!planned) continue;
    summary.machines.insert(provenance_text(row.provenance));
    const auto number = [&](const char* name) { return std::atoi(provenance_value(row.provenance, name).c_str()); };
    if (const int cores = number("cores"), threads = number("threads"); cores > 0 && threads > cores)
      summary.shared_cores = cores, summary.threads = threads;
  }
  summary.rounds = rounds_wanted(study, plan, rows);
  summary.runs =
      summary.done + static_cast<int64_t>(remaining_runs(study, plan, without_failures(rows), summary.rounds).size());
  judge_points(study, summary);
  summary.conclusions = group(study, plan, summary);
  find_best(study, rounds, summary);
  find_effects(study, plan, rounds, summary);
  summary.resolution = resolution_of(study, plan, rounds, summary);
  return summary;
}

}  // namespace trivet
