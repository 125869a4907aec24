// The state of a run, read from its folder or a copy of it, during the run or later, for a terminal or an HTML page.
#pragma once

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/text.h"

namespace trivet {

struct RunRecord {
  // most_bytes: to read from the end of metrics.jsonl. Throws ConfigError or DataError if run_dir is not a run folder.
  explicit RunRecord(const std::string& run_dir, int64_t most_bytes = INT64_MAX);

  // One value per step, by its key in metrics.jsonl; NaN: unknown. Empty if no step contains the key.
  const std::vector<double>& of(const std::string& key) const;
  double recent(const std::string& key) const;  // the median of the last 50 steps since the run was started or resumed
  nlohmann::ordered_json last_with(const char* key) const;  // the last event that contains the key; null if none does

  std::string run_dir, state, problem;    // state: the run's, as far as this host can tell; problem: with metrics.jsonl
  bool running = false, stopped = false;  // stopped: on request, so it may be resumed
  std::map<std::string, std::vector<double>> numbers;
  std::vector<nlohmann::ordered_json> events;  // all records but steps
  size_t started = 0;                          // index of the first step after the last start
  double last_step = 0, total_steps = 0;       // total_steps 0: unknown
  double last_time = std::nan("");             // of the latest record
};

std::string date_text(double time);  // in this host's time zone; "-" if not a time

// A range of adjacent values, up to index `last`. mean, low, high: over the finite ones.
struct Bin {
  size_t last = 0;
  double mean = 0, low = HUGE_VAL, high = -HUGE_VAL;
  bool lacks_number = false;
};
std::vector<Bin> bins_of(const std::vector<double>& values, size_t most);

// One character per bin, at one of eight heights; "!": a value in the bin is not a number.
std::string sparkline(const std::vector<double>& values, size_t width);
// now: seconds since the epoch. width: characters per sparkline; 0: no sparklines.
TextBlock describe_progress(const RunRecord& run, double now, size_t width);
// An HTML page of bounded size, however long the run.
std::string html_report(const RunRecord& run, double now);

}  // namespace trivet
