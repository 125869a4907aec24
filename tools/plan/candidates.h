// Candidates: the layouts that a search considers. A shape, its recomputation, and the sharding over its data-parallel
// ranks make a layout. The engine decides whether it is legal (resolve()): some that are listed are not.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/config/load.h"
#include "engine/config/validate.h"

namespace trivet {

// The choices that decide which rank computes what, and in which order.
struct LayoutShape {
  int t = 1, p = 1;
  bool sequence_parallel = false;
  bool ends_count = false;  // embedding and head count as layers where the layers are split
  std::string schedule = "1f1b";
  std::optional<int64_t> v = {};  // empty: the schedule's own
  int64_t micro_batch = 1;
};

struct Recomputing {
  RecomputeGranularity granularity = RecomputeGranularity::none;
  std::vector<RecomputeModule> modules = ModelConfig().recompute_modules;  // selective
  RecomputeMethod method = RecomputeMethod::none;                          // full
  int64_t layers = 0;                                                      // full
  bool operator==(const Recomputing&) const = default;
};

// t: powers of two, and that of the run. p: all divisors that could split the layers. Schedules: all kinds but gpipe,
// which takes as long as 1f1b and holds more. Micro-batches: all that divide a rank's part of the global batch. Throws
// ConfigError if the global batch is not given, so that it would follow from varied keys.
std::vector<LayoutShape> list_shapes(const Config& run, int world);
// largest: layers of the largest stage.
std::vector<Recomputing> list_recomputings(int64_t largest);
std::vector<Sharding> list_shardings(int d);

// The run in that layout, with the switches that a search begins with. Values of the run's file that have no effect in
// it are no mistake: resolve() leaves them out.
LoadedConfig with_layout(const LoadedConfig& run, int ranks, const LayoutShape& shape, const Recomputing& recomputing,
                         Sharding sharding);

// A legal run: as a file would have it, where what follows from other values is open, and resolved.
struct ResolvedCandidate {
  LoadedConfig open;
  Config config;
  Layout layout;
};
// Empty if the engine refuses it.
std::optional<ResolvedCandidate> resolve_candidate(LoadedConfig asked, const RunFacts& facts);

// The switches (switches.h) of collectives and their overlap.
inline constexpr std::array kCommSwitches = {"overlap.tp_comm_overlap",       "overlap.defer_embedding_wgrad_compute",
                                             "overlap.align_grad_reduce",     "overlap.align_param_gather",
                                             "overlap.overlap_grad_reduce",   "overlap.overlap_param_gather",
                                             "overlap.collectives_in_flight", "parallel.bucket_size"};
// The same run with that switch changed: all ways.
std::vector<LoadedConfig> neighbours_of(const ResolvedCandidate& run, std::string_view key);

}  // namespace trivet
