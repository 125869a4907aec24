#include "parallel/comm/clock_offsets.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace trivet {

ClockOffsets::ClockOffsets(HostWorld& ranks, int64_t clock_number, std::function<int64_t()> now)
    : ranks_(ranks), now_(std::move(now)) {
  const std::vector<int64_t> clocks = ranks.gather(clock_number);
  const auto leader_of = [&](int64_t clock) {
    return static_cast<int>(std::ranges::find(clocks, clock) - clocks.begin());
  };
  for (const int64_t clock : clocks) leaders_.insert(leader_of(clock));
  leader_ = leader_of(clock_number);
  measure();
  before_ = last_;
}

void ClockOffsets::measure() {
  if (one_clock()) return;
  constexpr int kTimes = 8;
  Measurement best{.round_trip = INT64_MAX};
  for (const int leader : leaders_)
    for (int i = 0; leader > 0 && i < kTimes; ++i)
      if (ranks_.rank() == leader) {
        const int64_t asked = now_();
        ranks_.send(asked, 0);
        const auto theirs = ranks_.receive<int64_t>(0);
        const int64_t round_trip = now_() - asked, middle = asked + round_trip / 2;
        if (round_trip < best.round_trip) best = {middle, theirs - middle, round_trip};
      } else if (ranks_.rank() == 0) {
        ranks_.receive<int64_t>(leader);
        ranks_.send(now_(), leader);
      }
  if (ranks_.rank() == 0) best = {};
  before_ = std::exchange(last_, ranks_.gather(best)[static_cast<size_t>(leader_)]);
}

int64_t ClockOffsets::offset(int64_t ns) const {
  if (ns <= before_.at || last_.at == before_.at) return before_.offset;
  const double part = static_cast<double>(ns - before_.at) / static_cast<double>(last_.at - before_.at);
  return before_.offset + std::llround(static_cast<double>(last_.offset - before_.offset) * std::min(part, 1.0));
}

}  // namespace trivet
