// Candidates: the layouts that a search considers. A layout is a shape, its recomputation, and its sharding over
// data-parallel ranks. The engine decides whether a layout is legal (resolve()); some of those listed are not.
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

// The choices that determine each rank's work and its order.
struct LayoutShape {
  int t = 1, p = 1;
  bool sequence_parallel = false;
  bool ends_count = false;  // embedding and head count as layers when layers are split
  std::string schedule = "1f1b";
  std::optional<int64_t> v = {};  // empty: the schedule's default
  int64_t micro_batch = 1;
};

struct Recomputing {
  RecomputeGranularity granularity = RecomputeGranularity::none;
  std::vector<RecomputeModule> modules = ModelConfig().recompute_modules;  // selective
  RecomputeMethod method = RecomputeMethod::none;                          // full
  int64_t layers = 0;                                                      // full
  bool operator==(const Recomputing&) const = default;
};

// t: powers of two, and the run's own. p: all divisors that can split the layers. Schedules: all, but gpipe only if the
// run uses it, as it takes as long as 1f1b and needs more memory. Micro-batch sizes: all that divide a rank's share of
// the global batch. Throws ConfigError if no global batch size is given, because it would then depend on varied keys.
std::vector<LayoutShape> list_shapes(const Config& run, int world);
// largest: number of layers in the largest stage.
std::vector<Recomputing> list_recomputings(int64_t largest);
std::vector<Sharding> list_shardings(int d);

// The run in that layout, with the switches that a search starts from. Settings in the run's file that have no effect
// in this layout are not an error: resolve() drops them.
LoadedConfig with_layout(const LoadedConfig& run, int ranks, const LayoutShape& shape, const Recomputing& recomputing,
                         Sharding sharding);

// A legal run in two forms: as in a file, with derived values left open, and resolved.
struct ResolvedCandidate {
  LoadedConfig open;
  Config config;
  Layout layout;
};
// Empty if the engine rejects it.
std::optional<ResolvedCandidate> resolve_candidate(LoadedConfig asked, const RunFacts& facts);

// The switches (switches.h) that control collectives and their overlap.
inline constexpr std::array kCommSwitches = {"overlap.tp_comm_overlap",       "overlap.defer_embedding_wgrad_compute",
                                             "overlap.align_grad_reduce",     "overlap.align_param_gather",
                                             "overlap.overlap_grad_reduce",   "overlap.overlap_param_gather",
                                             "overlap.collectives_in_flight", "parallel.bucket_size"};
// The run with each of the switch's other values: one run per value.
std::vector<LoadedConfig> neighbours_of(const ResolvedCandidate& run, std::string_view key);

}  // namespace trivet
