// Bounds: lower bounds on a layout's step time and memory, assembled from small recordings of the engine, which spare a
// search from rehearsing most layouts.
//
// Passes. A stage's pass queues the same operations for each of its layers, plus those of the embedding and the head.
// Probes record stages of one and of two layers, with the layout's tensor-parallel size, micro-batch size and
// recomputation, and price the work on their compute streams as the replay does.
//
// Time. In the replay a stream runs its records one after another, none faster than its price: contention, shared ports
// and waits only add time. All ranks of a pipeline synchronize in the all-reduce of a step's statistics, which the
// optimizer waits for. So for every pipeline rank r, successive all-reduces are at least as far apart as the longer of
//
//   rank 0's optimizer, then a micro-batch's forward passes in the stages before r's first op, then either all of r's
//     passes, or those up to its last gradient followed by that gradient's passes in the preceding stages
//   r's streamed collectives on its port
//
// A prediction measures steps from the end of one optimizer to the end of the next. The two agree because the optimizer
// takes the same time in each step, except for calls that share a wire with it.
//
// Memory. The arenas hold at least a rank's weights, gradients and optimizer state, its layers' activations in the
// slots of its schedule, and the scratch memory of a pass.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <vector>

#include "tools/plan/candidates.h"
#include "tools/plan/predict.h"
#include "tools/plan/section.h"

namespace trivet {

// The cost of a part of a stage: a layer, the embedding, the head, or the fixed cost of every stage.
struct PartCost {
  std::array<int64_t, 4> compute{};  // [OpKind]: ns of a pass on the compute stream
  int64_t parameters = 0;            // elements
  int64_t optimizer_bytes = 0;       // read and written once per step
  int64_t slot_bytes = 0;            // activations per micro-batch in flight

  void add(const PartCost& other, int64_t times);
};

// The costs of a stage's parts, for one kind of layer.
struct LayoutStageCosts {
  PartCost each, layer, embedding, head;
  int64_t scratch_bytes = 0;
};

// The lower bounds on a layout.
struct LayoutBound {
  double seconds = 0;
  int64_t memory_bytes = 0;    // of the rank that needs the most
  double recompute_share = 0;  // recomputation's share of the busiest rank's passes
};

class Bounds {
 public:
  // run: its layout does not matter.
  Bounds(const LoadedConfig& run, const System& system);

  // Returns bounds as [recomputing][sharding]. legal: any legal run of that shape. Thread-safe.
  std::vector<std::vector<LayoutBound>> of(const LayoutShape& shape, const ResolvedCandidate& legal,
                                           const std::vector<Recomputing>& recomputings,
                                           const std::vector<Sharding>& shardings);

 private:
  using Key = std::tuple<int, bool, int64_t, RecomputeGranularity, std::vector<RecomputeModule>, bool>;
  const LayoutStageCosts& stage_costs(const LayoutShape& shape, const Recomputing& recomputing, bool halves);
  LayoutStageCosts probe(const LayoutShape& shape, const Recomputing& recomputing, bool halves) const;
  LayoutStageCosts probe_in(Fp8 fp8, const LayoutShape& shape, const Recomputing& recomputing, bool halves) const;
  PartCost record_stage(Fp8 fp8, const LayoutShape& shape, const Recomputing& how, bool halves, int64_t middle_layers,
                        int pp, int64_t& scratch_bytes) const;

  LoadedConfig run_;  // without a benchmark's rules, which the probes' few layers would violate
  const System system_;
  const SystemCosts costs_;
  std::mutex mutex_;
  std::map<Key, std::unique_ptr<LayoutStageCosts>> probed_;
};

}  // namespace trivet
