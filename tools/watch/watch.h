// The state of a run from its folder, or a copy of it, during it and later: on a terminal, and as a page.
#pragma once

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/text.h"

namespace trivet {

struct RunRecord {
  // most_bytes: of metrics.jsonl, its end. Throws ConfigError or DataError if the folder is not a run's.
  explicit RunRecord(const std::string& run_dir, int64_t most_bytes = INT64_MAX);

  // A number of each step, by its key in metrics.jsonl; NaN: unknown. Empty: no step has it.
  const std::vector<double>& of(const std::string& key) const;
  double recent(const std::string& key) const;  // the median of the last 50 steps since the run was started or resumed
  nlohmann::ordered_json last_with(const char* key) const;  // of `events`; null: there is none

  std::string run_dir, state, problem;  // state: of the run, as far as can be seen from here; problem: of metrics.jsonl
  bool running = false, stopped = false;  // stopped: as asked, so that it may be started again
  std::map<std::string, std::vector<double>> numbers;
  std::vector<nlohmann::ordered_json> events;  // all records but steps
  size_t started = 0;                          // the first step after the last start
  double last_step = 0, total_steps = 0;       // total: 0: unknown
  double last_time = std::nan("");             // of a record
};

std::string date_text(double time);  // of this host's time zone; "-" if not a time

// Neighbours. mean, low, high: of those that are numbers.
struct Bin {
  size_t last = 0;
  double mean = 0, low = HUGE_VAL, high = -HUGE_VAL;
  bool lacks_number = false;
};
std::vector<Bin> bins_of(const std::vector<double>& values, size_t most);

// A character of eight heights a bin; "!": it lacks a number.
std::string sparkline(const std::vector<double>& values, size_t width);
// now: seconds since the epoch. width: of the pictures; 0: none.
TextBlock describe_progress(const RunRecord& run, double now, size_t width);
// A page that is as large for a long run as for a short one.
std::string html_report(const RunRecord& run, double now);

}  // namespace trivet
