// StragglerWatch: which rank keeps the others waiting. A rank's own work is its step without communication: compute,
// optimizer, host, and what lies between them. It is compared with that of the ranks of the same pipeline stage, which
// have as much to do; where there is no other, of all ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/metrics/step_stats.h"

namespace trivet {

struct OwnWork {
  int64_t compute = 0, optimizer = 0, host = 0, other = 0;  // ns; nothing but int64_t, so that ranks can gather them

  int64_t sum() const { return compute + optimizer + host + other; }
  OwnWork& operator+=(const StepStats& step) {
    compute += step.compute;
    optimizer += step.optimizer;
    host += step.host;
    other += step.idle;
    return *this;
  }
};

// work, stages: [rank], over `steps` steps. One line a rank that took more than `factor` times the median of its peers,
// and at least a millisecond a step more: the rank, by how much, and the section that it lost most in.
std::vector<std::string> find_stragglers(const std::vector<OwnWork>& work, const std::vector<int>& stages,
                                         int64_t steps, double factor);

}  // namespace trivet
