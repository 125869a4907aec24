#include "tools/study/report.h"

#include <algorithm>
#include <filesystem>
#include <fmt/format.h>
#include <ranges>

#include "base/svg.h"

namespace trivet {
namespace {

// The pictures bring their own.
constexpr const char* kCss = R"(
:root{color-scheme:light dark;--ink:#1d2329;--soft:#5b6670;--line:#e3e7ea;--paper:#fff;--wash:#f5f7f8;--good:#1f7a5c;--bad:#b3261e;--link:#245ea8}
@media screen and (prefers-color-scheme:dark){:root{--ink:#e6eaed;--soft:#9aa6b0;--line:#2c343b;--paper:#14181b;--wash:#1c2226;--good:#3fb28a;--bad:#f2817a;--link:#7fb0ee}}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.55 system-ui,"Helvetica Neue",Arial,sans-serif}
main{max-width:1220px;margin:0 auto;padding:40px 20px 80px}
h1{font-size:30px;line-height:1.2;margin:0 0 4px;letter-spacing:-.01em}h2{font-size:19px;margin:44px 0 10px}
p{margin:8px 0}.soft,figcaption{color:var(--soft)}figcaption,small{font-size:14px}
.box{border-left:4px solid var(--good);background:var(--wash);padding:12px 16px;margin:22px 0}.box.bad{border-color:var(--bad)}
figure{margin:14px 0;overflow-x:auto}figure svg{max-width:100%;height:auto;display:block}
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:14px;font-variant-numeric:tabular-nums;line-height:1.35}
th,td{padding:6px 14px 6px 0;border-bottom:1px solid var(--line);text-align:left;vertical-align:top}
th{color:var(--soft);font-weight:600}.r{text-align:right}td.r{white-space:nowrap}td.note{min-width:200px}
tr.best td{font-weight:600;color:var(--good)}.bad{color:var(--bad)}
a{color:var(--link)}dl{display:grid;grid-template-columns:max-content 1fr;gap:4px 18px;font-size:15px}dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}
pre,code{font:13px/1.45 ui-monospace,Menlo,Consolas,monospace}pre{background:var(--wash);padding:14px;overflow-x:auto;white-space:pre-wrap;overflow-wrap:anywhere}
details{margin:14px 0}summary{cursor:pointer;font-weight:600}
@media print{main{max-width:none;padding:0}body{font-size:11pt}h2{break-after:avoid}figure,tr,.box{break-inside:avoid}.wide,figure{overflow:visible}table{font-size:7pt}td,th,td.r{white-space:normal;padding:3px 7px 3px 0}td.note{min-width:0}}
)";

class Page {
 public:
  Page(const Study& study, const Plan& plan, const Summary& summary, const std::vector<RunRow>& rows)
      : study_(study), plan_(plan), summary_(summary), rows_(rows) {}

  std::string write() {
    const std::string title = "Study " + study_.name;
    out_ = fmt::format(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
        "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{}</title>\n"
        "<style>{}</style>\n</head>\n<body>\n<main>\n",
        escaped(title), kCss);
    put("<h1>{}</h1>\n<p class=\"soft\">{}.</p>\n", escaped(title), escaped(extent_text(study_, plan_, summary_)));
    out_ += "<div class=\"box\">\n";
    for (const std::string& winner : winner_texts(study_, plan_, summary_)) put("<p>{}</p>\n", escaped(winner));
    for (const std::string& command : explain_commands(study_, plan_, summary_))
      put("<p class=\"soft\"><small>What its step is spent on, as the planner sees it: <code>{}</code></small></p>\n",
          escaped(command));
    if (const std::string resolution = resolution_text(summary_); !resolution.empty())
      put("<p class=\"soft\"><small>{}</small></p>\n", escaped(resolution));
    out_ += "</div>\n";
    disagreements();
    pictures();
    points();
    not_run();
    method();
    out_ += "</main>\n</body>\n</html>\n";
    return std::move(out_);
  }

 private:
  template <class... Args>
  void put(fmt::format_string<Args...> format, Args&&... args) {
    out_ += fmt::format(format, std::forward<Args>(args)...);
  }

  void disagreements() {
    if (summary_.disagreements == 0) return;
    out_ += "<div class=\"box bad\"><strong class=\"bad\">Losses differ that must agree.</strong><ul>\n";
    for (size_t i = 0; i < plan_.points.size(); ++i)
      if (!summary_.points[i].disagreement.empty())
        put("<li>{}: {}</li>\n", escaped(describe_choice(study_, plan_.points[i].choice)),
            escaped(summary_.points[i].disagreement));
    out_ += "</ul></div>\n";
  }

  void figure(const std::string& heading, const std::string& picture, const std::string& caption) {
    if (picture.empty()) return;
    put("<h2>{}</h2>\n<figure>\n{}<figcaption>{}</figcaption>\n</figure>\n", escaped(heading), picture,
        escaped(caption));
  }
  void pictures() {
    if (summary_.done == 0) return;
    figure("Points", ratio_plot(study_, plan_, summary_),
           "Bars: the ratio to the baseline runs before and after, geometric mean over the rounds; whiskers: its 95 % "
           "interval (Student's t). Green: the best, or those tied for it; grey: the baseline (under each condition). "
           "Band: "
           "effects too small for this study to see.");
    figure("Exposed communication and bucket size", bucket_plot(study_, plan_, summary_),
           "Dots: median over the rounds of the data-parallel communication that a step exposes, bars the range of the "
           "rounds.");
    figure("Main effects", effects_plot(study_, plan_, summary_),
           fmt::format("{} with a level, over {} with the factor's baseline level (grey); {} is better. Dots are the "
                       "geometric mean over the settings of the other factors, under each condition; bands are 95 % "
                       "intervals over the rounds.",
                       study_.metric, study_.metric, is_better_high(study_.metric) ? "more" : "less"));
    put("<div class=\"wide\">{}</div>\n", table(effect_table(study_, plan_, summary_)));
    figure("Exposed communication", exposed_plot(study_, plan_, summary_),
           "Communication on the wire that a rank's own compute did not overlap, by class, as a part of the step, on "
           "average over the ranks; the number is its share. Paler, beside it: waiting for peers.");
  }

  static std::string cells(const std::vector<std::string>& texts, const std::string& align, const char* tag) {
    std::string row;
    for (size_t i = 0; i < texts.size(); ++i)
      row += fmt::format("<{0}{1}>{2}</{0}>", tag,
                         align[i] == 'r'        ? " class=\"r\""
                         : texts[i].size() > 60 ? " class=\"note\""
                                                : "",
                         escaped(texts[i]));
    return row;
  }
  static std::string table(const TextBlock& table) {
    std::string text = "<table>\n<thead><tr>" + cells(table.rows[0], table.align, "th") + "</tr></thead>\n<tbody>\n";
    for (const auto& row : table.rows | std::views::drop(1)) text += "<tr>" + cells(row, table.align, "td") + "</tr>\n";
    return text + "</tbody>\n</table>\n";
  }

  std::string links_of(const PointSummary& point) const {
    if (point.folder.empty()) return "";
    std::string links;
    for (const char* file : {"metrics.jsonl", "trace.json"}) {
      const std::string path = point.folder + "/" + file;
      if (std::filesystem::exists(study_.out + "/" + path))
        links += fmt::format("{}<a href=\"{}\">{}</a>", links.empty() ? "" : ", ", escaped(path),
                             std::string_view(file).substr(0, std::string_view(file).find('.')));
    }
    return links;
  }

  void note(const std::string& text) { put("<p class=\"soft\"><small>{}</small></p>\n", escaped(text)); }

  void points() {
    const TextBlock results = result_table(study_, plan_, summary_);
    put("<h2>Table</h2>\n<div class=\"wide\"><table>\n<thead><tr>{}<th>files</th></tr></thead>\n<tbody>\n",
        cells(results.rows[0], results.align, "th"));
    for (size_t i = 0; i < plan_.points.size(); ++i)
      put("<tr{}>{}<td>{}</td></tr>\n", summary_.may_be_best(i) ? " class=\"best\"" : "",
          cells(results.rows[i + 1], results.align, "td"), links_of(summary_.points[i]));
    out_ +=
        "</tbody>\n</table></div>\n<p class=\"soft\"><small>A verdict compares with the baseline and is corrected for "
        "the number of points (Holm), an interval is not. The metric is the baseline's geometric mean times the ratio. "
        "All metrics are in table.csv, all steps in the file of --export. A trace opens in "
        "ui.perfetto.dev.</small></p>\n";
    if (const TextBlock responses = response_table(study_, plan_, summary_); responses.rows.size() > 1)
      put("<h2>Other responses</h2>\n<div class=\"wide\">{}</div>\n", table(responses));
    put("<h2>Time of a step</h2>\n<div class=\"wide\">{}</div>\n", table(step_table(study_, plan_, summary_)));
    note(step_legend());
    if (const TextBlock classes = comm_table(study_, plan_, summary_); classes.rows.size() > 1) {
      put("<h2>Communication by class</h2>\n<div class=\"wide\">{}</div>\n", table(classes));
      note(comm_legend());
    }
  }

  void not_run() {
    if (!plan_.same.empty())
      put("<h2>Points that are the same run as another one</h2>\n<div class=\"wide\">{}</div>\n",
          table(same_table(study_, plan_)));
    if (!plan_.dropped.empty())
      put("<h2>Points that cannot run</h2>\n<div class=\"wide\">{}</div>\n", table(dropped_table(study_, plan_)));
    if (summary_.failed == 0) return;
    out_ += "<h2>Failed runs</h2>\n<ul>\n";
    for (const RunRow& row : rows_) {
      const auto point = std::ranges::find(plan_.points, row.point, &Point::id);
      if (row.outcome == RunEnd::done || point == plan_.points.end()) continue;
      put("<li>{}, repeat {}, {}: {} (<a href=\"{}/stderr.log\">stderr</a>)</li>\n",
          escaped(describe_choice(study_, point->choice)), row.repeat, word_of(row.outcome), escaped(row.reason),
          escaped(row.folder));
    }
    out_ += "</ul>\n";
  }

  void entry(const std::string& what, const std::string& text) {
    put("<dt>{}</dt><dd>{}</dd>\n", escaped(what), escaped(text));
  }
  void method() {
    out_ += "<h2>How it was measured</h2>\n<dl>\n";
    entry("base", study_.base);
    for (const Factor& factor : study_.factors) {
      std::string levels;
      for (const Level& level : factor.levels) {
        levels += fmt::format("{}{}", levels.empty() ? "" : "; ", level.label);
        std::string settings;
        for (const Setting& setting : level.settings)
          settings += fmt::format("{}{}={}", settings.empty() ? "" : ", ", setting.key, setting.value);
        if (level.settings.empty()) settings = "as the base";
        levels += " (" + settings + ")";
      }
      entry(factor.name, levels + (factor.changes_numbers ? "" : "; changes no numbers") +
                             (factor.condition ? "; a condition: points are compared where it is the same" : ""));
    }
    entry("losses",
          !study_.check_agreement ? "not compared"
          : study_.tolerance == 0
              ? "bitwise the same in all repeats of all points that differ only in factors that change no numbers"
              : fmt::format("within {:g} of each other in all repeats of all points that differ only in factors "
                            "that change no numbers",
                            study_.tolerance));
    entry("order",
          fmt::format("rounds of all points in random order (seed {}), a baseline again after at most {} runs; "
                      "results.jsonl has the runs in their order",
                      study_.seed, study_.baseline_every));
    for (const std::string& machine : summary_.machines) entry("measured on", machine);
    if (summary_.machines.size() > 1)
      entry("several machines", "runs of two calls of the program are never divided by each other");
    std::string first, last;
    for (const RunRow& row : rows_) {
      if (first.empty() || row.started < first) first = row.started;
      last = std::max(last, row.started);
    }
    if (!first.empty()) entry("when", fmt::format("first run {}, last run {}", first, last));
    out_ += "</dl>\n";
    const RunRow* example = nullptr;
    for (const RunRow& row : rows_)
      if (plan_.baseline && row.point == plan_.points[*plan_.baseline].id) example = &row;
    if (!example && !rows_.empty()) example = &rows_.front();
    if (example) put("<p>The command of a run of the baseline:</p>\n<pre>{}</pre>\n", escaped(example->command));
    put("<details><summary>{}</summary><pre>{}</pre></details>\n", escaped(study_.path), escaped(study_.text));
  }

  const Study& study_;
  const Plan& plan_;
  const Summary& summary_;
  const std::vector<RunRow>& rows_;
  std::string out_;
};

}  // namespace

std::string html_report(const Study& study, const Plan& plan, const Summary& summary, const std::vector<RunRow>& rows) {
  return Page(study, plan, summary, rows).write();
}

std::string ratio_picture(const Study& study, const Plan& plan, const Summary& summary) {
  std::string picture = ratio_plot(study, plan, summary);
  picture.insert(picture.find("</style>") + 8, "\n<rect width=\"100%\" height=\"100%\" class=\"paper\"/>");
  return picture;
}

}  // namespace trivet
