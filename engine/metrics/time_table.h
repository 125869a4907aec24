// TimeTable: where the time of a run went, for the end of its log: the steps' statistics added up. And which ranks the
// others waited for.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/text.h"
#include "engine/metrics/step_stats.h"

namespace trivet {

// The times of one rank in the steps that count.
struct RankTime {
  std::string name;
  StepStats sum;
};

// Adds up steps. The first one, in which everything is touched for the first time, does not count once there is
// another.
class TimeTable {
 public:
  explicit TimeTable(int ranks, const KnownLinks& links = {}) : ranks_(ranks), links_(links) {}
  void add(const StepStats& of_all_ranks, const StepStats& of_this_rank = {});
  const StepStats& own() const { return own_; }  // what this rank did in the steps that count

  // Means of a step and a rank: the breakdown of its time; and with communication, for each class the
  // bytes, the floor of their time on the wire where a link is known, that time, how much of it was hidden and exposed
  // and how much shared with a class whose time counts first, and the time of waiting for peers.
  // ranks: a row each, what its step was spent on, where they are more than one and few enough to read.
  std::vector<TextBlock> describe(std::span<const RankTime> ranks = {}) const;

 private:
  int ranks_;
  KnownLinks links_;
  int64_t steps_ = 0, counted_ = 0;
  StepStats sum_, own_;
};

// Stragglers are ranks that keep the others waiting. A rank's own work is its step without communication: compute,
// optimizer, host, and what lies between them. It is compared with that of the ranks of the same pipeline stage, which
// have as much to do; if there is no other, with that of all ranks.
//
// work: [rank], the sum of `steps` steps; stages: [rank]. One line a rank that took more than `factor` times the median
// of its peers, and at least a millisecond a step more: the rank, by how much, and the section that it lost most in. A
// line too for a rank whose exposed wire did, and kept it busy for longer than the others of its stage: ranks of one
// group have the same wire, so it tells a slow one if there are several groups, as in pipelines.
std::vector<std::string> find_stragglers(const std::vector<StepStats>& work, const std::vector<int>& stages,
                                         int64_t steps, double factor);

// Same for ranks that took more than `factor` times as long to write their parts of a checkpoint, and at least a second
// more. write_ns: [rank].
std::vector<std::string> find_slow_disks(const std::vector<int64_t>& write_ns, double factor);

}  // namespace trivet
