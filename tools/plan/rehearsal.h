// Rehearsal: the tapes of all ranks of a run, and their players. Ranks that queue the same work share a tape: those of
// one pipeline stage whose optimizers own shards of the same sizes.
#pragma once

#include <deque>
#include <vector>

#include "tools/plan/replay.h"

namespace trivet {

struct Rehearsal {
  TapeGroups groups;
  std::deque<Tape> tapes;       // each recorded on the first rank that plays it
  std::vector<Player> players;  // [rank], or after merge_ranks(), in the order of their first ranks
  std::vector<int> player_of;   // [rank]: index in `players`
};

// each_rank: records every rank separately, without sharing tapes.
Rehearsal rehearse(const Config& config, const Layout& layout, const TapeOptions& options = {}, bool each_rank = false);

// Merges ranks that do the same work at the same times into one player, by the coarsest equitable partition of ranks
// and groups (colour refinement). A call's cost may depend on the nodes of its group's members. Two ranks share a
// colour if they share a tape and their groups have the same colours in the same order. Two groups share a colour if
// their placement on nodes and their members' colours are the same. Exact to the nanosecond.
void merge_ranks(Rehearsal& rehearsal, int ranks_per_node);

}  // namespace trivet
