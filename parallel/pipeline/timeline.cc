#include "parallel/pipeline/timeline.h"

#include <algorithm>
#include <limits>

namespace trivet {
Bubble bubble_of(const Timeline& timeline, Barrier barrier) {
  if (timeline.ops.empty()) return {};
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  struct Times {
    double first = kInfinity, last = -kInfinity, busy = 0;
  };
  std::vector<Times> ranks(static_cast<size_t>(timeline.p));
  for (const OpSpan& span : timeline.ops) {
    Times& rank = ranks[static_cast<size_t>(span.rank)];
    rank.first = std::min(rank.first, span.start);
    rank.last = std::max(rank.last, span.end);
    rank.busy += span.end - span.start;
  }
  Times all;
  double longest = 0;
  for (const Times& rank : ranks) {
    all.first = std::min(all.first, rank.first);
    all.last = std::max(all.last, rank.last);
    all.busy += rank.busy;
    longest = std::max(longest, rank.last - rank.first);
  }
  return {barrier == Barrier::none ? longest : all.last - all.first, all.busy / timeline.p};
}

std::vector<Program> programs_of(const Timeline& timeline) {
  std::vector<Program> programs(static_cast<size_t>(timeline.p));
  for (const OpSpan& span : timeline.ops) programs[static_cast<size_t>(span.rank)].push_back(span.op);
  return programs;
}

std::vector<Peak> peaks_of(const std::vector<Program>& programs, int chunks) {
  std::vector<Peak> peaks;
  for (const Program& program : programs) {
    const SlotPlan plan = plan_slots(program, chunks, SlotPool::shared);
    peaks.push_back({plan.slots[0], plan.stashes[0]});
  }
  return peaks;
}

}  // namespace trivet
