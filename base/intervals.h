// The times at which any of several activities ran: disjoint half-open intervals, in order.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

namespace trivet {

struct Interval {
  int64_t begin = 0, end = 0;
  int64_t length() const { return end - begin; }
  Interval cut_to(const Interval& x) const { return {std::max(begin, x.begin), std::min(end, x.end)}; }
  bool operator==(const Interval&) const = default;
};

// parts: in any order; they may overlap, and empty ones are ignored.
inline std::vector<Interval> united(std::vector<Interval> parts) {
  std::ranges::sort(parts, {}, &Interval::begin);
  std::vector<Interval> all;
  for (const Interval& part : parts) {
    if (part.begin >= part.end) continue;
    if (all.empty() || part.begin > all.back().end) all.push_back(part);
    else all.back().end = std::max(all.back().end, part.end);
  }
  return all;
}

// The parts of `within` outside `covered`, which must be a result of united().
inline std::vector<Interval> gaps(const std::vector<Interval>& covered, const Interval& within) {
  std::vector<Interval> gaps;
  int64_t from = within.begin;
  auto next = std::ranges::upper_bound(covered, within.begin, {}, &Interval::end);
  for (; next != covered.end() && next->begin < within.end; ++next) {
    if (next->begin > from) gaps.push_back({from, next->begin});
    from = next->end;
  }
  if (from < within.end) gaps.push_back({from, within.end});
  return gaps;
}

inline int64_t length_of(const std::vector<Interval>& disjoint) {
  return std::accumulate(disjoint.begin(), disjoint.end(), int64_t{0},
                         [](int64_t sum, const Interval& x) { return sum + x.length(); });
}

}  // namespace trivet
