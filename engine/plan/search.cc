#include "engine/plan/search.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <fmt/format.h>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/parallel_for.h"
#include "engine/config/fields.h"
#include "engine/plan/bound.h"
#include "engine/plan/candidates.h"
#include "engine/plan/device_memory.h"

namespace trivet {
namespace {

// A layout that may fit.
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
        bounds_(run, options.vary, system),
        shapes_(list_shapes(run.config, facts.world_size, options.vary)) {}

  SearchResult find();

 private:
  using Clock = std::chrono::steady_clock;
  struct Pending {
    LegalRun run;
    Candidate candidate;
  };

  bool over() const {
    return (options_.stop && options_.stop()) || std::chrono::duration<double>(Clock::now() - start_).count() > options_.seconds;
  }
  void bound_layouts();
  std::vector<Point> bound_shape(size_t number);
  void visit_layouts();
  std::optional<Pending> take(const Point& point);
  void rehearse(std::vector<Pending>& pending);
  void refine();
  double last_of_best() const;
  void report(bool refining);

  const LoadedConfig& run_;
  const RunFacts facts_;
  const System system_;
  const SearchOptions& options_;
  Bounds bounds_;
  const std::vector<LayoutShape> shapes_;
  const Clock::time_point start_ = Clock::now();
  std::vector<std::vector<Recomputing>> recomputings_;  // [shape]
  std::vector<Point> points_;                           // by bound
  size_t next_ = 0;                                     // of points_
  std::set<std::pair<uint32_t, Sharding>> fitted_;      // shapes that fit with that sharding
  std::vector<std::pair<LegalRun, Candidate>> found_;
  std::atomic<int64_t> illegal_ = 0, too_large_ = 0;
  SearchResult result_;
};

std::vector<std::string> differences(const Config& config, const Config& run) {
  std::vector<std::string> sets;
  Config from = config, to = run;
  for (const Field& field : fields())
    if (const std::string value = format_field(field, from); value != format_field(field, to))
      sets.push_back(fmt::format("{}={}", field.name, value));
  return sets;
}

std::vector<Point> Search::bound_shape(size_t number) {
  const LayoutShape& shape = shapes_[number];
  const int d = facts_.world_size / (shape.t * shape.p);
  const std::vector<Sharding> shardings = list_shardings(run_.config, d, options_.vary);
  // Of one layer, until the layers of the stages are known.
  const std::vector<Recomputing> first = list_recomputings(run_.config, 1, options_.vary);
  const auto legal =
      legal_run(with_layout(run_, facts_.world_size, shape, first.front(), shardings.front(), options_.vary), facts_);
  if (!legal) {
    illegal_ += 1;
    return {};
  }
  recomputings_[number] =
      list_recomputings(run_.config, std::ranges::max(legal->layout.layers_of_stage), options_.vary);
  std::vector<Point> points;
  const auto bounds = bounds_.of(shape, *legal, recomputings_[number], shardings);
  const int64_t reserves = static_cast<int64_t>((system_.context_gib + system_.workspace_gib) * (1 << 30));
  for (size_t i = 0; i < bounds.size(); ++i)
    for (size_t k = 0; k < shardings.size(); ++k) {
      if (bounds[i][k].memory_bytes + reserves > device_bytes(system_)) ++too_large_;
      else points.push_back({bounds[i][k], static_cast<uint32_t>(number), static_cast<uint16_t>(i), shardings[k]});
    }
  return points;
}

void Search::bound_layouts() {
  recomputings_.resize(shapes_.size());
  std::vector<std::vector<Point>> by_shape(shapes_.size());
  parallel_for(shapes_.size(), options_.threads, [&](size_t i) {
    if (!over()) by_shape[i] = bound_shape(i);
  });
  for (const std::vector<Point>& points : by_shape) points_.insert(points_.end(), points.begin(), points.end());
  std::ranges::stable_sort(points_, {}, [](const Point& point) { return point.bound.seconds; });
}

std::optional<Search::Pending> Search::take(const Point& point) {
  if (fitted_.contains({point.shape, point.sharding})) {
    ++result_.dominated;
    return std::nullopt;
  }
  auto legal = legal_run(with_layout(run_, facts_.world_size, shapes_[point.shape],
                                     recomputings_[point.shape][point.recomputing], point.sharding, options_.vary),
                         facts_);
  if (!legal) {
    illegal_ += 1;
    return std::nullopt;
  }
  if (sum_of(memory_of_worst_rank(legal->config, legal->layout, system_)) > device_bytes(system_)) {
    ++too_large_;
    return std::nullopt;
  }
  fitted_.insert({point.shape, point.sharding});
  const double share = point.bound.recompute_seconds / point.bound.pass_seconds;
  Candidate candidate{.config = legal->open.config,
                      .sets = differences(legal->open.config, run_.config),
                      .bound_seconds = point.bound.seconds,
                      .recompute_share = share};
  return Pending{std::move(*legal), std::move(candidate)};
}

void Search::rehearse(std::vector<Pending>& pending) {
  parallel_for(pending.size(), options_.threads, [&](size_t i) {
    pending[i].candidate.prediction = predict(pending[i].run.config, pending[i].run.layout, system_);
  });
  for (Pending& one : pending) found_.emplace_back(std::move(one.run), std::move(one.candidate));
  std::ranges::stable_sort(found_, {}, [](const auto& one) { return one.second.prediction.step.step_seconds; });
  pending.clear();
}

double Search::last_of_best() const {
  return found_.size() < options_.best ? std::numeric_limits<double>::infinity()
                                       : found_[options_.best - 1].second.prediction.step.step_seconds;
}

void Search::report(bool refining) {
  if (!options_.progress) return;
  options_.progress({.done = static_cast<int64_t>(next_),
                     .layouts = static_cast<int64_t>(points_.size()),
                     .rehearsed = static_cast<int64_t>(found_.size()),
                     .best_seconds = found_.empty() ? 0 : found_.front().second.prediction.step.step_seconds,
                     .bound_seconds = next_ < points_.size() ? points_[next_].bound.seconds : 0,
                     .refining = refining});
}

void Search::visit_layouts() {
  std::vector<Pending> pending;
  while (next_ < points_.size() && points_[next_].bound.seconds < last_of_best() && !over()) {
    if (auto taken = take(points_[next_++])) pending.push_back(std::move(*taken));
    if (pending.size() == options_.threads) rehearse(pending);
    report(false);
  }
  if (!pending.empty()) rehearse(pending);
}

// Changes one switch after another, as long as a step becomes faster.
void Search::refine() {
  std::set<std::string> seen;
  const size_t count = std::min(options_.refined, found_.size());
  for (size_t i = 0; i < count && !over(); ++i) {
    for (bool better = true; better && !over();) {
      better = false;
      std::vector<Pending> tried;
      for (const LoadedConfig& next : neighbours_of(found_[i].first)) {
        auto legal = legal_run(next, facts_);
        if (!legal || !seen.insert(to_yaml(legal->open.config)).second) continue;
        if (sum_of(memory_of_worst_rank(legal->config, legal->layout, system_)) > device_bytes(system_)) continue;
        Candidate candidate = found_[i].second;
        candidate.config = legal->open.config;
        candidate.sets = differences(candidate.config, run_.config);
        tried.push_back({std::move(*legal), std::move(candidate)});
      }
      parallel_for(tried.size(), options_.threads, [&](size_t k) {
        if (!over()) tried[k].candidate.prediction = predict(tried[k].run.config, tried[k].run.layout, system_);
      });
      for (Pending& one : tried) {
        const double seconds = one.candidate.prediction.step.step_seconds;
        if (seconds > 0 && seconds < found_[i].second.prediction.step.step_seconds)
          found_[i] = {std::move(one.run), std::move(one.candidate)}, better = true;
      }
      report(true);
    }
    ++result_.refined;
  }
  std::ranges::stable_sort(found_, {}, [](const auto& one) { return one.second.prediction.step.step_seconds; });
}

SearchResult Search::find() {
  bound_layouts();
  visit_layouts();
  result_.ended = !over();
  const auto left = static_cast<int64_t>(points_.size() - next_);
  (result_.ended ? result_.pruned : result_.not_visited) = left;
  if (left > 0) result_.left_seconds = points_[next_].bound.seconds;
  if (options_.vary.switches) refine();
  result_.illegal = illegal_, result_.too_large = too_large_;
  result_.layouts = illegal_ + too_large_ + result_.dominated + left + static_cast<int64_t>(found_.size());
  for (auto& [run, candidate] : found_) result_.found.push_back(std::move(candidate));
  return std::move(result_);
}

}  // namespace

SearchResult search(const LoadedConfig& run, const RunFacts& facts, const System& system,
                    const SearchOptions& options) {
  return Search(run, facts, system, options).find();
}

}  // namespace trivet
