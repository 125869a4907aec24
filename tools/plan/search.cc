#include "tools/plan/search.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <fmt/format.h>
#include <limits>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "base/parallel_for.h"
#include "base/text.h"
#include "tools/plan/bound.h"
#include "tools/plan/device_memory.h"

namespace trivet {
namespace {

// A layout that may fit in memory.
struct Point {
  LayoutBound bound;
  uint32_t shape = 0;
  uint16_t recomputing = 0;
  Sharding sharding = Sharding::no_shard;
};

class Search {
 public:
  Search(const LoadedConfig& run, const RunFacts& facts, const System& system, const SearchOptions& options)
      : run_(run),
        facts_(facts),
        system_(system),
        options_(options),
        bounds_(run, system),
        shapes_(list_shapes(run.config, facts.world_size)) {
    if (options.shapes) std::erase_if(shapes_, [&](const LayoutShape& shape) { return !options.shapes(shape); });
  }

  SearchResult find();

 private:
  using Clock = std::chrono::steady_clock;
  // A layout to rehearse. Later only the candidate is kept: the schedules of thousands of layouts would take gigabytes.
  struct Pending {
    ResolvedCandidate run;
    Candidate candidate;
  };

  double passed() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }
  // Stays true once true. Thread-safe.
  bool over() {
    if (!over_ && ((options_.stop && options_.stop()) || passed() > options_.seconds)) over_ = true;
    return over_;
  }
  // Bounds may take at most half of the time, because bounds alone find no layout.
  bool bounds_are_over() { return over() || passed() > options_.seconds / 2; }
  void rehearse_own();
  void bound_layouts();
  std::optional<std::vector<Point>> bound_shape(size_t number);
  std::vector<Point> bound_family(size_t first, size_t end);
  void visit_layouts();
  std::optional<Pending> take(const Point& point);
  Pending pending_of(ResolvedCandidate run, Candidate candidate) const;
  std::vector<Candidate> rehearsed(std::vector<Pending> pending) const;
  void rehearse(std::vector<Pending> pending);
  std::vector<Candidate> rehearse_neighbours(const Candidate& of, std::string_view key);
  void refine();
  // Empty if the engine rejects it.
  std::optional<ResolvedCandidate> layout_of(const LayoutShape& shape, const Recomputing& how,
                                             Sharding sharding) const {
    return resolve_candidate(with_layout(run_, facts_.world_size, shape, how, sharding), facts_);
  }
  bool fits(const ResolvedCandidate& run) const {
    return sum_of(memory_of_worst_rank(run.config, run.layout, system_)) <= device_bytes(system_, facts_.world_size);
  }
  [[noreturn]] void fail_empty() const;
  double last_of_best() const;
  void report(bool refining);

  const LoadedConfig& run_;
  const RunFacts facts_;
  const System system_;
  const SearchOptions& options_;
  Bounds bounds_;
  std::vector<LayoutShape> shapes_;
  const Clock::time_point start_ = Clock::now();
  std::vector<std::vector<Recomputing>> recomputings_;  // [shape]
  std::vector<Point> points_;                           // sorted by bound
  size_t next_ = 0;                                     // index in points_
  std::set<std::pair<uint32_t, Sharding>> fitted_;      // shapes that fit with that sharding
  std::vector<Candidate> found_;                        // sorted by seconds
  size_t families_ = 0, bounded_ = 0;
  std::atomic<int64_t> illegal_ = 0, too_large_ = 0, unbounded_ = 0;
  std::atomic<bool> over_ = false;
  std::string own_;             // the input configuration, if it was rehearsed
  std::set<std::string> seen_;  // configurations already tried with changed switches
  SearchResult result_;
};

// Empty if the engine rejects the shape. Layouts whose memory bound exceeds a rank's memory are only counted.
std::optional<std::vector<Point>> Search::bound_shape(size_t number) {
  const LayoutShape& shape = shapes_[number];
  const std::vector<Sharding> shardings = list_shardings(facts_.world_size / (shape.t * shape.p));
  const auto legal = layout_of(shape, {}, shardings.front());
  if (!legal) return std::nullopt;
  std::vector<Recomputing>& recomputings = recomputings_[number];
  recomputings = list_recomputings(std::ranges::max(legal->layout.layers_of_stage));
  if (options_.recomputings)
    std::erase_if(recomputings, [&](const Recomputing& how) { return !options_.recomputings(how); });
  std::vector<Point> points;
  // Models on CPUs are small, so all their layouts are rehearsed, without bounds.
  const auto bounds =
      system_.kind() == SystemKind::gpu
          ? bounds_.of(shape, *legal, recomputings, shardings)
          : std::vector<std::vector<LayoutBound>>(recomputings.size(), std::vector<LayoutBound>(shardings.size()));
  const auto reserves = static_cast<int64_t>((system_.context_gib + system_.workspace_gib) * (1 << 30));
  for (size_t i = 0; i < bounds.size(); ++i)
    for (size_t k = 0; k < shardings.size(); ++k)
      if (bounds[i][k].memory_bytes + reserves <= device_bytes(system_, facts_.world_size))
        points.push_back({bounds[i][k], static_cast<uint32_t>(number), static_cast<uint16_t>(i), shardings[k]});
  too_large_ += static_cast<int64_t>(bounds.size() * shardings.size() - points.size());
  return points;
}

// Computes bounds for shapes that differ only in micro-batch size, smallest first. If no layout of a shape fits, none
// with a larger micro-batch does, because at least as many samples are in flight.
std::vector<Point> Search::bound_family(size_t first, size_t end) {
  std::vector<Point> points;
  for (size_t number = first; number < end; ++number) {
    if (bounds_are_over()) {
      unbounded_ += static_cast<int64_t>(end - number);
      break;
    }
    const auto of_shape = bound_shape(number);
    illegal_ += of_shape ? 0 : 1;
    if (!of_shape) continue;
    if (of_shape->empty()) {
      too_large_ += static_cast<int64_t>(end - number - 1);
      break;
    }
    points.insert(points.end(), of_shape->begin(), of_shape->end());
  }
  return points;
}

void Search::bound_layouts() {
  recomputings_.resize(shapes_.size());
  std::vector<size_t> begins;  // the first shape of each family
  for (size_t i = 0; i < shapes_.size(); ++i)
    if (i == 0 || shapes_[i].micro_batch <= shapes_[i - 1].micro_batch) begins.push_back(i);
  families_ = begins.size();
  begins.push_back(shapes_.size());
  const size_t at_once = 8 * options_.threads;
  for (; bounded_ < families_; bounded_ = std::min(bounded_ + at_once, families_)) {
    report(false);
    std::vector<std::vector<Point>> by_family(std::min(at_once, families_ - bounded_));
    parallel_for(by_family.size(), options_.threads,
                 [&](size_t i) { by_family[i] = bound_family(begins[bounded_ + i], begins[bounded_ + i + 1]); });
    for (const std::vector<Point>& points : by_family) points_.insert(points_.end(), points.begin(), points.end());
  }
  std::ranges::stable_sort(points_, {}, [](const Point& point) { return point.bound.seconds; });
}

std::optional<Search::Pending> Search::take(const Point& point) {
  if (fitted_.contains({point.shape, point.sharding})) {
    ++result_.dominated;
    return std::nullopt;
  }
  auto legal = layout_of(shapes_[point.shape], recomputings_[point.shape][point.recomputing], point.sharding);
  if (!legal) {
    illegal_ += 1;
    return std::nullopt;
  }
  if (to_yaml(legal->open.config) == own_) return std::nullopt;  // already rehearsed
  if (!fits(*legal)) {
    ++too_large_;
    return std::nullopt;
  }
  fitted_.insert({point.shape, point.sharding});
  return pending_of(std::move(*legal),
                    {.bound_seconds = point.bound.seconds, .recompute_share = point.bound.recompute_share});
}

Search::Pending Search::pending_of(ResolvedCandidate run, Candidate candidate) const {
  candidate.open = std::move(run.open);
  candidate.sets.clear();
  for (const auto& [key, value, of_run] : differences(candidate.open.config, run_.config))
    candidate.sets.push_back(fmt::format("{}={}", key, value));
  candidate.chunks = run.layout.schedule.v;
  return {std::move(run), std::move(candidate)};
}

std::vector<Candidate> Search::rehearsed(std::vector<Pending> pending) const {
  std::vector<Candidate> done(pending.size());
  parallel_for(pending.size(), options_.threads, [&](size_t i) {
    done[i] = std::move(pending[i].candidate);
    done[i].prediction = predict(pending[i].run.config, pending[i].run.layout, system_);
  });
  return done;
}

void Search::rehearse(std::vector<Pending> pending) {
  for (Candidate& one : rehearsed(std::move(pending))) found_.push_back(std::move(one));
  std::ranges::stable_sort(found_, {}, &Candidate::seconds);
}

// Rehearses the input configuration if it is legal and fits, so that the search's result is no slower.
void Search::rehearse_own() {
  auto own = resolve_candidate(run_, facts_);
  if (!own || !fits(*own)) return;
  own_ = to_yaml(own->open.config);
  std::vector<Pending> pending;
  pending.push_back(pending_of(std::move(*own), {}));
  rehearse(std::move(pending));
}

double Search::last_of_best() const {
  return found_.size() < options_.best ? std::numeric_limits<double>::infinity() : found_[options_.best - 1].seconds();
}

void Search::report(bool refining) {
  if (!options_.progress) return;
  options_.progress({.families = families_,
                     .bounded = bounded_,
                     .layouts = points_.size(),
                     .decided = next_,
                     .rehearsed = found_.size(),
                     .best_seconds = found_.empty() ? 0 : found_.front().seconds(),
                     .next_seconds = next_ < points_.size() ? points_[next_].bound.seconds : 0,
                     .refining = refining});
}

void Search::visit_layouts() {
  std::vector<Pending> pending;
  while (next_ < points_.size() && points_[next_].bound.seconds < last_of_best() && !over()) {
    if (auto taken = take(points_[next_++])) pending.push_back(std::move(*taken));
    if (pending.size() == options_.threads) rehearse(std::exchange(pending, {}));
    report(false);
  }
  rehearse(std::move(pending));
}

// Rehearses the runs that differ from the given run only in this switch, if they fit and were not seen before.
std::vector<Candidate> Search::rehearse_neighbours(const Candidate& of, std::string_view key) {
  std::vector<Pending> tried;
  for (const LoadedConfig& next : neighbours_of(*resolve_candidate(of.open, facts_), key)) {
    auto legal = resolve_candidate(next, facts_);
    if (!legal || !seen_.insert(to_yaml(legal->open.config)).second || !fits(*legal)) continue;
    tried.push_back(pending_of(std::move(*legal), of));
  }
  return rehearsed(std::move(tried));
}

// Changes the switches of the best layouts one at a time to their fastest values, until no change helps.
void Search::refine() {
  for (const size_t count = std::min(options_.refined, found_.size()); result_.refined < count && !over();) {
    Candidate& best = found_[result_.refined];
    size_t in_vain = 0;  // switches tried since the last that helped
    for (size_t i = 0; in_vain < kCommSwitches.size() && !over(); i = (i + 1) % kCommSwitches.size()) {
      report(true);
      ++in_vain;
      for (Candidate& next : rehearse_neighbours(best, kCommSwitches[i])) {
        if (next.seconds() >= best.seconds()) continue;
        best = std::move(next);
        in_vain = 0;
      }
    }
    ++result_.refined;
  }
  std::ranges::stable_sort(found_, {}, &Candidate::seconds);
}

SearchResult Search::find() {
  rehearse_own();
  bound_layouts();
  visit_layouts();
  result_.ended = !over();
  const auto left = static_cast<int64_t>(points_.size() - next_);
  (result_.ended ? result_.pruned : result_.not_visited) = left;
  result_.unbounded = unbounded_;
  if (left > 0 && unbounded_ == 0) result_.left_seconds = points_[next_].bound.seconds;
  result_.rehearsed = static_cast<int64_t>(found_.size());
  result_.illegal = illegal_, result_.too_large = too_large_;
  result_.layouts = result_.illegal + result_.too_large + result_.dominated + left + result_.rehearsed;
  if (found_.empty()) fail_empty();
  refine();
  result_.found = std::move(found_);
  return std::move(result_);
}

void Search::fail_empty() const {
  if (!result_.ended) throw ConfigError("the search ended before any layout was rehearsed");
  if (result_.illegal == result_.layouts) {
    const std::string ranks = counted(facts_.world_size, "rank");
    if (shapes_.empty()) throw ConfigError("there is no layout of the run on " + ranks);
    try {
      LoadedConfig first = with_layout(run_, facts_.world_size, shapes_.front(), {}, Sharding::no_shard);
      resolve(first, facts_);
    } catch (const ConfigError& error) {
      throw ConfigError(fmt::format("none of {} is valid on {}; the first:\n{}", counted(result_.layouts, "layout"),
                                    ranks, error.what()));
    }
  }
  throw ConfigError(fmt::format("none of {} fits in {} per rank: more ranks, or a smaller model, would",
                                counted(result_.layouts - result_.illegal, "legal layout"),
                                bytes_text(device_bytes(system_, facts_.world_size))));
}

}  // namespace

SearchResult search(const LoadedConfig& run, const RunFacts& facts, const System& system,
                    const SearchOptions& options) {
  return Search(run, facts, system, options).find();
}

}  // namespace trivet
