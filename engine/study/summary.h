// Summary: what the runs of a study say.
//
// Ratios to the baseline are taken within a round, point over baseline of the same repeat, and their median is told: a
// machine that gets slower between two rounds then changes no ratio. A main effect is the geometric mean, over all
// settings of the other factors in which both were measured, of a level's median over that of the factor's baseline
// level: points that are missing bias it little, and its range shows where factors depend on each other.
//
// Where the plan has the points to compare with (Point::without_link, …), a point has two metrics more, taken within a
// round and so for each repeat:
//
//   compute_inflation   time of a step in which a rank computes, over that with no communication beside compute: what
//                       sharing cores and memory costs
//   hidden_fraction     1 - (T - T without a link) / (N - N without a link), T and N the time of a step of the point
//                       and of the same without overlap: of the time that the link adds without overlap, how much
//                       overlap takes away again. Only where the link adds at least kMeasurable of the step: below,
//                       it is noise
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/statistics.h"
#include "engine/study/plan.h"

namespace trivet {

struct PointSummary {
  int64_t done = 0;
  std::string failure;                    // of its last failed run; "": none
  std::map<std::string, Sample> metrics;  // over the finished repeats
  bool baseline = false;                  // of its conditions
  std::optional<Sample> ratio;            // of the study's metric to the baseline under the same conditions
  std::string disagreement;               // with the losses it must have; "": none
  std::string folder;                     // of its first finished run

  // Null, and empty, where the runs do not report it.
  const Sample* find(std::string_view metric) const;
  std::optional<double> median(std::string_view metric) const;
  // The shares of the step in which communication of a class (tensor, pipeline, data) was exposed, and waited.
  std::optional<double> exposed(const std::string& comm_class) const;
  std::optional<double> wait(const std::string& comm_class) const;
};

constexpr double kMeasurable = 0.1;

struct Effect {
  int64_t contexts = 0;  // settings of the other factors it was seen in
  double mean = 1, min = 1, max = 1;
};

// The best point under some conditions, by its ratio to the baseline, or by the metric where a ratio is missing. One
// where the study has no factor that is a condition.
struct Winner {
  size_t point = 0;
  std::vector<size_t> rivals = {};  // points that it was not better than in every round
  int64_t others = 0;               // points it was compared with
};

struct Summary {
  std::vector<PointSummary> points;          // of Plan::points
  std::vector<std::vector<Effect>> effects;  // [factor][level]
  std::vector<Winner> winners;               // in the order of the plan
  int64_t runs = 0, done = 0, failed = 0;    // runs: asked for
  int64_t other_rows = 0;                    // results of points that are not in the plan any more
  int64_t disagreements = 0;
  std::set<std::string> metrics;  // of any point
  std::set<std::string> machines;

  bool wins(size_t point) const {
    return std::ranges::any_of(winners, [&](const Winner& winner) { return winner.point == point; });
  }
};

Summary summarize(const Study& study, const Plan& plan, const std::vector<RunRow>& rows);

}  // namespace trivet
