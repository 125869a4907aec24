// Successive halving (K. Jamieson, A. Talwalkar 2016; sequential halving: Z. Karnin, T. Koren, O. Somekh 2013): all
// points run the first few rounds, and then, while the rounds double, the worse half by the study's metric is dropped,
// under each condition, so that every rung costs about the same. A point is dropped only where it is no candidate for
// the best (Conclusion::best: another one was better, corrected for all comparisons); points that are tied go on, and
// so do baselines.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/study/plan.h"

namespace trivet {

struct Rung {
  int64_t rounds = 0;          // it ends after this one
  std::vector<size_t> points;  // that run until then, of Plan::points
};

// As far as results tell: each but the last has ended. Of other designs one rung, of all points and `study.repeats`.
std::vector<Rung> halving_rungs(const Study& study, const Plan& plan, const std::vector<RunRow>& rows);

// "halving: 16 points up to round 5, 8 up to round 10"
std::string halving_text(const std::vector<Rung>& rungs);

}  // namespace trivet
