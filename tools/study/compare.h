// Comparison of two sets of results of a study: two machines, two commits, two environments. Point by point, as the
// levels of the factors name them:
//
//   ratio         the metric in B over that in A. The two were measured at different times, so whatever changed in
//                 between is part of it
//   effect ratio  a point's ratio to its baseline in B over that in A: whether a setting is worth the same on both.
//                 Each is measured against a baseline next to it, so that the speed of the machines cancels
//
// Both are ratios of geometric means over rounds, which the two do not share: 95 % intervals and p-values by
// Welch's t test on logarithms, corrected for the number of points (Holm). A verdict needs kFewestRounds of
// both.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/text.h"
#include "tools/study/summary.h"

namespace trivet {

// The results in a study's folder, by themselves: the plan has the points that were run.
struct StudyResults {
  std::string folder;
  Study study;
  std::vector<RunRow> rows;
  Plan plan;
};
// From study.yaml and results.jsonl in `folder`. Throws ConfigError if they are not there or nothing has been
// measured; DataError.
StudyResults load_results(const std::string& folder);

struct Comparison {
  Estimate a = {}, b = {}, ratio = {};
  double corrected_p = 1;
  Verdict verdict = Verdict::too_few;
};
struct ComparedPoint {
  size_t a = 0, b = 0;  // of StudyResults::plan
  bool same_settings = true;
  Comparison metric = {};                 // a, b: geometric means over rounds
  std::optional<Comparison> effect = {};  // a, b: ratios to the baseline; empty of a baseline, or without one
};
struct StudyComparison {
  std::vector<ComparedPoint> points;  // in the order of A's plan
  std::vector<std::string> texts;     // the subject, the differences, the table's conclusions: sentences, one an item
};
// Throws ConfigError if no point is in both, or their metrics differ.
StudyComparison compare_studies(const StudyResults& a, const StudyResults& b);

// A row a point.
TextBlock comparison_table(const StudyResults& a, const StudyComparison& comparison);

}  // namespace trivet
