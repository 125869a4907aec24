#include "engine/train/rank_state.h"

#include <algorithm>
#include <fmt/format.h>
#include <numeric>

#include "base/host_memory.h"
#include "base/text.h"
#include "engine/checkpoint/state_tensors.h"
#include "parallel/data/adam.h"

namespace trivet {
namespace {

Recompute recompute_of(const ModelConfig& c) {
  if (c.recompute_granularity == RecomputeGranularity::full)
    return {BlockParts::all(), c.recompute_method == RecomputeMethod::uniform, c.recompute_num_layers};
  Recompute recompute;
  if (c.recompute_granularity == RecomputeGranularity::none) return recompute;
  for (const RecomputeModule module : c.recompute_modules) {
    recompute.parts.core_attention |= module == RecomputeModule::core_attn;
    recompute.parts.norms |= module == RecomputeModule::layernorm;
    recompute.parts.mlp |= module == RecomputeModule::mlp;
  }
  return recompute;
}

// A generous upper bound on a step's spans: those that each pass queues for a layer, the embedding and the head (with
// bias gradients, and rings over the tensor and context groups), its messages and phases; the further chunks of a
// chunked loss; and the gradient and weight buckets. A step with more spans is not measured.
int64_t spans_of_step(const Program& program, const std::deque<GptStage>& stages, const GptShape& shape,
                      int64_t buckets) {
  constexpr int64_t kMost = 1 << 18;
  int64_t spans = 1000 + 40 * buckets;
  const int64_t chunks = (shape.tokens() + shape.logit_rows() - 1) / shape.logit_rows();
  for (const Op& op : program) {
    const StageRange& stage = stages[static_cast<size_t>(op.chunk)].range();
    const int64_t operands = shape.fp8.format == Fp8::none ? 0 : 36;  // for 4 GEMMs: amax, its reductions, quantize
    spans += (stage.num_layers + 2) * (20 + 8 * shape.t + 16 * (shape.c - 1) + operands);
    if (stage.has_head) spans += 10 * (chunks - 1);
  }
  return std::min(spans, kMost);
}
// Bytes per span: the step's and the next one's records, and StepMeter's intervals.
constexpr int64_t kBytesOfSpan = 2 * sizeof(Span) + 4 * sizeof(Interval);

int64_t most_blocks(const std::deque<GptStage>& stages) {
  int64_t most = 0;
  for (const GptStage& stage : stages) most = std::max(most, stage.range().num_layers);
  return most;
}

}  // namespace

FlatOptions flat_options_of(const Config& config, const Layout& layout, const GptShape& shape, const MeshPosition& at,
                            bool trains) {
  return {.dtype = shape.dtype,
          .bucket_size = config.parallel.bucket_size.value(),
          .sharding = trains ? config.parallel.data_parallel_sharding_strategy : Sharding::no_shard,
          .rank = place_in_group(at, layout.mesh, kGradientAxes),
          .ranks = layout.mesh.size(kGradientAxes),
          .trains = trains,
          .gathers_fp8 = trains && config.precision.fp8_param_gather};
}

std::deque<GptStage> make_stages(ParamList& params, const GptShape& shape, const Config& config, const Layout& layout,
                                 const MeshPosition& at) {
  const Schedule& schedule = layout.schedule;
  const auto seed = static_cast<uint64_t>(config.train.seed);
  std::deque<GptStage> stages;
  Param* word_embedding = nullptr;
  for (int chunk = 0; chunk < schedule.v; ++chunk) {
    const auto number = static_cast<size_t>(schedule.stage_of(at[Axis::pp], chunk));
    const auto& layers = layout.layers_of_stage;
    const auto end = layers.begin() + static_cast<std::ptrdiff_t>(number);
    const StageRange range{.first_layer = std::accumulate(layers.begin(), end, int64_t{0}),
                           .num_layers = layers[number],
                           .has_embedding = number == 0,
                           .has_head = number + 1 == layers.size()};
    GptStage& stage = stages.emplace_back(params, shape, range, seed, recompute_of(config.model), word_embedding);
    if (stage.word_embedding()) word_embedding = stage.word_embedding();
  }
  return stages;
}

GptShape gpt_shape_of(const Config& c, const Layout& layout, const MeshPosition& at, int64_t positions) {
  // Bulk is for column-parallel layers; the others have no independent GEMM to overlap with.
  const auto overlap = [&](std::optional<TensorOverlap> of_layer, bool column) {
    const TensorOverlap mode = of_layer.value_or(c.overlap.tp_comm_overlap);
    return mode == TensorOverlap::bulk && !column ? TensorOverlap::none : mode;
  };
  GptShape shape{model_spec_of(c.model)};
  check(positions >= 0 && positions <= shape.seq, "contexts are as long as the model's sequences, or shorter");
  if (positions > 0) shape.seq = positions;
  shape.padded_vocab = layout.padded_vocab;
  shape.micro_batch = c.batch.micro_batch_size;
  shape.t = layout.mesh[Axis::tp];
  shape.tensor_rank = at[Axis::tp];
  shape.c = layout.mesh[Axis::cp];
  shape.context_rank = at[Axis::cp];
  shape.cp_comm_type = c.parallel.cp_comm_type;
  shape.sequence_parallel = c.parallel.sequence_parallel;
  shape.dtype = c.precision.dtype;
  if (positions == 0)  // generation runs in the model's dtype
    shape.fp8 = {c.precision.fp8, c.precision.fp8_wgrad, c.precision.fp8_recipe};
  if (c.precision.first_last_layers_bf16) {
    shape.bf16_layers_at_start = c.precision.num_layers_at_start_in_bf16;
    shape.bf16_layers_at_end = c.precision.num_layers_at_end_in_bf16;
  }
  shape.keeps_fp8_weights = !trains(c, positions) || c.precision.fp8_param_gather ||
                            c.parallel.data_parallel_sharding_strategy != Sharding::optim_grads_params;
  // A rank that only generates reads the logits of one token at a time; without a head it needs no chunk's scratch.
  if (at[Axis::pp] == layout.schedule.rank_of(layout.schedule.stages() - 1))
    shape.cross_entropy_rows = positions > 0 ? 1 : cross_entropy_rows_of(c, layout);
  shape.decay_norms_and_biases = c.optimizer.decay_norms_and_biases;
  // A generation context is a single text, or a part of one.
  shape.reset_position_ids = positions == 0 && c.data.reset_position_ids;
  shape.reset_attention_mask = positions == 0 && c.data.reset_attention_mask;
  shape.qkv_overlap = overlap(c.overlap.tp_comm_overlap_qkv, true);
  shape.proj_overlap = overlap(c.overlap.tp_comm_overlap_proj, false);
  shape.fc1_overlap = overlap(c.overlap.tp_comm_overlap_fc1, true);
  shape.fc2_overlap = overlap(c.overlap.tp_comm_overlap_fc2, false);
  return shape;
}

int deferred_heads_of(const Config& config, const Layout& layout) {
  if (!config.overlap.defer_embedding_wgrad_compute) return 0;
  const int64_t limit = config.overlap.wgrad_deferral_limit;
  return static_cast<int>(limit == 0 ? layout.micro_batches : std::min(limit, layout.micro_batches));
}

PipelineOptions pipeline_options_of(const Config& config, const Layout& layout, bool poison_slots) {
  // With fewer receives posted than channel_depth, the ranks would wait for each other in a ring.
  const OverlapConfig& overlap = config.overlap;
  const int ahead = overlap.overlap_p2p_comm ? overlap.p2p_receive_ahead : 0;
  return {.overlap_p2p_comm = overlap.overlap_p2p_comm,
          .receives_posted = std::max(ahead, layout.channel_depth),
          .poison_slots = poison_slots};
}

Links links_of(const CommConfig& c) {
  Links links;
  for (size_t k = 0; k < c.links.size(); ++k) {
    Link& link = links[kCommClasses[k]];
    link.latency_us = c.links[k].latency_us.value_or(0);
    if (c.links[k].gbps.value_or(0) > 0) link.gbps = *c.links[k].gbps;
  }
  return links;
}

RankState::RankState(const Config& config, const Layout& layout, const MeshPosition& at, Device& device,
                     int64_t positions, Memory* buffers)
    : shape(gpt_shape_of(config, layout, at, positions)),
      keeps_keys(!recompute_of(config.model).parts.qkv),
      weight_arena(device, buffers ? *buffers : device, "weights"),
      gradient_arena(device, buffers ? *buffers : device, "gradients"),
      optimizer_arena(device, "optimizer"),
      activation_arena(device, "activations"),
      scratch_arena(device, "scratch"),
      snapshot_arena(device, "snapshot", Arena::Where::host),
      params(layout.mesh, at, shape.sequence_parallel),
      stages(make_stages(params, shape, config, layout, at)),
      flat(params, flat_options_of(config, layout, shape, at, trains(config, positions)), weight_arena, gradient_arena),
      scratch(scratch_arena, GptStage::scratch_bytes(shape, recompute_of(config.model), most_blocks(stages))) {
  const int pp = at[Axis::pp];
  int boundary = 0;
  layout.each_schedule([&](const Schedule& schedule) {
    boundary = std::max(boundary, Executor::boundary_buffers(schedule, pp, pipeline_options_of(config, layout)));
  });
  for (int i = 0; i < boundary; ++i)
    boundary_buffers.push_back(activation_arena.allocate(shape.dtype, shape.hidden_shape()));
  const Program& program = layout.schedule.programs[static_cast<size_t>(pp)];
  if (!trains(config, positions)) {
    const SlotPlan plan = plan_slots(program, layout.schedule.v, SlotPool::per_chunk);
    for (size_t i = 0; i < program.size(); ++i)
      if (program[i].kind == OpKind::forward && program[i].microbatch == 0)
        stages[static_cast<size_t>(program[i].chunk)].allocate(activation_arena, plan.slot[i] + 1, 0, false);
    missing_and_loss = activation_arena.allocate(DType::f32, {2});
    loss = missing_and_loss.slice(1, 1);
    return;
  }
  const OptimizerConfig& o = config.optimizer;
  optimizer = std::make_unique<Adam>(flat, optimizer_arena, Adam::Constants{o.adam_beta1, o.adam_beta2, o.adam_eps},
                                     o.decoupled_lr || o.decoupled_min_lr);
  step_numbers = optimizer_arena.allocate(DType::f32, {kStepNumbers});
  missing_and_loss = step_numbers.slice(kMissing, 2);
  loss = step_number(kLoss);
  non_finite = optimizer_arena.allocate(
      DType::i64, {kNonFiniteSearches, static_cast<int64_t>(flat.buckets.size()), kNonFiniteNumbers});
  most_spans = spans_of_step(program, stages, shape, static_cast<int64_t>(flat.buckets.size() + flat.quantised.size()));
  std::vector<int> slots(stages.size()), stashes(stages.size());  // enough for every schedule
  layout.each_schedule([&](const Schedule& schedule) {
    const SlotPlan plan = plan_slots(schedule.programs[static_cast<size_t>(pp)], schedule.v, SlotPool::per_chunk);
    for (size_t chunk = 0; chunk < stages.size(); ++chunk) {
      slots[chunk] = std::max(slots[chunk], plan.slots[chunk]);
      stashes[chunk] = std::max(stashes[chunk], plan.stashes[chunk]);
    }
  });
  for (size_t chunk = 0; chunk < stages.size(); ++chunk) {
    const bool whole_backwards = std::any_of(program.begin(), program.end(), [&](const Op& op) {
      return op.kind == OpKind::backward && op.chunk == static_cast<int>(chunk);
    });
    stages[chunk].allocate(activation_arena, slots[chunk], stashes[chunk], whole_backwards,
                           deferred_heads_of(config, layout));
  }
  if (config.checkpoint.save_interval > 0 && config.checkpoint.async_save)
    snapshot = snapshot_arena.allocate(DType::u8, {saved_bytes(flat, *optimizer)});
}

MemoryPlan RankState::memory() const {
  MemoryPlan plan;
  for (const Arena* arena : {&weight_arena, &gradient_arena, &optimizer_arena, &activation_arena, &scratch_arena})
    plan.items.push_back({arena->name(), arena->bytes()});
  if (snapshot) plan.items.push_back({snapshot_arena.name(), snapshot_arena.bytes(), true});
  if (most_spans > 0) plan.items.push_back({"spans", most_spans * kBytesOfSpan, true});
  return plan;
}

MemoryPlan plan_memory(const Config& config, const Layout& layout, const MeshPosition& at) {
  return RankState(config, layout, at, *create_planning_device()).memory();
}

PlannedBytes planned_bytes(const Config& config, const Layout& layout) {
  PlannedBytes bytes;
  for (int pp = 0; pp < layout.schedule.p; ++pp) {  // tensor- and data-parallel ranks need the same memory
    const int64_t of_rank = plan_memory(config, layout, {{Axis::pp, pp}}).total();
    bytes.largest = std::max(bytes.largest, of_rank);
    bytes.all += of_rank * (layout.mesh.world() / layout.schedule.p);
  }
  return bytes;
}

void check_memory(const Config& config, const Layout& layout, bool threads) {
  const PlannedBytes bytes = planned_bytes(config, layout);
  const int64_t needed = threads ? bytes.all : bytes.largest;
  const MemoryLimit limit = memory_limit();
  if (needed > limit.left())
    throw ConfigError(fmt::format("out of memory: {} of this process need{} {}, but {}",
                                  threads ? counted(layout.mesh.world(), "rank") : "the rank",
                                  threads && layout.mesh.world() > 1 ? "" : "s", bytes_text(needed), to_string(limit)),
                      Lack::memory);
}

}  // namespace trivet
