#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <functional>
#include <ranges>

#include "engine/study/report.h"

namespace trivet {
namespace {

// Factors that have something to tell apart.
std::vector<size_t> varied(const Study& study) {
  std::vector<size_t> factors;
  for (size_t i = 0; i < study.factors.size(); ++i)
    if (study.factors[i].levels.size() > 1) factors.push_back(i);
  return factors;
}

std::string cell_of(const PointSummary& point, const std::string& metric) {
  const auto value = point.median(metric);
  return value ? metric_text(metric, *value) : "";
}

std::string ratio_cell(const PointSummary& point) {
  if (!point.ratio) return "";
  const Sample& ratio = *point.ratio;
  return ratio.n < 2
             ? ratio_text(ratio.median)
             : fmt::format("{} ({}-{})", ratio_text(ratio.median), ratio_text(ratio.min), ratio_text(ratio.max));
}

std::string note_of(const PointSummary& point) {
  const std::string note = !point.failure.empty()        ? "failed: " + point.failure
                           : !point.disagreement.empty() ? "LOSS DIFFERS: " + point.disagreement
                                                         : "";
  return shortened(note, 200);  // all of it is in the CSV, in results.jsonl and in the report's list
}

// A column of the result table: a part of the step.
struct Share {
  std::string name;
  const char* unit;  // a metric in the same one
  std::function<std::optional<double>(const PointSummary&)> of;
  const char* ranged = nullptr;  // the metric whose range is shown, too: a difference of noisy numbers
};

std::string share_cell(const Share& share, const PointSummary& point) {
  const auto value = share.of(point);
  if (!value) return "";
  const std::string text = metric_text(share.unit, *value);
  const Sample* sample = share.ranged ? point.find(share.ranged) : nullptr;
  return !sample || sample->n < 2 ? text
                                  : fmt::format("{} ({} to {})", text, metric_text(share.unit, sample->min),
                                                metric_text(share.unit, sample->max));
}

// The shares that are above 0 at some point.
std::vector<Share> shown_shares(const Study& study, const Summary& summary) {
  std::vector<Share> shares;
  const auto add = [&](std::string name, const char* unit, auto of) {
    if (std::ranges::any_of(summary.points, [&](const PointSummary& point) { return of(point).value_or(0) != 0; }))
      shares.push_back({std::move(name), unit, of});
  };
  const auto metric = [&](const char* name, const char* key) {
    if (study.metric != key) add(name, key, [key](const PointSummary& point) { return point.median(key); });
  };
  metric("exposed time", "exposed_seconds");
  metric("exposed", "exposed_fraction");
  metric("wait", "wait_fraction");
  for (const char* comm_class : {"tensor", "pipeline", "data"})
    add(comm_class, "exposed_fraction", [comm_class](const PointSummary& point) { return point.exposed(comm_class); });
  for (const auto& [name, key] : {std::pair("hidden", "hidden_fraction"), std::pair("compute", "compute_inflation")}) {
    const size_t before = shares.size();
    metric(name, key);
    if (shares.size() > before) shares.back().ranged = key;
  }
  metric("bubble", "bubble_fraction");
  return shares;
}

// Markdown tables have no line breaks and no bars, and text is not to become markup.
std::string markdown_cell(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\n' || c == '\r') out += ' ';
    else {
      if (std::string_view("|\\`*_[]<>#").find(c) != std::string_view::npos) out += '\\';
      out += c;
    }
  }
  return out;
}

std::string csv_cell(std::string_view text) {
  if (text.find_first_of("\",\r\n") == std::string_view::npos) return std::string(text);
  std::string out = "\"";
  for (const char c : text) out += c == '"' ? std::string("\"\"") : std::string(1, c);
  return out + '"';
}

void csv_row(std::string& to, const std::vector<std::string>& cells) {
  for (size_t i = 0; i < cells.size(); ++i) to += (i == 0 ? "" : ",") + csv_cell(cells[i]);
  to += "\r\n";
}

std::string number(double value) { return fmt::format("{}", value); }

}  // namespace

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

TextBlock result_table(const Study& study, const Plan& plan, const Summary& summary) {
  TextBlock table{.title = "results"};
  for (const size_t f : varied(study)) table.column(study.factors[f].name, 'l');
  table.column("runs", 'r');
  table.column(metric_name(study.metric), 'r');
  table.column("spread", 'r');
  table.column("ratio to baseline", 'r');
  const std::vector<Share> shares = shown_shares(study, summary);
  for (const Share& share : shares) table.column(share.name, 'r');
  table.column("memory a rank", 'r');
  if (study.check_agreement) table.column("loss", 'l');
  const bool notes = summary.failed + summary.disagreements > 0;
  if (notes) table.column("", 'l');

  for (size_t i = 0; i < plan.points.size(); ++i) {
    const PointSummary& point = summary.points[i];
    std::vector<std::string> row;
    for (const size_t f : varied(study)) row.push_back(study.factors[f].levels[plan.points[i].choice[f]].label);
    row.push_back(fmt::format("{}/{}", point.done, study.repeats));
    row.push_back(cell_of(point, study.metric));
    const Sample* sample = point.find(study.metric);
    row.push_back(!sample || sample->n < 2 ? "" : percent_text(sample->spread()));
    row.push_back(point.baseline ? "baseline" : ratio_cell(point));
    for (const Share& share : shares) row.push_back(share_cell(share, point));
    row.push_back(bytes_text(plan.points[i].memory_bytes));
    if (study.check_agreement) row.push_back(point.done == 0 ? "" : point.disagreement.empty() ? "agrees" : "DIFFERS");
    if (notes) row.push_back(note_of(point));
    table.rows.push_back(std::move(row));
  }
  return table;
}

std::string legend_text(const Summary& summary) {
  std::string text;
  if (summary.metrics.contains("exposed_fraction"))
    text +=
        "Exposed: communication on the wire while a rank computes nothing; wait: waiting for a peer's call meanwhile, "
        "which is no part of it. ";
  if (summary.metrics.contains("hidden_fraction"))
    text +=
        "Hidden: of the time that the link adds to a step without overlap, what overlap takes away again (1 - (step - "
        "step without a link) / (the same without overlap)). ";
  if (summary.metrics.contains("compute_inflation"))
    text += "Compute: the time a rank computes, over the same without overlap: what overlap costs in cores and memory.";
  return text;
}

TextBlock effect_table(const Study& study, const Summary& summary) {
  TextBlock table{.title = fmt::format("main effects on {}: a level over its factor's baseline", study.metric),
                  .rows = {{"factor", "level", "effect", "from", "to", "settings of the others"}},
                  .align = "llrrrr"};
  for (const size_t f : varied(study))
    for (size_t level = 0; level < study.factors[f].levels.size(); ++level) {
      const Effect& effect = summary.effects[f][level];
      const bool baseline = level == study.factors[f].baseline, measured = !baseline && effect.contexts > 0;
      table.rows.push_back({study.factors[f].name, study.factors[f].levels[level].label,
                            measured   ? ratio_text(effect.mean)
                            : baseline ? "baseline"
                                       : "not measured",
                            measured ? ratio_text(effect.min) : "", measured ? ratio_text(effect.max) : "",
                            measured ? std::to_string(effect.contexts) : ""});
    }
  return table;
}

TextBlock dropped_table(const Study& study, const Plan& plan) {
  TextBlock table{.title = "dropped", .rows = {{"point", "why it cannot run"}}, .align = "ll"};
  for (const DroppedPoint& point : plan.dropped)
    table.rows.push_back({describe_choice(study, point.choice), point.reason});
  return table;
}

std::string markdown(const TextBlock& table) {
  const auto line = [](const std::vector<std::string>& cells) {
    std::string text = "|";
    for (const std::string& cell : cells) text += ' ' + markdown_cell(cell) + " |";
    return text + '\n';
  };
  std::string text = line(table.rows[0]) + "|";
  for (const char alignment : table.align) text += alignment == 'r' ? "---:|" : "---|";
  text += '\n';
  for (const auto& row : table.rows | std::views::drop(1)) text += line(row);
  return text;
}

std::string extent_text(const Study& study, const Plan& plan, const Summary& summary) {
  const auto designed = static_cast<int64_t>(plan.points.size() + plan.dropped.size());
  std::string text = fmt::format("{} ({})", counted(designed, "point"), word_of(study.design));
  if (!plan.dropped.empty()) text += fmt::format(", of which {} can run", plan.points.size());
  text += fmt::format("; {} of {} steps, the first {} not measured; {} of {} runs done",
                      counted(study.repeats, "repeat"), study.steps, study.warmup_steps, summary.done, summary.runs);
  if (summary.failed > 0) text += fmt::format("; {} failed", counted(summary.failed, "point"));
  if (summary.other_rows > 0)
    text += fmt::format("; {} of other points or repeats left out", counted(summary.other_rows, "earlier result"));
  return text;
}

std::vector<std::string> winner_texts(const Study& study, const Plan& plan, const Summary& summary) {
  std::vector<std::string> texts;
  for (const Winner& winner : summary.winners) {
    const PointSummary& best = summary.points[winner.point];
    std::string text = fmt::format("{}: {} {}", describe_chosen(study, plan.points[winner.point].choice),
                                   metric_name(study.metric), metric_text(study.metric, *best.median(study.metric)));
    if (best.baseline) text += ", which is the baseline";
    else if (best.ratio) text += fmt::format(", {} of the baseline", ratio_text(best.ratio->median));
    text += '.';
    const std::string conditions = describe_conditions(study, plan.points[winner.point].choice);
    if (!conditions.empty()) text = fmt::format("With {}: {}", conditions, text);
    if (winner.others == 0) text += " There is nothing to compare it with yet.";
    else if (best.done < 2) text += " One run a point does not tell how much of it is noise.";
    else if (winner.rivals.empty()) text += " It was better than all others in every round.";
    else {
      text += fmt::format(" In some round it was no better than {} of {} others:", winner.rivals.size(), winner.others);
      constexpr size_t kMost = 3;
      for (size_t i = 0; i < std::min(kMost, winner.rivals.size()); ++i)
        text += fmt::format("{} {}", i == 0 ? "" : ";", describe_chosen(study, plan.points[winner.rivals[i]].choice));
      text += winner.rivals.size() > kMost ? "; …" : ".";
    }
    texts.push_back(std::move(text));
  }
  if (texts.empty()) texts.push_back("No point has a finished run that reports " + study.metric + ".");
  return texts;
}

std::string markdown_report(const Study& study, const Plan& plan, const Summary& summary) {
  std::string text =
      fmt::format("# Study {}\n\n{}.\n\n", markdown_cell(study.name), markdown_cell(extent_text(study, plan, summary)));
  text += "## Best\n\n";
  for (const std::string& winner : winner_texts(study, plan, summary)) text += "* " + markdown_cell(winner) + '\n';
  text += '\n';
  text += "## Points\n\n" + markdown(result_table(study, plan, summary));
  if (const std::string legend = legend_text(summary); !legend.empty()) text += '\n' + markdown_cell(legend) + '\n';
  text += fmt::format(
              "\n## Main effects on {}\n\nEach level over the factor's baseline level, the geometric mean over "
              "the settings of the other factors, and its range.\n\n",
              markdown_cell(study.metric)) +
          markdown(effect_table(study, summary));
  if (!plan.dropped.empty()) text += "\n## Points that cannot run\n\n" + markdown(dropped_table(study, plan));
  for (const std::string& machine : summary.machines) text += "\nMeasured on " + markdown_cell(machine) + ".\n";
  return text;
}

std::string csv_report(const Study& study, const Plan& plan, const Summary& summary) {
  std::vector<std::string> head{"point"};
  for (const Factor& factor : study.factors) head.push_back(factor.name);
  for (const char* name : {"ranks", "launcher", "runs_done", "status", "reason", "ratio_median", "ratio_min",
                           "ratio_max", "spread", "memory_bytes", "agrees"})
    head.emplace_back(name);
  for (const std::string& metric : summary.metrics)
    for (const char* what : {"median", "min", "max"}) head.push_back(metric + "_" + what);
  std::string text;
  csv_row(text, head);

  for (size_t i = 0; i < plan.points.size(); ++i) {
    const Point& point = plan.points[i];
    const PointSummary& s = summary.points[i];
    std::vector<std::string> row{point.id};
    for (std::string& label : labels_of(study, point.choice)) row.push_back(std::move(label));
    const char* status = !s.failure.empty()        ? "failed"
                         : s.done == study.repeats ? "done"
                         : s.done > 0              ? "begun"
                                                   : "planned";
    row.insert(row.end(), {std::to_string(point.ranks), std::string(word_of(point.launcher)), std::to_string(s.done),
                           status, s.failure.empty() ? s.disagreement : s.failure});
    const auto add = [&](const Sample* sample) {
      for (const auto value : {&Sample::median, &Sample::min, &Sample::max})
        row.push_back(sample ? number(sample->*value) : "");
    };
    add(s.ratio ? &*s.ratio : nullptr);
    const Sample* metric = s.find(study.metric);
    row.push_back(metric ? number(metric->spread()) : "");
    row.push_back(std::to_string(point.memory_bytes));
    row.push_back(s.done == 0 || !study.check_agreement ? "" : s.disagreement.empty() ? "yes" : "no");
    for (const std::string& name : summary.metrics) add(s.find(name));
    csv_row(text, row);
  }
  for (const DroppedPoint& point : plan.dropped) {
    std::vector<std::string> row{""};
    for (std::string& label : labels_of(study, point.choice)) row.push_back(std::move(label));
    row.insert(row.end(), {"", "", "0", "dropped", point.reason});
    row.resize(head.size());
    csv_row(text, row);
  }
  return text;
}

}  // namespace trivet
