// The plan of a study: the points that can run, those that cannot and why, and the cost of running them. Needs neither
// ranks nor devices: a configuration is valid if resolve() accepts it, as at the start of a run.
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
  std::string id;                 // identifies its run: 16 hexadecimal digits
  std::vector<std::string> sets;  // --set arguments, all except the run's folder
  Launch launch;                  // its number of ranks is resolved, never 0
  int threads = 0;                // compute threads of all ranks on this machine; 0: ranks may be on other hosts
  int64_t memory_bytes = 0;       // as planned, on the rank that needs most
  int64_t steps = 0;              // of a run
  double flops = 0;               // model FLOPs per run
  double parameters = 0;          // of the model, embeddings included
  double tokens = 0;              // that a run trains on
  std::string numbers;            // points with equal `numbers` must agree in loss
  std::string without_overlap;    // id of the same run without communication overlap; its own id if nothing overlaps
};

struct DroppedPoint {
  Choice choice;
  std::string reason;
};

// A point of the design that resolves to the same run as another: the settings that differ have no effect there.
struct SamePoint {
  Choice choice;
  size_t point = 0;  // index in Plan::points
  std::string why;   // "": equal settings in another notation
};

struct Plan {
  std::vector<Point> points;  // in the order of the design
  std::vector<SamePoint> same;
  std::vector<DroppedPoint> dropped;
  std::optional<size_t> baseline;  // index in `points`; empty if it cannot run
  // [point]: index of its reference, the baseline under the point's conditions; if that cannot run, the first point
  // under these conditions that can.
  std::vector<size_t> baselines;
  // The standard deviation of log ratios of equal points; empty unless an A/A study has measured it.
  std::optional<double> noise;

  // The index in `points` of the point that is run for a choice; empty if it cannot run.
  std::optional<size_t> find(const Choice& choice) const;
};

// A point's id is a hash of its resolved configuration (without the run's folder, and only the keys that differ from
// their defaults), ranks, launcher and warm-up, so that finished runs are recognised after factors are renamed,
// reordered or added, and by later versions with more keys. A level's setting that has no effect at a point is dropped
// there, and points that then resolve to the same run are merged (Plan::same). A point whose ranks all run on this
// machine and need more memory than it provides is dropped. Throws ConfigError if the design is too large; DataError
// and IoError from the dataset.
Plan make_plan(const Study& study);

// An A/A study with the other settings of `study`, in OUT/aa: its points are the baseline and at most baseline_every
// copies of it, in at least kFewestRounds rounds.
Study equal_points_of(const Study& study, const Plan& plan);

struct PlannedRun {
  size_t point = 0;    // index in Plan::points
  int64_t repeat = 1;  // the round
  int64_t copy = 1;    // the point's run number in this round: only baselines have several runs
};
// The remaining runs of a round, in order. The points of each baseline are shuffled, by the study's seed, the round and
// their ids, and split into blocks of at most baseline_every. The blocks, shuffled too, run one after another, each
// between two runs of its baseline; successive blocks of one baseline share the run between them. So each point runs
// close to its baseline, drift cancels, and no factor or condition always comes at the same place in the round. An
// interrupted round resumes with a baseline run. A point with a failed run is not run again.
std::vector<PlannedRun> rest_of_round(const Study& study, const Plan& plan, std::span<const RunRow> rows,
                                      int64_t repeat);
// The same for rounds 1 to `rounds`, one after another.
std::vector<PlannedRun> remaining_runs(const Study& study, const Plan& plan, std::span<const RunRow> rows,
                                       int64_t rounds);

// A run's folder within the study's: runs/ID-REPEAT; runs/ID-REPEAT.COPY for further copies.
std::string folder_of(const Point& point, const PlannedRun& run);

// [point]: expected seconds per run: the median of its finished runs; without any, its model FLOPs at the median speed
// of the measured points; NaN if no point has been measured.
std::vector<double> run_seconds(const Plan& plan, std::span<const RunRow> rows);

}  // namespace trivet
