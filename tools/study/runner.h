// Runs a study: performs the remaining runs one after another, and writes each result before the next run begins. The
// caller decides how a point is run: process_runner() starts the program; tests supply made-up results.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/fault/run_directory.h"
#include "tools/study/plan.h"

namespace trivet {

// Runs a point. Returns nullopt if the run was stopped from outside; the run then counts as not started.
using RunPoint = std::function<std::optional<RunRow>(const Point& point, const PlannedRun& run)>;

// Passed to the progress callback after each run.
struct StudyProgress {
  const RunRow& row;
  size_t point;         // index in Plan::points
  int64_t done, total;  // runs, including those of earlier calls; total covers only the rounds known to be needed
  double seconds_left;  // predicted; NaN if nothing has been measured yet
  bool round_ended;     // the next run, if any, belongs to another round
};

struct RunnerOptions {
  bool retry_failed = false;            // repeat runs that failed in earlier calls
  std::function<double()> now_seconds;  // a clock
  std::function<bool()> stop_asked;
  std::function<void(const StudyProgress&)> ended = {};
};

// complete: all rounds are done (with auto_repeats, as many as rounds_wanted() returns after the last). stopped: on
// request. budget: the next run would have ended after budget_minutes (at least one run always takes place).
enum class StudyEnd : uint8_t { complete, stopped, budget };

// `rows`: from read_results(); new results are appended. Throws IoError if a result cannot be written: a study that
// loses its measurements is useless.
StudyEnd run_study(const Study& study, const Plan& plan, std::vector<RunRow>& rows, const RunPoint& run,
                   const RunnerOptions& options);

// OUT/results.jsonl. Creates its folder.
std::string results_path(const Study& study);

// Held while a study runs, so that two calls do not disturb each other's timings. Throws IoError if another holds it.
RunDirectory lock_study(const Study& study);

// Runs a point in a separate process: `trivet train`, or its launcher (launch.h). The run's files, including its output
// in stdout.log and stderr.log, are in folder_of(). `program`: the path of trivet. `stop_asked`: return true to end a
// run early. `provenance`: the program's, recorded in each row together with launcher, threads and load.
RunPoint process_runner(const Study& study, std::string program, std::function<bool()> stop_asked,
                        Provenance provenance = {});

// The command that runs a point, with `run_dir` as its folder.
std::vector<std::string> command_of(const Study& study, const Point& point, const std::string& program,
                                    const std::string& run_dir);

// Why a program failed, from its stderr: its own last message (a line that begins with "trivet:", "[rank" or
// "netlab:"), else the first line of the last box that mpirun drew with dashes, else srun's last error, else the last
// line that contains a letter.
std::string failure_reason(const std::string& stderr_text);

}  // namespace trivet
