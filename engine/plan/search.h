// Search: the fastest layouts of a run on a system that its memory holds. Every legal layout has a lower bound of its
// step's time (bound.h) and of its memory. Those that may fit are rehearsed in the order of their bounds, until the
// next one cannot be among the best: branch and bound, best-first. The switches (overlaps, buckets) of the best are
// then changed one at a time, as long as that makes a step faster.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/config/validate.h"
#include "engine/plan/predict.h"

namespace trivet {

// What may be another than in the run. What is not varied is as the run has it.
struct SearchAxes {
  bool mesh = true;  // tensor_ and pipeline_model_parallel_size, sequence_parallel, and what splits layers unevenly
  bool schedule = true;     // pipeline_schedule: its kind
  bool chunks = true;       // virtual_pipeline_model_parallel_size
  bool micro_batch = true;  // micro_batch_size, of the same global batch
  bool recompute = true;
  bool sharding = true;  // data_parallel_sharding_strategy
  bool switches = true;  // overlaps are on where they can be, and refined with buckets in the best layouts
};

struct SearchProgress {
  int64_t done = 0, layouts = 0;  // layouts that were decided, of those that may fit
  int64_t rehearsed = 0;
  double best_seconds = 0;   // 0: none yet
  double bound_seconds = 0;  // of the next layout
  bool refining = false;
};

struct SearchOptions {
  SearchAxes vary = {};
  size_t best = 10;                   // so many layouts are asked for
  double seconds = 600;               // then the search ends with what it has
  size_t refined = 3;                 // layouts whose switches are refined
  size_t threads = 1;                 // that rehearse
  std::function<bool()> stop = {};    // asked between rehearsals; true: as at the end of the time
  std::function<void(const SearchProgress&)> progress = {};  // from the calling thread
};

struct Candidate {
  Config config = {};            // as a file would have it: what follows from other values is left open
  std::vector<std::string> sets = {};  // "SECTION.KEY=VALUE": what of it the run has otherwise
  double bound_seconds = 0;      // no rehearsal of the layout, with these switches, is faster
  double recompute_share = 0;    // of the step of its slowest rank, at least
  Prediction prediction = {};    // its memory fits
};

struct SearchResult {
  std::vector<Candidate> found = {};  // all that were rehearsed, the fastest first
  int64_t layouts = 0;                // that were looked at: the sum of the next five and of what was rehearsed
  int64_t illegal = 0;                // against the engine's rules
  int64_t too_large = 0;              // do not fit
  int64_t dominated = 0;              // recompute more than their memory needs
  int64_t pruned = 0;                 // have a bound above the last of the best
  int64_t not_visited = 0;            // were left when the time was over
  // No layout that was pruned or not visited is faster, with the switches that the search began with; 0: there is none.
  double left_seconds = 0;
  bool ended = true;  // false: the time was over, or `stop` said so
  size_t refined = 0;  // layouts whose switches were refined
};

// run: not resolved; facts: of the run. Throws ConfigError where no layout is legal or none fits.
SearchResult search(const LoadedConfig& run, const RunFacts& facts, const System& system,
                    const SearchOptions& options = {});

}  // namespace trivet
