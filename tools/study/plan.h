// The plan of a study: the points that can run, those that cannot and why, and the cost of running them. Needs neither
// ranks nor devices: the same resolve() that a run begins with decides whether a configuration works.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tools/study/launch.h"
#include "tools/study/results.h"
#include "tools/study/study.h"

namespace trivet {

struct Point {
  Choice choice;
  std::string id;                 // of its run: 16 hexadecimal digits
  std::vector<std::string> sets;  // --set arguments, all but the run's folder
  Launch launch;                  // with its number of ranks
  int threads = 0;                // that compute at a time on this machine; 0: ranks may be elsewhere
  int64_t memory_bytes = 0;       // of the rank that holds most
  double flops = 0;               // model FLOPs of a run
  std::string numbers;            // points that have this in common must agree in loss
  std::string without_overlap;    // id of the same run without overlap of communication; its own if it is that
};

struct DroppedPoint {
  Choice choice;
  std::string reason;
};

// A point of the design that is the same run as another one: what tells them apart has no effect there.
struct SamePoint {
  Choice choice;
  size_t point = 0;  // of Plan::points
  std::string why;   // "": they say the same in other words
};

struct Plan {
  std::vector<Point> points;  // in the order of the design
  std::vector<SamePoint> same;
  std::vector<DroppedPoint> dropped;
  std::optional<size_t> baseline;  // of points; empty if it cannot run
  // [point]: its reference, the baseline under its conditions; if that cannot run, the first point that
  // can under them.
  std::vector<size_t> baselines;
  // The deviation of log ratios of equal points within a round, where an A/A study has measured it.
  std::optional<double> noise;

  // The point of `points` that is run for a choice; empty if it cannot run.
  std::optional<size_t> find(const Choice& choice) const;
};

// A point's id is a hash of its resolved configuration (without the run's folder, and only the keys that differ from
// their default), ranks, launcher and warm-up, so that finished runs are recognised when factors are renamed,
// reordered or added, and by a later version with further keys. A setting of a level that has no effect at
// a point is left out there, and points that then resolve to the same run are one (Plan::same). A point whose threads
// need more memory than this machine has is dropped. Throws ConfigError if the design is too large; DataError and
// IoError from the dataset.
Plan make_plan(const Study& study);

// A study of equal points with the other settings of `study`, in OUT/aa: copies of its baseline, as many as lie between
// two runs of a baseline, and no fewer rounds than a verdict needs.
Study equal_points_of(const Study& study, const Plan& plan);

struct PlannedRun {
  size_t point = 0;    // of Plan::points
  int64_t repeat = 1;  // the round
  int64_t copy = 1;    // of the point in this round: only baselines have several
};
// The remaining runs of a round, in this order: the points of each baseline, shuffled by the study's seed, the
// round and their ids, are cut into blocks of at most baseline_every; blocks, shuffled too, are run one after another,
// each between two runs of its baseline (one, between two blocks of the same). So each point is near its baseline in
// time, drift cancels, and neither factors nor conditions have a place of their own in the round. A round that was
// interrupted begins again with a baseline. A point with a failed run is not run again.
std::vector<PlannedRun> rest_of_round(const Study& study, const Plan& plan, std::span<const RunRow> rows,
                                      int64_t repeat);
// The same of the rounds from 1 to `rounds`, one after another.
std::vector<PlannedRun> remaining_runs(const Study& study, const Plan& plan, std::span<const RunRow> rows,
                                       int64_t rounds);

// The folder of a run within the study's: runs/ID-REPEAT, of further copies runs/ID-REPEAT.COPY.
std::string folder_of(const Point& point, const PlannedRun& run);

// Seconds that a run of each point takes: the median of its finished runs, or, of a point without, by its model FLOPs
// at the speed of the others; NaN if there is none.
std::vector<double> run_seconds(const Plan& plan, std::span<const RunRow> rows);

// The point with these levels, as describe_choice() has them, or the one whose id begins so. Throws ConfigError, with
// all points, where that is none, or several.
size_t find_point(const Study& study, const Plan& plan, const std::string& wanted);

}  // namespace trivet
