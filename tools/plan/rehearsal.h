// Rehearsal: the tapes of all ranks of a run, and their players. Ranks that queue the same work share a tape: those of
// a pipeline stage whose optimizers own shards of the same sizes.
#pragma once

#include <deque>
#include <vector>

#include "tools/plan/replay.h"

namespace trivet {

struct Rehearsal {
  TapeGroups groups;
  std::deque<Tape> tapes;       // each recorded by the first rank that plays it
  std::vector<Player> players;  // [rank], or where they are merged, in the order of their first ranks
  std::vector<int> player_of;   // [rank], of `players`
};

// each_rank: no rank shares a tape.
Rehearsal rehearse(const Config& config, const Layout& layout, const TapeOptions& options = {}, bool each_rank = false);

// One player for all ranks that do the same at the same times, where the cost of a call depends on the nodes of its
// group's members: the coarsest equitable partition of ranks and groups, by colour refinement. Ranks are of one colour
// if they have the same tape and groups of the same colours in the same order; groups, if they are placed alike on
// their nodes and their members are of the same colours. Exact: the times are those of all ranks, to the nanosecond.
void merge_ranks(Rehearsal& rehearsal, int ranks_per_node);

}  // namespace trivet
