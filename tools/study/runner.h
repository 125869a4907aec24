// The runner of a study: the remaining runs, one after another, each result in the file before the next begins.
// How a point is run is up to the caller: process_runner() starts the program, a test makes the numbers up.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/fault/run_directory.h"
#include "tools/study/plan.h"

namespace trivet {

// Empty: the run was stopped from outside, and is as if it had not begun.
using RunPoint = std::function<std::optional<RunRow>(const Point& point, const PlannedRun& run)>;

// Reported after each run.
struct StudyProgress {
  const RunRow& row;
  size_t point;         // of the plan
  int64_t done, total;  // runs of the study, with those of earlier calls; total: of the rounds known to be needed
  double seconds_left;  // predicted; NaN if nothing was measured yet
  bool round_ended;     // the next run, if any, is of another round
};

struct RunnerOptions {
  bool retry_failed = false;            // those of earlier calls
  std::function<double()> now_seconds;  // a clock
  std::function<bool()> stop_asked;
  std::function<void(const StudyProgress&)> ended = {};
};

// complete: all rounds are made; with auto_repeats as many as rounds_wanted() says, asked after each. stopped: asked
// to. budget: the next run would have ended after budget_minutes (one run is always made).
enum class StudyEnd : uint8_t { complete, stopped, budget };

// `rows`: those of read_results; grows. Throws IoError when a result cannot be written: a study that forgets its
// measurements is no use.
StudyEnd run_study(const Study& study, const Plan& plan, std::vector<RunRow>& rows, const RunPoint& run,
                   const RunnerOptions& options);

// OUT/results.jsonl, and its folder, which is made.
std::string results_path(const Study& study);

// Held while a study is run, so that two calls do not disturb each other's times. Throws IoError when it is taken.
RunDirectory lock_study(const Study& study);

// Runs a point as its own process: `trivet train`, or its launcher (launch.h). Its folder, folder_of(), keeps the run's
// files, and its output in stdout.log and stderr.log. `program`: the path of trivet. `stop_asked`: ends a
// run early. `provenance`: of the program, for the rows; launcher, threads and load are added.
RunPoint process_runner(const Study& study, std::string program, std::function<bool()> stop_asked,
                        Provenance provenance = {});

// The command that runs a point, with `run_dir` as its folder.
std::vector<std::string> command_of(const Study& study, const Point& point, const std::string& program,
                                    const std::string& run_dir);

// Why a program failed, from its stderr: its own last message (a line that begins with "trivet:", "[rank"
// or "netlab:"); or the first line of the last box that mpirun drew with dashes; or srun's last error; or the last line
// that has a letter in it.
std::string failure_reason(const std::string& stderr_text);

}  // namespace trivet
