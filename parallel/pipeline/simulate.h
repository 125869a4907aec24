// Simulate: computes when every op of a schedule would run, given the costs of ops and transfers. Event-driven:
// O(n log n) for n ops.
//
// A rank runs its program in order, one op at a time. An op starts when its rank is free and its input has arrived; its
// result is sent when it ends:
//   overlapped: the transfer overlaps the rank's next ops.
//   blocking:   the rank does nothing else until its message has arrived.
// Messages from one rank to another share the wire, first come first served: each occupies it for bytes / bandwidth and
// arrives `latency` later.
#pragma once

#include <string>
#include <vector>

#include "parallel/pipeline/schedule.h"
#include "parallel/pipeline/timeline.h"

namespace trivet {

// Costs per micro-batch on one stage.
struct StageCosts {
  double forward = 1;
  double backward_input = 1;
  double backward_weight = 1;
  double whole_saves = 0;  // a whole backward pass costs this much less than its halves
  double of(OpKind kind) const;
};

struct Costs {
  std::vector<StageCosts> stages = std::vector<StageCosts>(1);  // one for all stages, or one per stage
  double latency = 0;
  double bytes = 0;      // per message
  double bandwidth = 0;  // of a wire, in bytes per unit of time; 0: no limit
  bool blocking = false;
  int channel_depth = 0;  // as in ChannelDepths (check.h); 0: no limit
  std::string unit{};     // of the times, for the Timeline
};

// A rank that cannot continue.
struct StuckRank {
  int rank = 0;
  size_t next = 0;  // index in its program
  std::string waits_for;
};
std::string to_string(const Schedule& schedule, const StuckRank& stuck);

// Throws ConfigError if `costs` does not fit the schedule or if ranks get stuck; the error shows each stuck rank's op.
Timeline simulate(const Schedule& schedule, const Costs& costs);

// The ranks that get stuck; empty: none. REQUIRES: ops in range; the schedule may otherwise be invalid.
std::vector<StuckRank> find_stuck_ranks(const Schedule& schedule, const Costs& costs);

}  // namespace trivet
