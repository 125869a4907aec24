// Results of a study: OUT/results.jsonl, one line per run, appended when the run has ended, successfully or not. Lines
// are never rewritten; if several belong to one point and repeat (retried failures), the last one counts.
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
  int64_t call = 0;                                              // program call, from 1; runs pair only within a call
  std::vector<std::pair<std::string, std::string>> levels = {};  // factor and label, for readers
  RunEnd outcome = RunEnd::done;
  std::string reason = {};  // why it failed
  int exit_code = 0;
  std::string started = {};                    // UTC, 2026-01-31T23:59:59Z
  double seconds = 0;                          // of the whole run, start-up included
  std::map<std::string, double> metrics = {};  // median over the measured steps of each number in metrics.jsonl
  std::vector<double> losses = {};             // one per step
  std::string folder = {};                     // the run's, within the study's
  std::string command = {};                    // quoted for a shell
  Provenance provenance = {};
};

std::string to_json_line(const RunRow& row);  // ends in a newline

// In the order of the file; empty if there is no file. A truncated last line (the study was killed) is skipped. Throws
// DataError for a line that is not a result, and IoError.
std::vector<RunRow> read_results(const std::string& path);

// By point: its failed run, unless the same repeat succeeded later. If several failed, the highest repeat's run.
std::map<std::string, const RunRow*, std::less<>> failures_of(std::span<const RunRow> rows);

// The rows without the repeats that failed, so that these are run again.
std::vector<RunRow> without_failures(const std::vector<RunRow>& rows);

// Fills in metrics and losses from a run's metrics.jsonl. Returns why the run does not count, or "": all `steps` must
// be present, each with a finite loss.
std::string read_metrics(const std::string& path, int64_t steps, int64_t warmup_steps, RunRow& row);

// The names of all metrics that runs may have: the numbers in metrics.jsonl; memory_bytes, the plan's for the rank that
// needs most; peak_rss_bytes, the largest resident set of any process of the run (all ranks together if they are
// threads; absent with srun, whose processes are not the study's children); and validation_loss, the last evaluation's.
std::vector<std::string> run_metrics();

}  // namespace trivet
