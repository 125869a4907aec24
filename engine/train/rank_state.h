// RankState: everything of a rank that takes memory, built in one fixed order: the stage declares its parameters, the
// flat buffer lays them out, arenas give memory by purpose. Built on a real device it trains; built on a planning
// device, which hands out no memory, the same code tells how many bytes each purpose takes. So what `trivet config`
// predicts is what a run holds.
#pragma once

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "engine/config/config.h"
#include "engine/model/gpt_stage.h"
#include "kernels/base/arena.h"
#include "parallel/data/adam.h"
#include "parallel/data/flat_buffer.h"
#include "parallel/data/grad_reduce.h"
#include "parallel/mesh.h"

namespace trivet {

// REQUIRES: a resolved config (vocab_size and ffn_hidden_size are there).
MeshShape mesh_shape_of(const Config& config, int world_size);
GptShape gpt_shape_of(const Config& config, const MeshPosition& at);
DType dtype_of(const PrecisionConfig& config);

using MemoryTable = std::vector<std::pair<std::string, int64_t>>;  // purpose, bytes

struct RankState {
  RankState(const Config& config, const MeshPosition& at, Device& device);

  MemoryTable memory() const;

  GptShape shape;
  Arena weight_arena, gradient_arena, optimizer_arena, activation_arena, scratch_arena;
  ParamList params;
  GptStage stage;
  FlatBuffer flat;
  GradReduce grad_reduce;
  Adam adam;
  Scratch scratch;
  Tensor residual_grad;  // [s*, b, h]: the gradient of the residual stream on its way back through the blocks
  Tensor loss;           // [1] fp32
};

// The memory of the rank that stands at `at`, without taking it.
MemoryTable plan_memory(const Config& config, const MeshPosition& at);

}  // namespace trivet
