// Stragglers: ranks that keep the others waiting. A rank's own work is its step without communication: compute,
// optimizer, host, and what lies between them. It is compared with that of the ranks of the same pipeline stage, which
// have as much to do; where there is no other, with that of all ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/metrics/step_stats.h"

namespace trivet {

// work: [rank], the sum of `steps` steps; stages: [rank]. One line a rank that took more than `factor` times the median
// of its peers, and at least a millisecond a step more: the rank, by how much, and the section that it lost most in.
std::vector<std::string> find_stragglers(const std::vector<StepStats>& work, const std::vector<int>& stages,
                                         int64_t steps, double factor);

}  // namespace trivet
