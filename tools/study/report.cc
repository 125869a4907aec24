#include "tools/study/report.h"

#include <algorithm>
#include <fmt/format.h>
#include <ranges>

#include "base/svg.h"

namespace trivet {
namespace {

// The pictures bring their own.
constexpr const char* kCss = R"(
:root{color-scheme:light dark;--ink:#1d2329;--soft:#5b6670;--line:#e3e7ea;--paper:#fff;--wash:#f5f7f8;--good:#1f7a5c;--link:#245ea8}
@media screen and (prefers-color-scheme:dark){:root{--ink:#e6eaed;--soft:#9aa6b0;--line:#2c343b;--paper:#14181b;--wash:#1c2226;--good:#3fb28a;--link:#7fb0ee}}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.55 system-ui,"Helvetica Neue",Arial,sans-serif}
main{max-width:1220px;margin:0 auto;padding:40px 20px 80px}
h1{font-size:30px;line-height:1.2;margin:0 0 4px;letter-spacing:-.01em}h2{font-size:19px;margin:44px 0 10px}
p{margin:8px 0}.soft,figcaption{color:var(--soft)}figcaption,small{font-size:14px}
.box{border-left:4px solid var(--good);background:var(--wash);padding:12px 16px;margin:22px 0}
figure{margin:14px 0;overflow-x:auto}figure svg{max-width:100%;height:auto;display:block}
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:14px;font-variant-numeric:tabular-nums;line-height:1.35}
th,td{padding:6px 14px 6px 0;border-bottom:1px solid var(--line);text-align:left;vertical-align:top}
th{color:var(--soft);font-weight:600}.r{text-align:right}td.r{white-space:nowrap}td.note{min-width:200px}

a{color:var(--link)}td{overflow-wrap:anywhere}
pre,code{font:13px/1.45 ui-monospace,Menlo,Consolas,monospace}pre{background:var(--wash);padding:14px;overflow-x:auto;white-space:pre-wrap;overflow-wrap:anywhere}
details{margin:14px 0}summary{cursor:pointer;font-weight:600}
@media print{main{max-width:none;padding:0}body{font-size:11pt}h2{break-after:avoid}figure,tr,.box{break-inside:avoid}.wide,figure{overflow:visible}table{font-size:7pt}td,th,td.r{white-space:normal;padding:3px 7px 3px 0}td.note{min-width:0}}
)";

// A part of the report: a picture, which the Markdown has not, a table, or both.
struct Section {
  std::string heading, picture, caption;
  TextBlock table;
  std::string note;
};

TextBlock points_with_folders(const Study& study, const Plan& plan, const Summary& summary) {
  TextBlock table = result_table(study, plan, summary);
  table.column("files", 'l');
  for (size_t i = 0; i < plan.points.size(); ++i) table.rows[i + 1].push_back(summary.points[i].folder);
  return table;
}

// Failed runs, and points with other losses than they must have.
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
        fmt::format("{}{} ({})", text.empty() ? "" : "; ", level.label, settings.empty() ? "as the base" : settings);
  }
  if (!factor.changes_numbers) text += "; changes no numbers";
  if (factor.condition) text += "; a condition: points are compared where it is the same";
  return text;
}

TextBlock method_table(const Study& study, const Plan& plan, const Summary& summary, const std::vector<RunRow>& rows) {
  TextBlock table{.title = "", .rows = {{"what", "how"}, {"base", study.base}}, .align = "ll"};
  for (const Factor& factor : study.factors) table.rows.push_back({factor.name, levels_text(factor)});
  table.rows.push_back(
      {"losses", !study.check_agreement
                     ? "not compared"
                     : fmt::format("{} in all repeats of all points that differ only in factors that change "
                                   "no numbers",
                                   study.tolerance == 0 ? "bitwise the same"
                                                        : fmt::format("within {:g} of each other", study.tolerance))});
  table.rows.push_back(
      {"order", fmt::format("rounds of all points in random order (seed {}), a baseline again after at most {} runs; "
                            "results.jsonl has the runs in their order",
                            study.seed, study.baseline_every)});
  for (const std::string& machine : summary.machines) table.rows.push_back({"measured on", machine});
  if (rows.empty()) return table;
  const auto [first, last] = std::ranges::minmax(rows, {}, &RunRow::started);
  table.rows.push_back({"when", fmt::format("first run {}, last run {}", first.started, last.started)});
  const auto example = std::ranges::find(rows, plan.points[plan.baseline.value_or(0)].id, &RunRow::point);
  table.rows.push_back({"a run's command", (example == rows.end() ? rows[0] : *example).command});
  return table;
}

std::vector<Section> sections_of(const Study& study, const Plan& plan, const Summary& summary,
                                 const std::vector<RunRow>& rows) {
  const std::string& metric = study.metric;
  return {
      {"Points", ratio_plot(study, plan, summary),
       "Bars: the ratio to the baseline runs before and after, geometric mean over the rounds; whiskers: its 95 % "
       "interval (Student's t). Green: the best, or those tied for it and not behind the baseline; grey: the baseline "
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
       "average over the ranks; the number is its share. Paler, beside it: waiting for peers.",
       step_table(study, plan, summary), step_legend()},
      {"Communication by class", "", "", comm_table(study, plan, summary), comm_legend()},
      {"Points that are the same run as another one", "", "", same_table(study, plan), ""},
      {"Points that cannot run", "", "", dropped_table(study, plan), ""},
      {"What went wrong", "", "", wrong_table(study, plan, summary, rows), ""},
      {"How it was measured", "", "", method_table(study, plan, summary, rows), ""},
  };
}

// ---- HTML

std::string html_cells(const std::vector<std::string>& texts, const std::string& align, const char* tag) {
  std::string row;
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::string text = escaped(texts[i]);
    row += fmt::format("<{0}{1}>{2}</{0}>", tag,
                       align[i] == 'r'        ? " class=\"r\""
                       : texts[i].size() > 60 ? " class=\"note\""
                                              : "",
                       texts[i].starts_with("runs/") ? fmt::format("<a href=\"{}\">files</a>", text) : text);
  }
  return row;
}

std::string html_section(const Section& section) {
  std::string text = fmt::format("<h2>{}</h2>\n", escaped(section.heading));
  if (!section.picture.empty())
    text +=
        fmt::format("<figure>\n{}<figcaption>{}</figcaption>\n</figure>\n", section.picture, escaped(section.caption));
  const TextBlock& table = section.table;
  text += "<div class=\"wide\"><table>\n<thead><tr>" + html_cells(table.rows[0], table.align, "th") +
          "</tr></thead>\n<tbody>\n";
  for (const auto& row : table.rows | std::views::drop(1))
    text += "<tr>" + html_cells(row, table.align, "td") + "</tr>\n";
  text += "</tbody>\n</table></div>\n";
  if (!section.note.empty()) text += fmt::format("<p class=\"soft\"><small>{}</small></p>\n", escaped(section.note));
  return text;
}

// ---- Markdown

// Tables have no line breaks and no bars, and text is not to become markup.
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

std::string markdown_section(const Section& section) {
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
  std::string out = fmt::format(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{0}</title>\n"
      "<style>{1}</style>\n</head>\n<body>\n<main>\n<h1>{0}</h1>\n<p class=\"soft\">{2}.</p>\n<div class=\"box\">\n",
      escaped("Study " + study.name), kCss, escaped(extent_text(study, plan, summary)));
  const auto small = [&](const std::string& text) { out += "<p class=\"soft\"><small>" + text + "</small></p>\n"; };
  for (const std::string& winner : winner_texts(study, plan, summary)) out += "<p>" + escaped(winner) + "</p>\n";
  for (const std::string& command : explain_commands(study, plan, summary))
    small("What its step is spent on, as the planner sees it: <code>" + escaped(command) + "</code>");
  if (const std::string resolution = resolution_text(summary); !resolution.empty()) small(escaped(resolution));
  out += "</div>\n";
  for (const Section& section : sections_of(study, plan, summary, rows))
    if (section.table.rows.size() > 1) out += html_section(section);
  return out + fmt::format("<details><summary>{}</summary><pre>{}</pre></details>\n</main>\n</body>\n</html>\n",
                           escaped(study.path), escaped(study.text));
}

std::string markdown_report(const Study& study, const Plan& plan, const Summary& summary,
                            const std::vector<RunRow>& rows) {
  std::string text = fmt::format("# Study {}\n\n{}.\n\n## Best\n\n", markdown_cell(study.name),
                                 markdown_cell(extent_text(study, plan, summary)));
  for (const std::string& winner : winner_texts(study, plan, summary)) text += "* " + markdown_cell(winner) + '\n';
  if (const std::string resolution = resolution_text(summary); !resolution.empty())
    text += '\n' + markdown_cell(resolution) + '\n';
  for (const Section& section : sections_of(study, plan, summary, rows))
    if (section.table.rows.size() > 1) text += markdown_section(section);
  return text;
}

std::string ratio_picture(const Study& study, const Plan& plan, const Summary& summary) {
  std::string picture = ratio_plot(study, plan, summary);
  picture.insert(picture.find("</style>") + 8, "\n<rect width=\"100%\" height=\"100%\" class=\"paper\"/>");
  return picture;
}

}  // namespace trivet
