#include "engine/metrics/step_stats.h"

#include <algorithm>
#include <bit>
#include <limits>

namespace trivet {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

std::optional<double> hidden_part(int64_t all, int64_t exposed) {
  if (all == 0) return {};
  return static_cast<double>(all - exposed) / static_cast<double>(all);
}

}  // namespace

std::optional<double> StepStats::overlap_ratio() const { return hidden_part(sum(wire), sum(exposed_wire)); }
std::optional<double> StepStats::overlap_ratio(size_t k) const { return hidden_part(wire[k], exposed_wire[k]); }

StepStats& StepStats::operator+=(const StepStats& other) {
  for (int64_t StepStats::*x :
       {&StepStats::window, &StepStats::compute, &StepStats::optimizer, &StepStats::host, &StepStats::idle})
    this->*x += other.*x;
  for (ByClass StepStats::*x :
       {&StepStats::wire, &StepStats::exposed_wire, &StepStats::exposed_wait, &StepStats::bytes})
    for (size_t k = 0; k < kCommClasses.size(); ++k) (this->*x)[k] += (other.*x)[k];
  return *this;
}

void StepMeter::collect(std::span<const std::vector<Span>> rows, int64_t start_ns, int64_t end_ns, ByClass& bytes) {
  const auto by_begin = [](const Interval& x, const Interval& y) { return x.begin < y.begin; };
  for (auto& list : spans_) list.clear();
  const auto add = [&](size_t activity, int64_t begin, int64_t end) {
    const Interval x = {std::max(begin, start_ns), std::min(end, end_ns)};
    if (x.begin < x.end) spans_[activity].push_back(x);
  };
  for (const auto& row : rows) {
    std::array<size_t, kActivities> before;
    for (size_t i = 0; i < kActivities; ++i) before[i] = spans_[i].size();
    for (const Span& span : row) {
      const Category category = span.info.category;
      if (is_comm(category)) {
        const size_t k = class_of(category);
        const int64_t matched = span.matched_ns == 0 ? span.start_ns : span.matched_ns;
        add(wait + k, span.start_ns, matched);
        add(wire + k, matched, span.end_ns);
        if (span.start_ns < end_ns && span.end_ns >= start_ns) bytes[k] += span.info.bytes;
      } else if (category != Category::phase) {
        add(category == Category::compute     ? compute
            : category == Category::optimizer ? optimizer
                                              : host,
            span.start_ns, span.end_ns);
      }
    }
    // A row is in order, or nearly: nested spans end, and so are recorded, before those around them.
    for (size_t i = 0; i < kActivities; ++i) {
      const auto middle = spans_[i].begin() + static_cast<std::ptrdiff_t>(before[i]);
      if (!std::is_sorted(middle, spans_[i].end(), by_begin)) std::sort(middle, spans_[i].end(), by_begin);
      if (before[i] > 0 && middle != spans_[i].end())
        std::inplace_merge(spans_[i].begin(), middle, spans_[i].end(), by_begin);
    }
  }
  for (size_t i = 0; i < kActivities; ++i) {
    std::vector<int64_t>& changes = changes_[i];
    changes.clear();
    for (const Interval& x : spans_[i]) {
      if (!changes.empty() && x.begin <= changes.back()) changes.back() = std::max(changes.back(), x.end);
      else changes.insert(changes.end(), {x.begin, x.end});
    }
    changes.push_back(kNever);
  }
}

StepStats StepMeter::measure(std::span<const std::vector<Span>> rows, int64_t start_ns, int64_t end_ns) {
  StepStats stats;
  stats.window = end_ns - start_ns;
  collect(rows, start_ns, end_ns, stats.bytes);

  // A sweep over time. Between two neighbouring changes nothing happens; what counts of such a stretch is which
  // activities are going on, bit i for activity i.
  std::array<int64_t, 1u << kActivities> time_of = {};
  std::array<const int64_t*, kActivities> next_change;
  std::array<int64_t, kActivities> next;
  for (size_t i = 0; i < kActivities; ++i) {
    next_change[i] = changes_[i].data();
    next[i] = *next_change[i];
  }
  unsigned going_on = 0;
  for (int64_t now = start_ns; now < end_ns;) {
    const int64_t until = std::min(*std::min_element(next.begin(), next.end()), end_ns);
    time_of[going_on] += until - now;
    now = until;
    for (size_t i = 0; i < kActivities; ++i) {
      const bool changes = next[i] == now;
      going_on ^= static_cast<unsigned>(changes) << i;
      next_change[i] += changes;
      next[i] = *next_change[i];
    }
  }

  for (unsigned state = 0; state < time_of.size(); ++state) {
    const int64_t time = time_of[state];
    if (time == 0) continue;
    // The lowest bit is what counts; among the wire's bits, of which class it is.
    const unsigned wires = state >> wire & ((1u << kCommClasses.size()) - 1);
    if (wires != 0) stats.wire[static_cast<size_t>(std::countr_zero(wires))] += time;
    const auto first = static_cast<size_t>(std::countr_zero(state));
    if (state == 0) stats.idle += time;
    else if (first == compute) stats.compute += time;
    else if (first == optimizer) stats.optimizer += time;
    else if (first < wait) stats.exposed_wire[first - wire] += time;
    else if (first < host) stats.exposed_wait[first - wait] += time;
    else stats.host += time;
  }
  return stats;
}

}  // namespace trivet
