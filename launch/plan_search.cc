#include "launch/plan_search.h"

#include <fmt/ranges.h>

#include "base/host.h"
#include "engine/plan/search.h"
#include "engine/train/run.h"
#include "launch/commands.h"

namespace trivet {

void print_search(const LoadedConfig& run, const CommConfig& given, int ranks, const System& system,
                  const PlanSearchOptions& options, bool json) {
  (void)given, (void)json;
  SearchOptions search_options{.seconds = options.seconds, .threads = 2};
  search_options.progress = [](const SearchProgress& p) {
    fmt::print(stderr, "{} {} {} {} {} {}\n", p.done, p.layouts, p.rehearsed, p.best_seconds, p.bound_seconds, p.refining);
  };
  const SearchResult result = search(run, facts_of(run.config, ranks), system, search_options);
  for (size_t i = 0; i < std::min<size_t>(result.found.size(), 30); ++i) {
    const Candidate& c = result.found[i];
    fmt::print("{:.4f} bound {:.4f} {:.3f} {} {}\n", c.prediction.step.step_seconds, c.bound_seconds, c.recompute_share, bytes_text(c.prediction.memory_bytes), fmt::join(c.sets, " "));
  }
  double worst = 2;
  for (const Candidate& c : result.found) worst = std::min(worst, c.prediction.step.step_seconds / c.bound_seconds);
  fmt::print("layouts {} illegal {} large {} dominated {} pruned {} not visited {} left {} worst {}\n", result.layouts, result.illegal, result.too_large, result.dominated, result.pruned, result.not_visited, result.left_seconds, worst);
}

}  // namespace trivet
