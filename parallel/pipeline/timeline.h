// Timeline: when every op of a step ran and when every message was in flight; simulated (simulate.h) or measured.
//
// Times are in `unit`s from the step's start. The measures below and the renderers of render.h work on both kinds.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "parallel/pipeline/schedule.h"

namespace trivet {

struct OpSpan {
  int rank = 0;
  Op op;
  double start = 0;
  double end = 0;
};

// A message in flight: from its first byte leaving `from` until the receiver can use it.
struct TransferSpan {
  Channel channel;
  Op op;  // the sender's op, whose result it carries
  double start = 0;
  double end = 0;
  double bytes = 0;
};

struct Timeline {
  std::string title;
  std::string unit;  // "s", "ms", "us", or "": an abstract unit
  int p = 1;         // ranks
  int v = 1;         // chunks per rank
  StageMap map = StageMap::interleaved;
  std::vector<OpSpan> ops;              // in time order on each rank
  std::vector<TransferSpan> transfers;  // in time order on each channel
};

// The idle time of a rank: makespan - busy, where a rank is busy while it runs ops.
struct Bubble {
  double makespan = 0;
  double busy = 0;  // mean over ranks
  double time() const { return std::max(makespan - busy, 0.0); }
  double of_ideal() const { return busy > 0 ? time() / busy : 0; }          // Megatron's ratio: (p-1) / m for 1F1B
  double of_total() const { return makespan > 0 ? time() / makespan : 0; }  // lost per GPU hour: (p-1) / (m+p-1)
};
// The makespan is the time from the first start to the last end on any rank. Without a barrier between steps, ranks
// start the next step as soon as they end this one; the makespan is then the longest time from any rank's first start
// to its last end.
enum class Barrier : uint8_t { none, between_steps };
Bubble bubble_of(const Timeline& timeline, Barrier barrier = Barrier::between_steps);

std::vector<Program> programs_of(const Timeline& timeline);

// The peak numbers of slots and stashes on each rank, with one pool per rank (see SlotPlan).
struct Peak {
  int slots = 0;
  int stashes = 0;
  bool operator==(const Peak&) const = default;
};
std::vector<Peak> peaks_of(const std::vector<Program>& programs, int chunks);

}  // namespace trivet
