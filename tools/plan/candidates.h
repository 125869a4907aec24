// Candidates: the layouts that a search considers. A layout is a shape, its recomputation, and the sharding over its
// data-parallel ranks. The engine decides whether it is legal (resolve()): some of those listed are not.
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

// The choices that determine the work of each rank and its order.
struct LayoutShape {
  int t = 1, p = 1;
  bool sequence_parallel = false;
  bool ends_count = false;  // embedding and head count as layers when layers are split
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

// t: powers of two, and the run's. p: all divisors that can split the layers. Schedules: all, but gpipe only if the run
// has it, as it takes as long as 1f1b and needs more memory. Micro-batches: all that divide a rank's share of the
// global batch. Throws ConfigError if the global batch size is not given, since it would then depend on varied keys.
std::vector<LayoutShape> list_shapes(const Config& run, int world);
// largest: layers of the largest stage.
std::vector<Recomputing> list_recomputings(int64_t largest);
std::vector<Sharding> list_shardings(int d);

// The run in that layout, with the switches that a search begins with. Values in the run's file without effect in this
// layout are no error: resolve() leaves them out.
LoadedConfig with_layout(const LoadedConfig& run, int ranks, const LayoutShape& shape, const Recomputing& recomputing,
                         Sharding sharding);

// A legal run, both as in a file, which leaves derived values open, and resolved.
struct ResolvedCandidate {
  LoadedConfig open;
  Config config;
  Layout layout;
};
// Empty if the engine refuses it.
std::optional<ResolvedCandidate> resolve_candidate(LoadedConfig asked, const RunFacts& facts);

// The switches (switches.h) that control collectives and their overlap.
inline constexpr std::array kCommSwitches = {"overlap.tp_comm_overlap",       "overlap.defer_embedding_wgrad_compute",
                                             "overlap.align_grad_reduce",     "overlap.align_param_gather",
                                             "overlap.overlap_grad_reduce",   "overlap.overlap_param_gather",
                                             "overlap.collectives_in_flight", "parallel.bucket_size"};
// The same run with that switch changed, once for each other value.
std::vector<LoadedConfig> neighbours_of(const ResolvedCandidate& run, std::string_view key);

}  // namespace trivet
