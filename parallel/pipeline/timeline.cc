#include "parallel/pipeline/timeline.h"

#include <algorithm>
#include <limits>

namespace trivet {
namespace {

struct RankTime {
  double first = std::numeric_limits<double>::infinity();
  double last = -std::numeric_limits<double>::infinity();
  double busy = 0;
};

std::vector<RankTime> rank_times(const Timeline& timeline) {
  std::vector<RankTime> times(static_cast<size_t>(timeline.p));
  for (const OpSpan& span : timeline.ops) {
    RankTime& time = times[static_cast<size_t>(span.rank)];
    time.first = std::min(time.first, span.start);
    time.last = std::max(time.last, span.end);
    time.busy += span.end - span.start;
  }
  return times;
}

double mean_busy(const std::vector<RankTime>& times) {
  double busy = 0;
  for (const RankTime& time : times) busy += time.busy;
  return busy / static_cast<double>(times.size());
}

}  // namespace

Bubble bubble_of(const Timeline& timeline) {
  if (timeline.ops.empty()) return {};
  const std::vector<RankTime> times = rank_times(timeline);
  double first = std::numeric_limits<double>::infinity(), last = -std::numeric_limits<double>::infinity();
  for (const RankTime& time : times) {
    first = std::min(first, time.first);
    last = std::max(last, time.last);
  }
  return {last - first, mean_busy(times)};
}

Bubble bubble_without_barrier(const Timeline& timeline) {
  if (timeline.ops.empty()) return {};
  const std::vector<RankTime> times = rank_times(timeline);
  double longest = 0;
  for (const RankTime& time : times) longest = std::max(longest, time.last - time.first);
  return {longest, mean_busy(times)};
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
