// Search: the fastest layouts of a run on a system that its memory holds. Every legal layout has a lower bound of its
// step's time (bound.h) and of its memory. Those that may fit are rehearsed in the order of their bounds, until the
// next one cannot be among the best: branch and bound, best-first. The switches (overlaps, buckets) of the best are
// then changed one at a time, as long as that makes a step faster.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tools/plan/candidates.h"
#include "tools/plan/predict.h"

namespace trivet {

struct SearchProgress {
  size_t families = 0, bounded = 0;  // of shapes that differ in the micro-batch, and those of them that have bounds
  size_t layouts = 0, decided = 0;   // that may fit
  size_t rehearsed = 0;
  double best_seconds = 0;  // 0: none yet
  double next_seconds = 0;  // the bound of the next layout
  bool refining = false;
};

struct SearchOptions {
  std::function<bool(const LayoutShape&)> shapes = {};        // those to consider; empty: all
  std::function<bool(const Recomputing&)> recomputings = {};  // the same
  size_t best = 10;                                           // layouts to return
  double seconds = 600;                                       // then the search ends with its results so far
  size_t refined = 3;                                         // layouts whose switches are refined
  size_t threads = 1;                                         // that rehearse
  std::function<bool()> stop = {};                            // true: the search ends as when the time is over
  std::function<void(const SearchProgress&)> progress = {};   // from the calling thread
};

struct Candidate {
  LoadedConfig open = {};              // as a file would have it: what follows from other values is open
  std::vector<std::string> sets = {};  // "SECTION.KEY=VALUE": changes from the input configuration
  int chunks = 1;                      // v
  double bound_seconds = 0;            // of the layout, with the switches that the search began with
  double recompute_share = 0;          // of the passes of the rank that has most to do
  Prediction prediction = {};          // fits
  double seconds() const { return prediction.step.step_seconds; }
};

struct SearchResult {
  std::vector<Candidate> found = {};  // all that were rehearsed, the fastest first
  int64_t layouts = 0;                // the sum of the next six
  int64_t illegal = 0;                // against the engine's rules; a shape counts once
  int64_t too_large = 0;              // do not fit
  int64_t dominated = 0;              // recompute more than their memory needs
  int64_t rehearsed = 0;
  int64_t pruned = 0;       // their bounds are above the last of the best
  int64_t not_visited = 0;  // when the time was over
  int64_t unbounded = 0;    // shapes that no bound was found for when the time was over
  // No layout that was pruned or not visited is faster, with the switches that the search began with; 0: there is none,
  // or that is not known.
  double left_seconds = 0;
  bool ended = true;   // false: the time was over, or `stop` said so
  size_t refined = 0;  // layouts whose switches were refined
};

// run: not resolved. Throws ConfigError if no layout is legal, or none fits.
SearchResult search(const LoadedConfig& run, const RunFacts& facts, const System& system,
                    const SearchOptions& options = {});

}  // namespace trivet
