// The plan of a study: the points that can run, those that cannot and why, and what running them costs. Needs neither
// ranks nor devices: whether a configuration works is asked of the same resolve() that a run begins with.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/study/results.h"
#include "engine/study/study.h"

namespace trivet {

struct Point {
  Choice choice;
  std::string id;                 // of what is run: 16 hexadecimal digits
  std::vector<std::string> sets;  // --set arguments, all but the run's folder
  int ranks = 1;
  Launcher launcher = Launcher::threads;
  int64_t memory_bytes = 0;  // of the rank that holds most
  double flops = 0;          // model FLOPs of a run
  std::string dtype;
  std::string numbers;  // points that have this in common must agree in loss
  // Ids of the same run, but over infinitely fast links; with no communication beside compute; and both. The point's
  // own where it is that already.
  std::string without_link, without_overlap, without_both;
};

struct DroppedPoint {
  Choice choice;
  std::string reason;
};

struct Plan {
  std::vector<Point> points;  // in the order of the design
  std::vector<DroppedPoint> dropped;
  std::optional<size_t> baseline;  // of points; empty where it cannot run
};

// A point's id is a hash of its resolved configuration (without the run's folder), ranks, launcher and warm-up, so that
// finished runs are recognised when factors are renamed, reordered or added. A point that resolves to what an earlier
// one is, is dropped; so is one whose threads need more memory than this machine has. Throws ConfigError where the
// design is too large; DataError and IoError from the dataset.
Plan make_plan(const Study& study);

// What is still to be run, in this order: rounds one after another, each all points, every other round backwards, so
// that what drifts steadily in the machine cancels out. A point with a failed run is not run again.
struct PlannedRun {
  size_t point = 0;  // of Plan::points
  int64_t repeat = 1;
};
std::vector<PlannedRun> remaining_runs(const Study& study, const Plan& plan, std::span<const RunRow> rows);

// Seconds that a run of each point takes.
struct CostPrediction {
  std::vector<double> seconds;  // of Plan::points
  bool at_least = false;        // nothing was measured: a bound, not a guess
  std::string source;           // what it is estimated from, as the end of a sentence
};
// From the finished runs: a point's own, or, of those without, the model FLOPs at the speed of the others. Without any
// run: model FLOPs at `peak_tflops` of the whole machine, as if there were no start-up and no communication.
CostPrediction predict_cost(const Study& study, const Plan& plan, std::span<const RunRow> rows, double peak_tflops);

}  // namespace trivet
