// Results of a study: OUT/results.jsonl, a line a run, appended when the run has ended, whichever way. Nothing in it is
// ever rewritten; of several lines of one point and repeat (failures that were retried) the last one counts.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/provenance.h"
#include "base/words.h"

namespace trivet {

enum class RunEnd : uint8_t { done, failed, timed_out };
constexpr auto words_of(RunEnd) { return word_list("done", "failed", "timed_out"); }

struct RunRow {
  std::string point;                                             // Point::id
  int64_t repeat = 1;                                            // the round, from 1
  int64_t call = 0;                                              // of the program, from 1: runs of two are not paired
  std::vector<std::pair<std::string, std::string>> levels = {};  // factor and label, for people
  RunEnd outcome = RunEnd::done;
  std::string reason = {};  // of a failure
  int exit_code = 0;
  std::string started = {};                    // UTC, 2026-01-31T23:59:59Z
  double seconds = 0;                          // of the whole run with its start-up
  std::map<std::string, double> metrics = {};  // of each number in metrics.jsonl, the median over the measured steps
  std::vector<double> losses = {};             // of every step
  std::string folder = {};                     // of the run, within the study's
  std::string command = {};                    // as a shell would take it
  Provenance provenance = {};
};

std::string to_json_line(const RunRow& row);  // ends in a newline

// In the order of the file; none if there is no file. A last line without its end (the study was killed) is left
// out. Throws DataError for a line that is no result, IoError.
std::vector<RunRow> read_results(const std::string& path);

// By point: its last failed run without a later success of the same repeat, among the rows given.
std::map<std::string, const RunRow*, std::less<>> failures_of(std::span<const RunRow> rows);

// Without the repeats that failed, which are then to be run again.
std::vector<RunRow> without_failures(const std::vector<RunRow>& rows);

// Reads a run's metrics.jsonl: fills in metrics and losses. Returns why the run does not count, or "": all
// `steps` must be there, each with a finite loss.
std::string read_metrics(const std::string& path, int64_t steps, int64_t warmup_steps, RunRow& row);

// The names of all metrics that runs may have: the numbers of metrics.jsonl; memory_bytes, planned, of the rank that
// holds most; and peak_rss_bytes, the largest resident set of a process of the run (of all ranks where they are
// threads; none with srun, whose processes are not the study's).
std::vector<std::string> run_metrics();

}  // namespace trivet
