#include "engine/metrics/step_stats.h"

#include <algorithm>
#include <limits>

namespace trivet {
namespace {

struct Interval {
  int64_t begin, end;
};
// In order, disjoint, none empty.
using Intervals = std::vector<Interval>;

int64_t measure(const Intervals& a) {
  int64_t sum = 0;
  for (const Interval& x : a) sum += x.end - x.begin;
  return sum;
}

// Adds x, which begins at or after the begin of the last one.
void append(Intervals& to, const Interval& x) {
  if (!to.empty() && x.begin <= to.back().end) to.back().end = std::max(to.back().end, x.end);
  else to.push_back(x);
}

Intervals unite(const Intervals& a, const Intervals& b) {
  Intervals out;
  out.reserve(a.size() + b.size());
  auto x = a.begin(), y = b.begin();
  while (x != a.end() || y != b.end()) {
    const bool from_a = y == b.end() || (x != a.end() && x->begin <= y->begin);
    append(out, from_a ? *x++ : *y++);
  }
  return out;
}

Intervals subtract(const Intervals& a, const Intervals& b) {
  Intervals out;
  out.reserve(a.size() + b.size());
  auto cut = b.begin();
  for (Interval x : a) {
    while (cut != b.end() && cut->end <= x.begin) ++cut;
    for (auto c = cut; c != b.end() && c->begin < x.end; ++c) {
      if (c->begin > x.begin) out.push_back({x.begin, c->begin});
      x.begin = c->end;
      if (x.begin >= x.end) break;
      cut = c;
    }
    if (x.begin < x.end) out.push_back(x);
  }
  return out;
}

// Spans of any order as intervals.
void normalise(Intervals& spans) {
  const auto by_begin = [](const Interval& x, const Interval& y) { return x.begin < y.begin; };
  if (!std::is_sorted(spans.begin(), spans.end(), by_begin)) std::sort(spans.begin(), spans.end(), by_begin);
  size_t kept = 0;
  for (const Interval& x : spans) {
    if (kept > 0 && x.begin <= spans[kept - 1].end) spans[kept - 1].end = std::max(spans[kept - 1].end, x.end);
    else spans[kept++] = x;
  }
  spans.resize(kept);
}

constexpr size_t kCategories = static_cast<size_t>(Category::phase) + 1;

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

StepStats measure_step(std::span<const std::vector<Span>> rows, int64_t start_ns, int64_t end_ns) {
  // Each row is brought in order on its own: rows are in order, or nearly, and all of them together are not.
  std::array<Intervals, kCategories> all;
  std::array<Intervals, kCategories> row_of;
  for (const auto& row : rows) {
    for (Intervals& intervals : row_of) intervals.clear();
    for (const Span& span : row) {
      const Interval x = {std::max(span.start_ns, start_ns), std::min(span.end_ns, end_ns)};
      if (x.begin < x.end) row_of[static_cast<size_t>(span.info.category)].push_back(x);
    }
    for (size_t i = 0; i < kCategories; ++i) {
      if (row_of[i].empty()) continue;
      normalise(row_of[i]);
      all[i] = all[i].empty() ? row_of[i] : unite(all[i], row_of[i]);
    }
  }
  const auto spans_of = [&](Category category) -> const Intervals& { return all[static_cast<size_t>(category)]; };

  StepStats stats;
  stats.window = end_ns - start_ns;
  const Intervals work = unite(spans_of(Category::compute), spans_of(Category::optimizer));
  stats.compute = measure(work);
  stats.optimizer = measure(spans_of(Category::optimizer));
  Intervals claimed, busy = work;
  size_t k = 0;
  for (const Category category : {Category::comm_tensor, Category::comm_pipeline, Category::comm_data}) {
    const Intervals own = subtract(spans_of(category), claimed);
    stats.comm[k] = measure(own);
    stats.exposed[k] = measure(subtract(own, work));
    claimed = unite(claimed, own);
    busy = unite(busy, own);
    ++k;
  }
  stats.idle = stats.window - measure(busy);
  stats.host = measure(subtract(spans_of(Category::host), busy));
  return stats;
}

}  // namespace trivet
