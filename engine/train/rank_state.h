// RankState: all memory of a rank, built in this order: the stages declare their parameters, the flat buffer lays them
// out, and arenas allocate by purpose. On a planning device, which allocates nothing, the same code counts the bytes of
// each purpose, so `trivet config` predicts exactly what a run allocates.
#pragma once

#include <algorithm>
#include <deque>
#include <optional>
#include <vector>

#include "engine/config/validate.h"
#include "engine/model/gpt_stage.h"
#include "kernels/base/arena.h"
#include "parallel/comm/link.h"
#include "parallel/data/flat_buffer.h"
#include "parallel/data/optimizer.h"
#include "parallel/mesh.h"
#include "parallel/pipeline/executor.h"

namespace trivet {

// The functions below derive the lower floors' options from a resolved config.
// True if a rank has gradients and an optimizer; positions: as in RankState.
inline bool trains(const Config& config, int64_t positions) { return positions == 0 && !config.train.skip_train; }
// positions: length of the longest context; 0: the model's seq_length.
GptShape gpt_shape_of(const Config& config, const Layout& layout, const MeshPosition& at, int64_t positions = 0);
// The number of a step's micro-batches whose output-weight gradient is deferred.
int deferred_heads_of(const Config& config, const Layout& layout);
// trains: the rank has gradients and an optimizer.
FlatOptions flat_options_of(const Config& config, const Layout& layout, const GptShape& shape, const MeshPosition& at,
                            bool trains);
PipelineOptions pipeline_options_of(const Config& config, const Layout& layout, bool poison_slots = false);
Links links_of(const CommConfig& config);

// The chunks of the rank at `at`; declares their parameters.
std::deque<GptStage> make_stages(ParamList& params, const GptShape& shape, const Config& config, const Layout& layout,
                                 const MeshPosition& at);

struct RankState {
  // positions: length of the longest context, at most the model's seq_length; 0: seq_length. A rank that does not train
  // holds whole weights and the activations of only one micro-batch. buffers: allocates weights and gradients; null:
  // the device does.
  RankState(const Config& config, const Layout& layout, const MeshPosition& at, Device& device, int64_t positions = 0,
            Memory* buffers = nullptr);
  RankState(const RankState&) = delete;

  MemoryPlan memory() const;
  bool has_head() const {
    return std::ranges::any_of(stages, [](const GptStage& stage) { return stage.range().has_head; });
  }

  GptShape shape;
  bool keeps_keys;  // the slots save the keys and values of each layer, on every rank
  Arena weight_arena, gradient_arena, optimizer_arena, activation_arena, scratch_arena, snapshot_arena;
  ParamList params;
  std::deque<GptStage> stages;  // [chunk]
  FlatBuffer flat;
  std::unique_ptr<Optimizer> optimizer;  // null if the rank does not train, like step_numbers, non_finite and snapshot
  Scratch scratch;
  std::vector<Tensor> boundary_buffers;  // [s*, b, h] each: for the executor
  // A step's results, [kStepNumbers] fp32. The first four are summed over pipeline and data ranks, so that every rank
  // sees whether a number is not finite anywhere. kMissing: labels that eod_mask_loss leaves out.
  enum StepNumber { kMissing, kLoss, kNorm, kWatchedNorm, kOwnLoss, kOwnNorm, kAccepted, kStepNumbers };
  Tensor step_numbers;
  Tensor step_number(StepNumber which) const { return step_numbers.slice(which, 1); }
  Tensor missing_and_loss;  // [2] fp32: step_number(kMissing), kLoss; a tensor of its own if the rank does not train
  Tensor loss;              // [1] fp32: the second of these
  // Results of op::FindNonFinite per bucket, [kNonFiniteSearches, buckets, kNonFiniteNumbers] int64: this rank's
  // gradients before their reduction, in the current step; the same for the last step whose update is queued, for the
  // host to read; the reduced gradients that this rank owns, searched only in a rejected step.
  enum NonFiniteSearch { kLocalSearch, kReportedSearch, kReducedSearch, kNonFiniteSearches };
  Tensor non_finite;
  Tensor non_finite_of(NonFiniteSearch which) const {
    return non_finite.slice(which, 1).view({non_finite.shape[1], kNonFiniteNumbers});
  }
  int64_t most_spans = 0;  // capacity of the rank's trace, per step
  Tensor snapshot;         // [saved_bytes] u8, in host memory: source of an asynchronous save; else null
};

// The memory of the rank at `at`, without allocating it.
MemoryPlan plan_memory(const Config& config, const Layout& layout, const MeshPosition& at);

struct PlannedBytes {
  int64_t largest = 0, all = 0;  // for the rank that needs the most, and in total
};
PlannedBytes planned_bytes(const Config& config, const Layout& layout);
// Throws ConfigError if this process cannot have the memory that its ranks need on CPUs: all ranks if they are threads
// of this process, else one rank.
void check_memory(const Config& config, const Layout& layout, bool threads);

}  // namespace trivet
