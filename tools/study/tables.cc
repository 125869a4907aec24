#include <algorithm>
#include <cmath>
#include <fmt/format.h>

#include "tools/study/report.h"

namespace trivet {
namespace {

constexpr size_t kLongestLabel = 40;  // characters; longer labels appear in full elsewhere in the report

std::string verdict_text(const Study& study, const Summary& summary, size_t i) {
  const PointSummary& point = summary.points[i];
  std::string text(word_of(point.verdict));
  if (point.verdict == Verdict::too_few)
    text = fmt::format("too few rounds ({} of {})", point.ratio(study.metric)->rounds, kFewestRounds);
  if (summary.wins(i)) text += ", best";
  else if (summary.may_be_best(i)) text += ", tied for best";
  return text;
}

std::string note_of(const PointSummary& point) {
  const std::string note = !point.failure.empty()        ? "failed: " + point.failure
                           : !point.disagreement.empty() ? "LOSS DIFFERS: " + point.disagreement
                                                         : "";
  return shortened(note, 60);  // the full text is in the CSV, in results.jsonl and in the report's list
}

}  // namespace

TextBlock point_columns(const Study& study, std::string title) {
  TextBlock table{.title = std::move(title)};
  table.column("#", 'r');
  for (const Factor& factor : study.factors)
    if (factor.levels.size() > 1) table.column(shortened(factor.name, kLongestLabel), 'l');
  return table;
}

std::vector<std::string> point_cells(const Study& study, const Plan& plan, size_t i) {
  std::vector<std::string> cells{std::to_string(i + 1)};
  for (size_t f = 0; f < study.factors.size(); ++f)
    if (const std::vector<Level>& levels = study.factors[f].levels; levels.size() > 1)
      cells.push_back(shortened(levels[plan.points[i].choice[f]].label, kLongestLabel));
  return cells;
}

std::string metric_text(std::string_view metric, double value) {
  if (metric.ends_with("seconds")) return fmt::format("{:.4g} ms", value * 1e3);
  if (metric.ends_with("fraction") || metric == "mfu" || metric == "overlap_ratio" || metric.ends_with("efficiency"))
    return percent_text(value);
  if (metric.ends_with("inflation")) return "x " + ratio_text(value);
  if (metric.ends_with("per_second")) return grouped(std::llround(value));
  if (metric.ends_with("bytes")) return bytes_text(std::llround(value));
  return fmt::format("{:.6g}", value);
}

std::string metric_name(std::string_view metric) {
  if (metric == "step_seconds") return "step";
  if (metric == "tokens_per_second") return "tokens/s";
  if (metric == "mfu") return "MFU";
  if (metric == "exposed_fraction") return "exposed";
  std::string name(metric);
  std::ranges::replace(name, '_', ' ');
  return name;
}

std::string ratio_text(double ratio) { return fmt::format("{:.3f}", ratio); }

std::string estimate_text(const Estimate& estimate) {
  const std::string value = ratio_text(estimate.value);
  return estimate.has_interval() ? fmt::format("{} ({}-{})", value, ratio_text(estimate.low), ratio_text(estimate.high))
                                 : value;
}

TextBlock result_table(const Study& study, const Plan& plan, const Summary& summary) {
  TextBlock table = point_columns(study, "results");
  table.column("rounds", 'r');
  table.column(metric_name(study.metric), 'r');
  table.column("ratio to baseline (95 %)", 'r');
  table.column("verdict", 'l');
  table.column("memory per rank", 'r');
  if (study.check_agreement) table.column("loss", 'l');
  const bool notes = summary.failed + summary.disagreements > 0;
  if (notes) table.column("note", 'l');
  for (size_t i = 0; i < plan.points.size(); ++i) {
    const PointSummary& point = summary.points[i];
    std::vector<std::string> row = point_cells(study, plan, i);
    row.push_back(fmt::format("{}/{}", point.done, summary.rounds));
    row.push_back(point.adjusted ? metric_text(study.metric, *point.adjusted) : "");
    const Estimate* ratio = point.ratio(study.metric);
    row.push_back(point.baseline || !ratio ? "" : estimate_text(*ratio));
    row.push_back(verdict_text(study, summary, i));
    row.push_back(bytes_text(plan.points[i].memory_bytes));
    if (study.check_agreement) row.push_back(point.done == 0 ? "" : point.disagreement.empty() ? "agrees" : "DIFFERS");
    if (notes) row.push_back(note_of(point));
    table.rows.push_back(std::move(row));
  }
  return table;
}

TextBlock response_table(const Study& study, const Plan& plan, const Summary& summary) {
  TextBlock table = point_columns(study, "other responses, median over the rounds");
  for (const std::string& metric : study.responses) {
    if (metric == study.metric) continue;
    table.column(metric_name(metric), 'r'), table.column("its ratio (95 %)", 'r');
    for (size_t i = 0; i < plan.points.size(); ++i) {
      const PointSummary& point = summary.points[i];
      if (table.rows.size() == i + 1) table.rows.push_back(point_cells(study, plan, i));
      const auto value = point.median(metric);
      const Estimate* ratio = point.ratio(metric);
      table.rows[i + 1].push_back(value ? metric_text(metric, *value) : "");
      table.rows[i + 1].push_back(point.baseline || !ratio ? "" : estimate_text(*ratio));
    }
  }
  return table;
}

TextBlock effect_table(const Study& study, const Plan& plan, const Summary& summary) {
  TextBlock table{.title = fmt::format("main effects on {}: a level over its factor's baseline", study.metric)};
  const bool conditions = std::ranges::any_of(study.factors, &Factor::condition);
  table.column("#", 'r');
  if (conditions) table.column("conditions", 'l');
  for (const char* name : {"factor", "level"}) table.column(name, 'l');
  table.column("effect (95 %)", 'r');
  table.column("verdict", 'l');
  for (const char* name : {"from", "to", "settings of the others"}) table.column(name, 'r');
  for (const Conclusion& conclusion : summary.conclusions)
    for (size_t f = 0; f < study.factors.size(); ++f)
      for (size_t level = 0; level < conclusion.effects[f].size(); ++level) {
        const Effect& effect = conclusion.effects[f][level];
        const bool measured = effect.ratio.rounds > 0;
        std::vector<std::string> row{std::to_string(std::max<size_t>(table.rows.size(), 1))};
        if (conditions)
          row.push_back(shortened(describe_conditions(study, plan.points[conclusion.points[0]].choice), 60));
        row.insert(row.end(), {shortened(study.factors[f].name, kLongestLabel),
                               shortened(study.factors[f].levels[level].label, kLongestLabel),
                               measured ? estimate_text(effect.ratio) : "", std::string(word_of(effect.verdict)),
                               measured ? ratio_text(effect.min) : "", measured ? ratio_text(effect.max) : "",
                               measured ? std::to_string(effect.contexts) : ""});
        table.rows.push_back(std::move(row));
      }
  return table;
}

TextBlock dropped_table(const Study& study, const Plan& plan) {
  TextBlock table{.title = "dropped", .rows = {{"point", "why it cannot run"}}, .align = "ll"};
  for (const DroppedPoint& point : plan.dropped)
    table.rows.push_back({describe_choice(study, point.choice), point.reason});
  return table;
}

TextBlock same_table(const Study& study, const Plan& plan) {
  TextBlock table{.title = "the same run as another point", .rows = {{"point", "is run as", "why"}}, .align = "lll"};
  for (const SamePoint& same : plan.same)
    table.rows.push_back({describe_choice(study, same.choice), describe_choice(study, plan.points[same.point].choice),
                          same.why.empty() ? "its configuration resolves to the same values" : same.why});
  return table;
}

std::string extent_text(const Study& study, const Plan& plan, const Summary& summary) {
  const auto designed = static_cast<int64_t>(plan.points.size() + plan.same.size() + plan.dropped.size());
  std::string text = fmt::format("{} ({})", counted(designed, "point"), word_of(study.design));
  if (!plan.same.empty()) text += fmt::format(", of which {} are the same run as others", plan.same.size());
  if (!plan.dropped.empty()) text += fmt::format(", of which {} can run", plan.points.size());
  text += fmt::format(
      "; {}{} of runs of {} steps, the first {} not measured; {} of {} runs done", counted(summary.rounds, "round"),
      study.auto_repeats ? fmt::format(" and more until all intervals are within {:g} %,", 100 * study.interval_width)
                         : "",
      study.steps, study.warmup_steps, summary.done, summary.runs);
  if (summary.failed > 0) text += fmt::format("; {} failed", counted(summary.failed, "point"));
  if (summary.other_rows > 0)
    text += fmt::format("; {} of other points or repeats left out", counted(summary.other_rows, "earlier result"));
  return text;
}

std::string csv_report(const Study& study, const Plan& plan, const Summary& summary) {
  std::vector<std::string> head{"point"};
  for (const Factor& factor : study.factors) head.push_back(factor.name);
  for (const char* name :
       {"ranks", "launcher", "rounds_done", "status", "reason", "adjusted", "ratio", "ratio_low", "ratio_high", "p",
        "corrected_p", "verdict", "best", "hidden", "hidden_low", "hidden_high", "memory_bytes", "agrees"})
    head.emplace_back(name);
  for (const std::string& metric : summary.metrics)
    for (const char* what : {"median", "min", "max"}) head.push_back(metric + "_" + what);
  std::string text;
  text += csv_line(head);

  for (size_t i = 0; i < plan.points.size(); ++i) {
    const Point& point = plan.points[i];
    const PointSummary& s = summary.points[i];
    std::vector<std::string> row{point.id};
    for (std::string& label : labels_of(study, point.choice)) row.push_back(std::move(label));
    const char* status = !s.failure.empty()         ? "failed"
                         : s.done >= summary.rounds ? "done"
                         : s.done > 0               ? "begun"
                                                    : "planned";
    row.insert(row.end(), {std::to_string(point.launch.ranks), std::string(word_of(point.launch.launcher)),
                           std::to_string(s.done), status, s.failure.empty() ? s.disagreement : s.failure});
    const auto add = [&]<class Of>(const Of* of, auto... parts) {
      for (const auto part : {parts...}) row.push_back(of ? fmt::format("{}", of->*part) : "");
    };
    const Estimate* ratio = s.ratio(study.metric);
    row.push_back(s.adjusted ? fmt::format("{}", *s.adjusted) : "");
    add(ratio, &Estimate::value, &Estimate::low, &Estimate::high, &Estimate::p);
    add(ratio ? &s : nullptr, &PointSummary::corrected_p);
    row.emplace_back(word_of(s.verdict));
    row.emplace_back(summary.wins(i) ? "best" : summary.may_be_best(i) ? "tied" : "");
    add(s.hidden ? &*s.hidden : nullptr, &Estimate::value, &Estimate::low, &Estimate::high);
    row.push_back(std::to_string(point.memory_bytes));
    row.push_back(s.done == 0 || !study.check_agreement ? "" : s.disagreement.empty() ? "yes" : "no");
    for (const std::string& name : summary.metrics) add(s.find(name), &Sample::median, &Sample::min, &Sample::max);
    text += csv_line(row);
  }
  for (const DroppedPoint& point : plan.dropped) {
    std::vector<std::string> row{""};
    for (std::string& label : labels_of(study, point.choice)) row.push_back(std::move(label));
    row.insert(row.end(), {"", "", "0", "dropped", point.reason});
    row.resize(head.size());
    text += csv_line(row);
  }
  return text;
}

}  // namespace trivet
