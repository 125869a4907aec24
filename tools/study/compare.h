// Compares two sets of results of a study, from two machines, commits or environments. Points are matched if they are
// the same run, else by the levels of their factors. Two ratios are reported:
//
//   ratio         the metric in B over that in A. The two were measured at different times, so the ratio includes
//                 whatever else changed in between
//   effect ratio  a point's ratio to its baseline in B over that in A; shows if a setting gains equally on both. Each
//                 ratio uses baseline runs close in time, so the machines' speeds cancel
//
// Both are ratios of geometric means over rounds. A and B share no rounds, so 95 % intervals and p-values are those of
// Welch's t test on logarithms; p-values are corrected for the number of points (Holm). A verdict needs at least
// kFewestRounds rounds in each.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/text.h"
#include "tools/study/summary.h"

namespace trivet {

// The results in a study's folder, read without a plan: `plan` holds only the points that were run.
struct StudyResults {
  std::string folder;
  Study study;
  std::vector<RunRow> rows;
  Plan plan;
};
// Loads study.yaml and results.jsonl from `folder`. Throws ConfigError if they are missing or nothing has been
// measured; DataError if they are damaged.
StudyResults load_results(const std::string& folder);

struct Comparison {
  Estimate a = {}, b = {}, ratio = {};
  double corrected_p = 1;
  Verdict verdict = Verdict::too_few;
};
struct ComparedPoint {
  size_t a = 0, b = 0;  // indices of the point in A's plan and in B's
  bool same_settings = true;
  Comparison metric = {};                 // a, b: geometric means over rounds
  std::optional<Comparison> effect = {};  // a, b: ratios to the baseline; empty for a baseline, or if there is none
};
struct StudyComparison {
  std::vector<ComparedPoint> points;  // in the order of A's plan
  std::vector<std::string> texts;     // sentences: the inputs, how A and B differ, how to read the table
};
// Throws ConfigError if no point has finished runs in both, or the two studies' metrics differ.
StudyComparison compare_studies(const StudyResults& a, const StudyResults& b);

// One row per point.
TextBlock comparison_table(const StudyResults& a, const StudyComparison& comparison);

}  // namespace trivet
