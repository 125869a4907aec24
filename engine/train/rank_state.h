// RankState: everything of a rank that takes memory, built in one fixed order: the stages declare their parameters, the
// flat buffer lays them out, arenas give memory by purpose. Built on a real device it trains; built on a planning
// device, which hands out no memory, the same code tells how many bytes each purpose takes. So what `trivet config`
// predicts is what a run holds.
#pragma once

#include <deque>
#include <optional>
#include <vector>

#include "engine/config/validate.h"
#include "engine/model/gpt_stage.h"
#include "kernels/base/arena.h"
#include "parallel/comm/link.h"
#include "parallel/data/adam.h"
#include "parallel/data/flat_buffer.h"
#include "parallel/mesh.h"
#include "parallel/pipeline/executor.h"

namespace trivet {

// What a resolved config says, in the words of the floors below.
GptShape gpt_shape_of(const Config& config, const Layout& layout, const MeshPosition& at);
// Micro-batches of a step whose gradient of the output weight is put off.
int deferred_heads_of(const Config& config, const Layout& layout);
PipelineOptions pipeline_options_of(const Config& config, const Layout& layout, bool poison_slots = false);
Links links_of(const CommConfig& config);

// The chunks of the rank that stands at `at`; declares their parameters.
std::deque<GptStage> make_stages(ParamList& params, const GptShape& shape, const Config& config, const Layout& layout,
                                 const MeshPosition& at);

struct RankState {
  // positions: 0, or of a rank that does not train those of the longest context that it will see, at most the model's
  // seq_length: it has weights and the activations of one micro-batch only. buffers: where the memory of weights and
  // gradients comes from; null: from the device.
  RankState(const Config& config, const Layout& layout, const MeshPosition& at, Device& device, int64_t positions = 0,
            Memory* buffers = nullptr);
  RankState(const RankState&) = delete;

  MemoryPlan memory() const;

  GptShape shape;
  Arena weight_arena, gradient_arena, optimizer_arena, activation_arena, scratch_arena, snapshot_arena;
  ParamList params;
  std::deque<GptStage> stages;  // [chunk]
  FlatBuffer flat;
  std::optional<Adam> adam;  // empty, and with it all below but the loss: the rank does not train
  Scratch scratch;
  std::vector<Tensor> boundary_buffers;  // [s*, b, h] each: what the executor needs
  // What a step tells, [kStepNumbers] fp32. The first three, summed over pipeline and data ranks, tell every rank of
  // the world alike whether a number is not finite anywhere.
  enum StepNumber { kLoss, kNorm, kWatchedNorm, kOwnLoss, kOwnNorm, kAccepted, kStepNumbers };
  Tensor step_numbers;
  Tensor step_number(StepNumber which) const { return step_numbers.slice(which, 1); }
  Tensor loss;        // [1] fp32: step_number(kLoss), or of its own
  Tensor non_finite;  // [buckets, 5] int64: op::FindNonFinite of each bucket's own gradients, in a refused step
  Tensor snapshot;    // [saved_bytes] u8, in host memory: what an asynchronous save writes; else null
};

// The memory of the rank that stands at `at`, without taking it.
MemoryPlan plan_memory(const Config& config, const Layout& layout, const MeshPosition& at);

}  // namespace trivet
