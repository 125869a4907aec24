#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/files.h"
#include "base/svg.h"
#include "engine/metrics/jsonl.h"
#include "tools/watch/watch.h"

namespace trivet {
namespace {

constexpr double kLeft = 90, kWidth = 1080, kHeight = 150, kGap = 60, kTop = 40;

// The last 300 events of the given kind; "": of all kinds.
std::vector<nlohmann::ordered_json> events_of(const RunRecord& run, std::string_view kind = "") {
  std::vector<nlohmann::ordered_json> found;
  for (size_t i = run.events.size(); i > 0 && found.size() < 300; --i)
    if (kind.empty() || text_in(run.events[i - 1], "event") == kind) found.push_back(run.events[i - 1]);
  return {found.rbegin(), found.rend()};
}

std::string what_of(const nlohmann::ordered_json& event) {
  std::string text = text_in(event, "event");
  for (const auto& [key, value] : event.items())
    if (key != "event" && key != "time" && key != "step" && key != "banner" && key != "times")
      text += fmt::format(", {} {}", key,
                          value.is_string()         ? value.get<std::string>()
                          : value.is_number_float() ? fmt::format("{:.6g}", value.get<double>())
                                                    : value.dump());
  return shortened(text, 500);
}

// The keys of the curves; and the keys of a step's parts, with the CSS classes of their colours.
constexpr const char* kCurves[] = {
    "loss",        "learning_rate",          "grad_norm", "tokens_per_second", "step_seconds",
    "power_watts", "energy_joules_per_token"};
constexpr std::pair<std::string_view, const char*> kShares[] = {{"compute_fraction", "B"},
                                                                {"optimizer_fraction", "optimizer"},
                                                                {"tensor_exposed_seconds", "tensor"},
                                                                {"context_exposed_seconds", "context"},
                                                                {"pipeline_exposed_seconds", "pipeline"},
                                                                {"data_exposed_seconds", "data"},
                                                                {"wait_fraction", "bar base"},
                                                                {"host_fraction", "layer"},
                                                                {"idle_fraction", "rest"}};

// `chart` comes with everything except its value range.
void draw_curve(Chart chart, const RunRecord& run, const std::string& key) {
  const bool is_loss = key == "loss";
  std::vector<std::pair<double, double>> means, validation;
  for (const auto& eval : is_loss ? events_of(run, "eval") : std::vector<nlohmann::ordered_json>())
    if (const double step = number_in(eval, "step"); step >= chart.first)
      validation.emplace_back(step, number_in(eval, "validation_loss"));
  const std::vector<Bin> bins = bins_of(run.of(key), 1000);
  chart.low = HUGE_VAL, chart.high = -HUGE_VAL;
  for (const Bin& bin : bins) chart.low = std::min(chart.low, bin.low), chart.high = std::max(chart.high, bin.high);
  for (const auto& [step, loss] : validation)
    chart.low = std::fmin(chart.low, loss), chart.high = std::fmax(chart.high, loss);
  if (chart.low > chart.high) chart.low = chart.high = 1;  // nothing but NaN
  chart.logarithmic = key != "learning_rate" && chart.low > 1e-300 && chart.high / chart.low > 30;
  if (!is_loss && !chart.logarithmic) chart.low = std::min(chart.low, 0.);
  chart.draw_axes(key + (chart.logarithmic ? ", logarithmic" : ""));
  std::string ranges;
  for (const Bin& bin : bins) {
    const double step = run.of("step")[bin.last], x = chart.x_of(step);
    means.emplace_back(step, bin.mean);
    if (bin.low < bin.high)
      ranges += fmt::format("M{:.1f} {:.1f}V{:.1f}", x, chart.y_of(bin.low), chart.y_of(bin.high));
    if ((is_loss || key == "grad_norm") && bin.lacks_number)
      chart.canvas.bar(x - 1.5, chart.top, 3, kHeight, "exposed", fmt::format("until step {}: no number", step));
  }
  chart.canvas.put("<path class=\"line\" d=\"{}\"/>", ranges);
  chart.draw_curve(means, "s0");
  if (is_loss) chart.draw_curve(validation, "s1");
  const auto mark = [&](std::string_view kind, double y, double height, const char* classes) {
    for (const auto& event : events_of(run, kind))
      if (const double step = number_in(event, "step"); is_loss && step >= chart.first && step <= chart.last)
        chart.canvas.bar(chart.x_of(step) - 1, chart.top + y, 2, height, classes,
                         fmt::format("step {}: {}", step, what_of(event)));
  };
  mark("resume", 0, kHeight, "queued"), mark("note", 0, 8, "optimizer"), mark("checkpoint", kHeight - 8, 8, "bar best");
}

PageSection time_section(const RunRecord& run) {
  const std::vector<double>& steps = run.of("step");
  std::vector<double> seconds_of = run.of("step_seconds");
  seconds_of.resize(steps.size(), std::nan(""));
  PageSection section{.heading = "Where the time of the steps went",
                      .table = {.title = "", .rows = {{"", "share", "time"}}, .align = "lrr"}};
  const auto row = [&](const std::string& name, double share, double seconds) {
    section.table.rows.push_back({name, percent_text(share), duration_text(seconds)});
  };
  Canvas canvas;
  Chart chart{canvas, kLeft, kTop, kWidth, kHeight, steps[0] - 1, steps.back(), 0, 1};
  chart.draw_axes("shares of a step, mean of the ranks");
  std::vector<double> below(300, 0);
  double x = kLeft;
  for (const auto& [key, classes] : kShares) {
    const std::string name(key.substr(0, key.rfind('_')));
    std::vector<double> of = run.of(std::string(key));
    if (of.empty()) continue;
    double seconds = 0, all = 0, before = chart.first;
    for (size_t i = 0; i < of.size(); ++i) {
      if (key.ends_with("_seconds")) of[i] /= seconds_of[i];
      if (std::isfinite(seconds_of[i] * of[i])) seconds += seconds_of[i] * of[i], all += seconds_of[i];
    }
    std::string path;
    const std::vector<Bin> bins = bins_of(of, below.size());
    for (size_t i = 0; i < bins.size(); before = steps[bins[i++].last]) {
      if (!(bins[i].mean > 0)) continue;
      const double low = chart.y_of(below[i]), high = chart.y_of(below[i] += bins[i].mean);
      path += fmt::format("M{0:.1f} {1:.1f}H{2:.1f}V{3:.1f}H{0:.1f}Z", chart.x_of(before), low,
                          chart.x_of(steps[bins[i].last]), high);
    }
    if (path.empty()) continue;
    row(name, seconds / all, seconds);
    canvas.put("<path class=\"{}\" d=\"{}\"/>", classes, path);
    canvas.bar(x, kTop + kHeight + 36, 11, 11, classes, name);
    canvas.text(x + 16, kTop + kHeight + 46, "soft", name);
    x += 135;
  }
  section.picture = canvas.finish(kLeft + kWidth + 40, kTop + kHeight + 66, section.heading);
  double evaluations = 0, saves = 0;
  for (const auto& event : run.events)
    if (const double stall = number_in(event, "stall_seconds"); stall >= 0) saves += stall;
    else evaluations += std::fmax(0, number_in(event, "seconds"));
  row("evaluations", std::nan(""), evaluations), row("waiting for saves", std::nan(""), saves);
  row("first to last record", std::nan(""),
      run.last_time - (run.events.empty() ? std::nan("") : number_in(run.events[0], "time")));
  return section;
}

}  // namespace

std::string html_report(const RunRecord& run, double now) {
  PageSection facts{.heading = "At " + date_text(now), .table = describe_progress(run, now, 0)};
  facts.table.rows.insert(facts.table.rows.begin(), {"", ""}), facts.table.align = "rl";
  std::string body = html_section(facts);
  if (const std::vector<double>& steps = run.of("step"); !steps.empty()) {
    Canvas canvas;
    Chart chart{canvas, kLeft, kTop, kWidth, kHeight, steps[0] - 1, steps.back(), 0, 0};
    for (const char* key : kCurves)
      if (!run.of(key).empty()) draw_curve(chart, run, key), chart.top += kHeight + kGap;
    body += html_section({"Curves", canvas.finish(kLeft + kWidth + 40, chart.top - 20, "curves over the steps"),
                          "Over the steps: means, and the range of the steps that share a place. Red: no number (NaN). "
                          "With the loss, orange: validation; grey: resumed; marks below: saves, above: notes."});
    body += html_section(time_section(run));
  }
  PageSection events{.heading = "Events, the last 300 at most",
                     .table = {.title = "", .rows = {{"time", "step", "what"}}, .align = "rrl"}};
  for (const auto& event : events_of(run))
    events.table.rows.push_back(
        {date_text(number_in(event, "time")), fmt::format("{:.0f}", number_in(event, "step")), what_of(event)});
  body += html_section(events);
  for (const char* key : {"times", "banner"})
    if (const std::string text = text_in(run.last_with(key), key); !text.empty())
      body += fmt::format("<h2>The run's {}</h2><pre>{}</pre>\n", key, escaped(shortened(text, 100'000)));
  if (const std::string config = run.run_dir + "/config.resolved.yaml"; file_exists(config))
    body += html_details("config.resolved.yaml", read_small_file(config, 1 << 20));
  return html_page(std::filesystem::canonical(run.run_dir).filename().string(), body);
}

}  // namespace trivet
