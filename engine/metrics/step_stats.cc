#include "engine/metrics/step_stats.h"

#include <algorithm>
#include <limits>

namespace trivet {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

}  // namespace

std::optional<double> StepStats::overlap_ratio() const {
  const int64_t all = total_comm();
  if (all == 0) return {};
  return static_cast<double>(all - total_exposed()) / static_cast<double>(all);
}

StepStats& StepStats::operator+=(const StepStats& other) {
  window += other.window;
  compute += other.compute;
  optimizer += other.optimizer;
  for (size_t k = 0; k < kCommClasses; ++k) {
    comm[k] += other.comm[k];
    exposed[k] += other.exposed[k];
  }
  idle += other.idle;
  host += other.host;
  return *this;
}

void StepMeter::collect(std::span<const std::vector<Span>> rows, int64_t start_ns, int64_t end_ns) {
  const auto by_begin = [](const Interval& x, const Interval& y) { return x.begin < y.begin; };
  for (auto& list : spans_) list.clear();
  for (const auto& row : rows) {
    std::array<size_t, kCategories> before;
    for (size_t i = 0; i < kCategories; ++i) before[i] = spans_[i].size();
    for (const Span& span : row) {
      const Interval x = {std::max(span.start_ns, start_ns), std::min(span.end_ns, end_ns)};
      if (x.begin < x.end && span.info.category != Category::phase)
        spans_[static_cast<size_t>(span.info.category)].push_back(x);
    }
    // A row is in order, or nearly: nested spans end, and so are recorded, before those around them.
    for (size_t i = 0; i < kCategories; ++i) {
      const auto middle = spans_[i].begin() + static_cast<std::ptrdiff_t>(before[i]);
      if (!std::is_sorted(middle, spans_[i].end(), by_begin)) std::sort(middle, spans_[i].end(), by_begin);
      if (before[i] > 0 && middle != spans_[i].end())
        std::inplace_merge(spans_[i].begin(), middle, spans_[i].end(), by_begin);
    }
  }
  for (size_t i = 0; i < kCategories; ++i) {
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
  collect(rows, start_ns, end_ns);

  // A sweep over time. Between two neighbouring changes nothing happens; what counts of such a stretch is which
  // categories are going on, bit i for category i.
  std::array<int64_t, 1u << kCategories> time_of = {};
  std::array<const int64_t*, kCategories> next_change;
  std::array<int64_t, kCategories> next;
  for (size_t i = 0; i < kCategories; ++i) {
    next_change[i] = changes_[i].data();
    next[i] = *next_change[i];
  }
  unsigned going_on = 0;
  for (int64_t now = start_ns; now < end_ns;) {
    const int64_t until = std::min(*std::min_element(next.begin(), next.end()), end_ns);
    time_of[going_on] += until - now;
    now = until;
    for (size_t i = 0; i < kCategories; ++i) {
      const bool changes = next[i] == now;
      going_on ^= static_cast<unsigned>(changes) << i;
      next_change[i] += changes;
      next[i] = *next_change[i];
    }
  }

  StepStats stats;
  stats.window = end_ns - start_ns;
  for (unsigned state = 0; state < time_of.size(); ++state) {
    const auto on = [&](Category category) { return (state >> static_cast<unsigned>(category) & 1u) != 0; };
    const bool work = on(Category::compute) || on(Category::optimizer);
    const bool comm = on(Category::comm_tensor) || on(Category::comm_pipeline) || on(Category::comm_data);
    if (work) stats.compute += time_of[state];
    if (on(Category::optimizer)) stats.optimizer += time_of[state];
    if (comm) {
      const auto k = static_cast<size_t>(on(Category::comm_tensor)     ? CommClass::tensor
                                         : on(Category::comm_pipeline) ? CommClass::pipeline
                                                                       : CommClass::data);
      stats.comm[k] += time_of[state];
      if (!work) stats.exposed[k] += time_of[state];
    }
    if (!work && !comm) {
      stats.idle += time_of[state];
      if (on(Category::host)) stats.host += time_of[state];
    }
  }
  return stats;
}

}  // namespace trivet
