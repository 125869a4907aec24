// TimeTable: the breakdown of a run's time, printed at the end of its log: the sum of its steps' statistics. Also finds
// the ranks that the others waited for.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/text.h"
#include "engine/metrics/step_stats.h"

namespace trivet {

// The times of one rank, summed over the counted steps.
struct RankTime {
  std::string name;
  StepStats sum;
};

// Adds up steps. The first step, which includes warm-up, does not count once there is a second.
class TimeTable {
 public:
  explicit TimeTable(int ranks, const KnownLinks& links = {}) : ranks_(ranks), links_(links) {}
  void add(const StepStats& of_all_ranks, const StepStats& of_this_rank = {});
  const StepStats& own() const { return own_; }  // this rank's sum over the counted steps

  // Means per step per rank: the time breakdown, and for each class of communication the bytes, the floor of its wire
  // time if the link is known, the wire time, its hidden and exposed parts, the part shared with a class that takes
  // precedence, and the time spent waiting for peers. ranks: adds one row per rank with its own breakdown, if there are
  // several but few enough to read.
  std::vector<TextBlock> describe(std::span<const RankTime> ranks = {}) const;

 private:
  int ranks_;
  KnownLinks links_;
  int64_t steps_ = 0, counted_ = 0;
  StepStats sum_, own_;
};

// Stragglers are ranks that keep the others waiting. A rank's own work is its step without communication: compute,
// optimizer, host, and the idle time between them. It is compared with the own work of the other ranks in the same
// pipeline stage, which have the same load; if there are none, with that of all other ranks.
//
// work: [rank], the sum of `steps` steps; stages: [rank]. One line per rank whose own work took more than `factor`
// times the median of its peers, and at least 1 ms per step longer: the rank, both times, and where it lost most. Also
// one line per rank whose exposed wire time exceeded these limits, if it was busy longer than the rest of its stage: a
// group's ranks share their wire time, so this finds a slow rank only among several groups, as in pipelines.
std::vector<std::string> find_stragglers(const std::vector<StepStats>& work, const std::vector<int>& stages,
                                         int64_t steps, double factor);

// Same for ranks that took more than `factor` times as long to write their parts of a checkpoint, and at least 1 s
// longer. write_ns: [rank].
std::vector<std::string> find_slow_disks(const std::vector<int64_t>& write_ns, double factor);

}  // namespace trivet
