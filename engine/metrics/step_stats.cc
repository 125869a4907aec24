#include "engine/metrics/step_stats.h"

#include <algorithm>
#include <bit>
#include <limits>

namespace trivet {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

std::optional<double> ratio(int64_t part, int64_t whole) {
  if (whole == 0) return {};
  return static_cast<double>(part) / static_cast<double>(whole);
}

}  // namespace

std::optional<double> StepStats::overlap_ratio() const { return ratio(any_wire - sum(exposed), any_wire); }
std::optional<double> StepStats::overlap_ratio(size_t k) const { return ratio(hidden[k], wire[k]); }

StepStats& StepStats::operator+=(const StepStats& other) {
  for (int64_t StepStats::*x : {&StepStats::window, &StepStats::compute, &StepStats::optimizer, &StepStats::host,
                                &StepStats::idle, &StepStats::any_wire})
    this->*x += other.*x;
  for (ByClass StepStats::*x : {&StepStats::exposed, &StepStats::wait, &StepStats::wire, &StepStats::hidden,
                                &StepStats::floor, &StepStats::wire_bytes})
    for (size_t k = 0; k < kCommClasses.size(); ++k) (this->*x)[k] += (other.*x)[k];
  return *this;
}

void StepMeter::collect_call(const Span& span, int64_t start_ns, int64_t end_ns, StepStats& stats) {
  const size_t k = class_of(span.info.category);
  const auto [from, until] = span.wire();
  add(wait + k, span.start_ns, std::min(from, span.end_ns), start_ns, end_ns);
  add(wire + k, from, until, start_ns, end_ns);
  add(host, std::max(until, span.start_ns), span.end_ns, start_ns, end_ns);
  const WireCost& cost = span.info.cost;
  const bool inside = from < end_ns && until >= start_ns;
  if (cost.hops == 0 || (!inside && !between_windows_)) return;
  stats.wire_bytes[k] += cost.bytes;
  if (inside && links_[k]) floors_[k].push_back({from, wire_time(*links_[k], cost), cost.queues});
}

int64_t StepMeter::floor_of(std::vector<FloorCall>& calls, int64_t start_ns, int64_t end_ns) const {
  std::sort(calls.begin(), calls.end(), [](const FloorCall& x, const FloorCall& y) { return x.start < y.start; });
  int64_t floor = 0, covered = start_ns, port_free = std::numeric_limits<int64_t>::min();
  for (const FloorCall& call : calls) {
    const int64_t begin = call.queues ? std::max(call.start, port_free) : call.start;
    if (call.queues) port_free = begin + call.time.busy_ns;
    const int64_t end = std::min(begin + call.time.total(), end_ns);
    floor += std::max(int64_t{0}, end - std::max(begin, covered));
    covered = std::max(covered, end);
  }
  calls.clear();
  return floor;
}

void StepMeter::collect(std::span<const std::vector<Span>> rows, int64_t start_ns, int64_t end_ns, StepStats& stats) {
  const auto by_begin = [](const Interval& x, const Interval& y) { return x.begin < y.begin; };
  for (auto& list : spans_) list.clear();
  for (const auto& row : rows) {
    std::array<size_t, kActivities> before;
    for (size_t i = 0; i < kActivities; ++i) before[i] = spans_[i].size();
    for (const Span& span : row) {
      const Category category = span.info.category;
      if (is_comm(category)) collect_call(span, start_ns, end_ns, stats);
      else if (category != Category::phase)
        add(category == Category::compute     ? compute
            : category == Category::optimizer ? optimizer
                                              : host,
            span.start_ns, span.end_ns, start_ns, end_ns);
    }
    // Rows are sorted, or nearly: a nested span ends, and so is recorded, before its parent.
    for (size_t i = 0; i < kActivities; ++i) {
      const auto middle = spans_[i].begin() + static_cast<std::ptrdiff_t>(before[i]);
      if (!std::is_sorted(middle, spans_[i].end(), by_begin)) std::sort(middle, spans_[i].end(), by_begin);
      if (before[i] > 0 && middle != spans_[i].end())
        std::inplace_merge(spans_[i].begin(), middle, spans_[i].end(), by_begin);
    }
  }
  for (size_t k = 0; k < kCommClasses.size(); ++k) stats.floor[k] = floor_of(floors_[k], start_ns, end_ns);
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
  collect(rows, start_ns, end_ns, stats);

  // A sweep over time. Between two adjacent changes the set of activities in progress is constant: bit i is activity i.
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
    constexpr unsigned kWork = 1u << compute | 1u << optimizer, kWires = (1u << kCommClasses.size()) - 1;
    const unsigned wires = state >> wire & kWires;
    if (wires != 0) stats.any_wire += time;
    for (size_t k = 0; k < kCommClasses.size(); ++k) {
      if ((wires >> k & 1) == 0) continue;
      stats.wire[k] += time;
      if ((state & kWork) != 0) stats.hidden[k] += time;
    }
    // The lowest bit takes precedence.
    const auto first = static_cast<size_t>(std::countr_zero(state));
    if (state == 0) stats.idle += time;
    else if (first == compute) stats.compute += time;
    else if (first == optimizer) stats.optimizer += time;
    else if (first < wait) stats.exposed[first - wire] += time;
    else if (first < host) stats.wait[first - wait] += time;
    else stats.host += time;
  }
  return stats;
}

}  // namespace trivet
