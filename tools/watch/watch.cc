#include "tools/watch/watch.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <fmt/chrono.h>

#include "base/check.h"
#include "base/files.h"
#include "base/host.h"
#include "base/statistics.h"
#include "base/utf8.h"
#include "engine/config/load.h"
#include "engine/fault/flight_dump.h"
#include "engine/fault/outcome.h"
#include "engine/fault/run_lock.h"
#include "engine/metrics/jsonl.h"

namespace trivet {
namespace {

// A run holds a flock() on its lock file, which is visible to other hosts on most file systems, and touches the file
// periodically. An outcome older than the lock belongs to an earlier start.
void look_at_state(RunRecord& run) try {
  using std::filesystem::last_write_time;
  const std::string lock = run.run_dir + "/lock", outcome = run.run_dir + "/outcome.json";
  const bool locked = file_exists(lock);
  const bool ended = file_exists(outcome) && !(locked && last_write_time(outcome) <= last_write_time(lock));
  run.state = how_it_ended(run.run_dir);
  const auto parsed = [](const std::string& file) {
    return parse_json<nlohmann::ordered_json>(text_of(file), BadJson::discarded);
  };
  run.stopped = ended && text_in(parsed(outcome), "status") == "stopped";
  if (!ended && locked) {
    const auto holder = parsed(lock);
    const auto untouched = std::filesystem::file_time_type::clock::now() - last_write_time(lock);
    run.running = !is_unlocked(lock) ||
                  (text_in(holder, "host") != host_name() && untouched < std::chrono::seconds(RunLock::kStale));
    run.state = fmt::format("{}: process {:.0f} on {}, since {}",
                            run.running ? "running" : "its lock is not held: killed, or a copy",
                            number_in(holder, "pid"), text_in(holder, "host"), text_in(holder, "since"));
  }
  if (!file_exists(flight_folder(run.run_dir) + "/ranks.json")) return;
  if (const FlightReport report = read_flight_folder(run.run_dir); report.end.empty())
    run.state += fmt::format("; {}; run trivet flight {} for more", find_culprit(report).what, run.run_dir);
} catch (const std::exception& error) {  // a file is damaged, or was just removed
  run.state += error.what();
}

void add_step(RunRecord& run, StepNumbers step) {
  size_t known = run.of("step").size();
  while (known > 0 && run.of("step")[known - 1] >= step["step"]) --known;  // steps redone, whose old records remain
  run.started = std::min(run.started, known), run.last_step = step["step"];
  for (const auto& [key, value] : step) run.numbers[key];
  for (auto& [key, values] : run.numbers) {
    const auto found = step.find(key);
    values.resize(known, std::nan("")), values.push_back(found == step.end() ? std::nan("") : found->second);
  }
}

}  // namespace

RunRecord::RunRecord(const std::string& folder, int64_t most_bytes) : run_dir(folder) {
  const std::string log = run_dir + "/metrics.jsonl", config = run_dir + "/config.resolved.yaml";
  if (!std::filesystem::is_directory(run_dir))
    throw ConfigError(run_dir + ": is not a directory, expected the folder of a run (train.run_dir)");
  if (!file_exists(log) && !file_exists(config))
    throw DataError(run_dir + ": no metrics.jsonl, expected the folder of a run: each run creates one when it trains");
  look_at_state(*this);  // read before its records, which are then complete if the run has ended
  const auto add_event = [&](const nlohmann::ordered_json& event) {
    events.push_back(event), last_time = std::fmax(last_time, number_in(event, "time"));
    if (const std::string kind = text_in(event, "event"); kind == "start" || kind == "resume")
      started = of("step").size(), last_step = number_in(event, "step"),
      total_steps = std::fmax(0, number_in(event, "total_steps"));
  };
  problem = for_each_step(
      log, [&](StepNumbers step) { add_step(*this, std::move(step)); }, add_event, most_bytes);
  if (!of("time").empty()) last_time = std::fmax(last_time, of("time").back());
  try {
    if (total_steps == 0) total_steps = static_cast<double>(load_config(config).config.train.train_iters);
  } catch (const Error&) {  // the file is missing, or from another version
  }
}

const std::vector<double>& RunRecord::of(const std::string& key) const {
  static const std::vector<double> kNone;
  const auto found = numbers.find(key);
  return found == numbers.end() ? kNone : found->second;
}

double RunRecord::recent(const std::string& key) const {
  std::vector<double> values;
  for (size_t i = of(key).size(); i > started && values.size() < 50; --i)
    if (std::isfinite(of(key)[i - 1])) values.push_back(of(key)[i - 1]);
  return median(std::move(values));
}

nlohmann::ordered_json RunRecord::last_with(const char* key) const {
  const auto found =
      std::find_if(events.rbegin(), events.rend(), [&](const auto& event) { return event.contains(key); });
  return found == events.rend() ? nlohmann::ordered_json() : *found;
}

std::string date_text(double time) {
  tzset();  // localtime_r() need not call it
  return time > 0 && time < 1e11 ? fmt::format("{:%F %T}", fmt::localtime(static_cast<std::time_t>(time))) : "-";
}

std::vector<Bin> bins_of(const std::vector<double>& values, size_t most) {
  std::vector<Bin> bins(std::min(most, values.size()));
  for (size_t i = 0, next = 0; i < bins.size(); ++i) {
    Bin& bin = bins[i];
    double numbers = 0;
    for (; next < (i + 1) * values.size() / bins.size(); bin.last = next++)
      if (const double value = values[next]; std::isfinite(value))
        bin.mean += value, ++numbers, bin.low = std::min(bin.low, value), bin.high = std::max(bin.high, value);
      else bin.lacks_number = true;
    bin.mean /= numbers;
  }
  return bins;
}

std::string sparkline(const std::vector<double>& values, size_t width) {
  constexpr std::array kHeights = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  double low = HUGE_VAL, high = -HUGE_VAL;
  const std::vector<Bin> bins = bins_of(values, width);
  for (const Bin& bin : bins)
    if (std::isfinite(bin.mean)) low = std::min(low, bin.mean), high = std::max(high, bin.mean);
  std::string line;
  for (const Bin& bin : bins)
    line += bin.lacks_number || !std::isfinite(bin.mean)
                ? "!"
                : kHeights[static_cast<size_t>(7.99 * (bin.mean - low) / std::max(high - low, 1e-300))];
  return line;
}

TextBlock describe_progress(const RunRecord& run, double now, size_t width) {
  TextBlock block{.title = printable_line(run.run_dir)};
  const auto row = [&](const char* name, const std::string& text) {
    block.rows.push_back({name, shortened(printable_line(text), 300)});
  };
  const auto picture = [&](const char* key) { return sparkline(run.of(key), width) + (width > 0 ? "  " : ""); };
  const auto ago = [&](double time) { return duration_text(std::max(now - time, 0.)) + " ago"; };
  const auto share = [&](const char* key) { return percent_text(run.recent(key)); };
  const double step = run.recent("step_seconds"), left = run.total_steps - run.last_step, silent = now - run.last_time;
  row("run", run.state);
  row("step", fmt::format("{:.0f}", run.last_step) +
                  (run.total_steps > 0
                       ? fmt::format(" of {:.0f}, {}", run.total_steps, percent_text(run.last_step / run.total_steps))
                       : ""));
  if (left > 0 && std::isfinite(step))
    row("left", fmt::format("{}{}: {:.0f} steps of {:.4g} s", duration_text(left * step),
                            run.running ? ", until " + date_text(now + left * step) : " of training", left, step));
  if (!run.of("loss").empty()) {
    row("loss", fmt::format("{}{:.4f}", picture("loss"), run.of("loss").back()));
    row("tokens/s", fmt::format("{}{:.0f}", picture("tokens_per_second"), run.recent("tokens_per_second")));
    row("exposed",
        fmt::format("{} of a step, wait {}, MFU {}", share("exposed_fraction"), share("wait_fraction"), share("mfu")));
  }
  if (const auto eval = run.last_with("validation_loss"); !eval.is_null())
    row("validation", fmt::format("{:.4f}, step {:.0f}", number_in(eval, "validation_loss"), number_in(eval, "step")));
  if (const auto save = run.last_with("stall_seconds"); !save.is_null())
    row("saved", fmt::format("step {:.0f}, {}, in {:.2f} s", number_in(save, "step"), ago(number_in(save, "time")),
                             number_in(save, "seconds")));
  else if (const int64_t saved = last_committed_step(run.run_dir); saved >= 0)
    row("saved", fmt::format("step {}", saved));
  if (const auto time = run.last_with("walltime_seconds"); left > 0 && !time.is_null())
    row("walltime", fmt::format("{} for a job that finishes the run from step {:.0f}",
                                duration_text(number_in(time, "walltime_seconds")), number_in(time, "step")));
  row("last record", run.running ? ago(run.last_time) : date_text(run.last_time));
  if (run.running && silent > std::max(30., 10 * step))
    row("", fmt::format("the time of {:.0f} steps: a long evaluation or save, or a hang", silent / step));
  if (!run.problem.empty()) row("damaged", run.problem);
  for (size_t i = run.events.size(), notes = 0; i > 0 && notes < 3; --i)
    if (const std::string text = text_in(run.events[i - 1], "text");
        !text.empty() && text_in(run.events[i - 1], "event") == "note")
      row(notes++ == 0 ? "notes" : "", date_text(number_in(run.events[i - 1], "time")) + " " + shortened(text, 120));
  return block;
}

}  // namespace trivet
