#include "tools/study/report.h"

#include <algorithm>
#include <fmt/format.h>
#include <ranges>

#include "base/svg.h"

namespace trivet {
namespace {

TextBlock points_with_folders(const Study& study, const Plan& plan, const Summary& summary) {
  TextBlock table = result_table(study, plan, summary);
  table.column("files", 'l');
  for (size_t i = 0; i < plan.points.size(); ++i) table.rows[i + 1].push_back(summary.points[i].folder);
  return table;
}

// Failed runs, and points whose losses disagree with those they must match.
TextBlock wrong_table(const Study& study, const Plan& plan, const Summary& summary, const std::vector<RunRow>& rows) {
  TextBlock table{.title = "", .rows = {{"point", "repeat", "what", "how", "files"}}, .align = "lrlll"};
  for (size_t i = 0; i < plan.points.size(); ++i) {
    const std::string point = describe_choice(study, plan.points[i].choice);
    if (const std::string& text = summary.points[i].disagreement; !text.empty())
      table.rows.push_back({point, "", "LOSS DIFFERS", text, summary.points[i].folder});
    for (const RunRow& row : rows)
      if (row.point == plan.points[i].id && row.outcome != RunEnd::done)
        table.rows.push_back(
            {point, std::to_string(row.repeat), std::string(word_of(row.outcome)), row.reason, row.folder});
  }
  return table;
}

std::string levels_text(const Factor& factor) {
  std::string text;
  for (const Level& level : factor.levels) {
    std::string settings;
    for (const auto& [key, value] : level.settings)
      settings += fmt::format("{}{}={}", settings.empty() ? "" : ", ", key, value);
    text +=
        fmt::format("{}{} ({})", text.empty() ? "" : "; ", level.label, settings.empty() ? "as in the base" : settings);
  }
  if (!factor.changes_numbers) text += "; changes no numbers";
  if (factor.condition) text += "; a condition: only points with the same level are compared";
  return text;
}

TextBlock method_table(const Study& study, const Plan& plan, const Summary& summary, const std::vector<RunRow>& rows) {
  TextBlock table{.title = "", .rows = {{"what", "how"}, {"base", study.base}}, .align = "ll"};
  for (const Factor& factor : study.factors) table.rows.push_back({factor.name, levels_text(factor)});
  table.rows.push_back(
      {"losses",
       !study.check_agreement
           ? "not compared"
           : fmt::format("{} in all repeats of all points that differ only in factors that change no numbers",
                         study.tolerance == 0 ? "bitwise equal" : fmt::format("equal within {:g}", study.tolerance))});
  table.rows.push_back(
      {"order", fmt::format("rounds of all points in random order (seed {}), a baseline again after at most {} runs; "
                            "results.jsonl lists the runs in order",
                            study.seed, study.baseline_every)});
  for (const std::string& machine : summary.machines) table.rows.push_back({"measured on", machine});
  if (rows.empty()) return table;
  const auto [first, last] = std::ranges::minmax(rows, {}, &RunRow::started);
  table.rows.push_back({"when", fmt::format("first run {}, last run {}", first.started, last.started)});
  const auto example = std::ranges::find(rows, plan.points[plan.baseline.value_or(0)].id, &RunRow::point);
  table.rows.push_back({"a run's command", (example == rows.end() ? rows[0] : *example).command});
  return table;
}

std::vector<PageSection> sections_of(const Study& study, const Plan& plan, const Summary& summary,
                                     const std::vector<RunRow>& rows) {
  const std::string& metric = study.metric;
  return {
      {"Points", ratio_plot(study, plan, summary),
       "Bars: the ratio to the baseline runs before and after, geometric mean over the rounds; whiskers: its 95 % "
       "interval (Student's t). Green: the best, or those tied and not worse than the baseline; grey: the baseline "
       "(under each condition). Band: effects too small for this study to see.",
       points_with_folders(study, plan, summary),
       "A verdict compares with the baseline and is corrected for the number of points (Holm), an interval is not. The "
       "metric is the baseline's geometric mean times the ratio. All metrics are in table.csv, all steps in the file "
       "of --export. A point's files are those of its first run; its trace.json opens in ui.perfetto.dev."},
      {"Other responses", "", "", response_table(study, plan, summary), ""},
      {"Main effects on " + metric, effects_plot(study, plan, summary),
       fmt::format("{} with a level, over {} with the factor's baseline level (grey): the geometric mean over the "
                   "settings of the other factors, under each condition, with its 95 % interval over the rounds.",
                   metric, metric),
       effect_table(study, plan, summary), "From, to: the range over the settings of the other factors."},
      {"Time of a step", exposed_plot(study, plan, summary),
       "Communication on the wire that a rank's own compute did not overlap, by class, as a part of the step, on "
       "average over the ranks; the number is its share. Paler, next to it: waiting for peers.",
       step_table(study, plan, summary), step_legend()},
      {"Communication by class", "", "", comm_table(study, plan, summary), comm_legend()},
      {"Points that are the same run as another one", "", "", same_table(study, plan), ""},
      {"Points that cannot run", "", "", dropped_table(study, plan), ""},
      {"What went wrong", "", "", wrong_table(study, plan, summary, rows), ""},
      {"How it was measured", "", "", method_table(study, plan, summary, rows), ""},
  };
}

// ---- Markdown

// A table cell cannot contain line breaks or bars, and text must not become markup.
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

std::string markdown_section(const PageSection& section) {
  const auto line = [](const std::vector<std::string>& cells) {
    std::string text = "|";
    for (const std::string& cell : cells) text += ' ' + markdown_cell(cell) + " |";
    return text + '\n';
  };
  std::string text = fmt::format("\n## {}\n\n", markdown_cell(section.heading)) + line(section.table.rows[0]) + "|";
  for (const char alignment : section.table.align) text += alignment == 'r' ? "---:|" : "---|";
  text += '\n';
  for (const auto& row : section.table.rows | std::views::drop(1)) text += line(row);
  return section.note.empty() ? text : text + '\n' + section.note + '\n';
}

}  // namespace

std::string html_report(const Study& study, const Plan& plan, const Summary& summary, const std::vector<RunRow>& rows) {
  std::string out = "<p class=\"soft\">" + escaped(extent_text(study, plan, summary)) + ".</p>\n<div class=\"box\">\n";
  const auto small = [&](const std::string& text) { out += "<p class=\"soft\"><small>" + text + "</small></p>\n"; };
  for (const std::string& winner : winner_texts(study, plan, summary)) out += "<p>" + escaped(winner) + "</p>\n";
  if (const std::string resolution = resolution_text(summary); !resolution.empty()) small(escaped(resolution));
  out += "</div>\n";
  for (const PageSection& section : sections_of(study, plan, summary, rows))
    if (section.table.rows.size() > 1) out += html_section(section);
  return html_page("Study " + study.name, out + html_details(study.path, study.text));
}

std::string markdown_report(const Study& study, const Plan& plan, const Summary& summary,
                            const std::vector<RunRow>& rows) {
  std::string text = fmt::format("# Study {}\n\n{}.\n\n## Best\n\n", markdown_cell(study.name),
                                 markdown_cell(extent_text(study, plan, summary)));
  for (const std::string& winner : winner_texts(study, plan, summary)) text += "* " + markdown_cell(winner) + '\n';
  if (const std::string resolution = resolution_text(summary); !resolution.empty())
    text += '\n' + markdown_cell(resolution) + '\n';
  for (const PageSection& section : sections_of(study, plan, summary, rows))
    if (section.table.rows.size() > 1) text += markdown_section(section);
  return text;
}

std::string ratio_picture(const Study& study, const Plan& plan, const Summary& summary) {
  std::string picture = ratio_plot(study, plan, summary);
  picture.insert(picture.find("</style>") + 8, "\n<rect width=\"100%\" height=\"100%\" class=\"paper\"/>");
  return picture;
}

}  // namespace trivet
