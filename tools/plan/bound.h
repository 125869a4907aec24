// Bounds: lower bounds on a layout's step time and memory, from small recordings of the engine and sums; so that a
// search need not rehearse most layouts.
//
// Passes. A stage's pass queues the same operations for each of its layers, and others for an embedding and a head.
// Probes record stages of one and of two layers, with the layout's tensor-parallel size, micro-batch and recomputation,
// and price the work of their compute streams as the replay does.
//
// Time. In the replay a stream takes its records one after the other, none in less time than its price: contention,
// shared ports and waits only add to it. All ranks of a pipeline meet in the sum of a step's numbers, which the
// optimizer waits for. So from one step's sum to the next passes, for every pipeline rank r, at least the longest of
//
//   optimizer of rank 0 > a micro-batch's forward passes in the stages before r's first op > r's passes, or those until
//     its last gradient > the work after that in the stages before
//   r's streamed collectives on its port
//
// A prediction measures steps from the end of their optimizers, which take as long in each step except for calls that
// share a wire with them.
//
// Memory. The arenas hold at least a rank's weights, gradients and optimizer state, the activations of its layers in
// the slots of its schedule, and the scratch memory of a pass.
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

// The cost of a part of a stage: a layer, an embedding, a head; or the part that every stage has.
struct PartCost {
  std::array<int64_t, 4> compute{};  // ns on the compute stream, of a pass by OpKind
  int64_t parameters = 0;            // elements
  int64_t optimizer_bytes = 0;       // read and written once a step
  int64_t slot_bytes = 0;            // of activations, for each micro-batch in flight

  void add(const PartCost& other, int64_t times);
};

// Costs of stages with one kind of layers.
struct LayoutStageCosts {
  PartCost each, layer, embedding, head;
  int64_t scratch_bytes = 0;
};

// The lower bounds of a layout.
struct LayoutBound {
  double seconds = 0;
  int64_t memory_bytes = 0;    // of the rank that needs most
  double recompute_share = 0;  // of the passes of the rank whose passes take longest
};

class Bounds {
 public:
  // run: in any layout.
  Bounds(const LoadedConfig& run, const System& system);

  // [recomputing][sharding]. legal: a run of that shape. Threads may ask at the same time.
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

  LoadedConfig run_;  // whose models are of a few layers: under no benchmark's rules
  const System system_;
  const SystemCosts costs_;
  std::mutex mutex_;
  std::map<Key, std::unique_ptr<LayoutStageCosts>> probed_;
};

}  // namespace trivet
