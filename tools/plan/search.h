// Searches for a run's fastest layouts that fit in a system's memory, by best-first branch and bound: every legal
// layout has lower bounds on its step time and memory (bound.h). Those that may fit are rehearsed in order of their
// time bounds, until the next one cannot be among the best. Then the switches (overlaps, buckets) of the best layouts
// are changed one at a time, as long as a change makes a step faster.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tools/plan/candidates.h"
#include "tools/plan/predict.h"

namespace trivet {

struct SearchProgress {
  size_t families = 0, bounded = 0;  // number of sets of shapes that differ only in micro-batch; sets with bounds
  size_t layouts = 0, decided = 0;   // layouts that may fit; those already decided
  size_t rehearsed = 0;
  double best_seconds = 0;  // 0: none yet
  double next_seconds = 0;  // the bound of the next layout
  bool refining = false;
};

struct SearchOptions {
  std::function<bool(const LayoutShape&)> shapes = {};        // true for shapes to consider; empty: all
  std::function<bool(const Recomputing&)> recomputings = {};  // same for recomputations
  size_t best = 10;                                           // layouts to return
  double seconds = 600;                                       // time limit; the search then returns its results
  size_t refined = 3;                                         // layouts whose switches are refined
  size_t threads = 1;                                         // for rehearsals
  std::function<bool()> stop = {};                            // true: the search ends as if its time were up
  std::function<void(const SearchProgress&)> progress = {};   // called on the calling thread
};

struct Candidate {
  LoadedConfig open = {};              // as in a file, with derived values left open
  std::vector<std::string> sets = {};  // "SECTION.KEY=VALUE": changes from the input configuration
  int chunks = 1;                      // v
  double bound_seconds = 0;            // bound of the layout, with the switches that the search started from
  double recompute_share = 0;          // recomputation's share of the busiest rank's passes
  Prediction prediction = {};          // always fits in memory
  double seconds() const { return prediction.step.step_seconds; }
};

struct SearchResult {
  std::vector<Candidate> found = {};  // all rehearsed layouts, fastest first
  int64_t layouts = 0;                // the sum of the next six
  int64_t illegal = 0;                // rejected by the engine; a shape counts once
  int64_t too_large = 0;              // do not fit in memory
  int64_t dominated = 0;              // recompute more than needed to fit
  int64_t rehearsed = 0;
  int64_t pruned = 0;       // bound is above the slowest of the best
  int64_t not_visited = 0;  // not yet decided when the time ran out
  int64_t unbounded = 0;    // shapes without a bound when the time ran out
  // No pruned or unvisited layout is faster than this, with the switches that the search started from. 0: no such
  // layouts exist, or their bounds are incomplete.
  double left_seconds = 0;
  bool ended = true;   // false: the time ran out, or `stop` returned true
  size_t refined = 0;  // layouts whose switches were refined
};

// run: not resolved. Throws ConfigError if no layout is legal, none fits, or time ran out before one was rehearsed.
SearchResult search(const LoadedConfig& run, const RunFacts& facts, const System& system,
                    const SearchOptions& options = {});

}  // namespace trivet
