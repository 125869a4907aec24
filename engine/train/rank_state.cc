#include "engine/train/rank_state.h"

#include <algorithm>
#include <numeric>

#include "engine/checkpoint/state_tensors.h"
#include "engine/config/model_spec.h"

namespace trivet {
namespace {

// Hands out no memory; nobody computes on it.
class PlanningDevice : public Device {
 public:
  DeviceKind kind() const override { return DeviceKind::cuda; }  // not host memory: nothing may touch it
  std::string name() const override { return "plan"; }
  int64_t memory_bytes() const override { return 0; }
  void* allocate(int64_t) override { return this; }
  void deallocate(void*, int64_t) noexcept override {}
  void* allocate_host(int64_t) override { return this; }
  void deallocate_host(void*, int64_t) noexcept override {}
  std::unique_ptr<Stream> create_compute_stream() override { fail("a planning device computes nothing"); }
  std::unique_ptr<Stream> create_side_stream(StreamPriority) override { fail("a planning device computes nothing"); }
  std::unique_ptr<Event> create_event() override { fail("a planning device computes nothing"); }
  void copy_to_device(const void*, Tensor, Stream&) override { fail("a planning device holds nothing"); }
  void copy_to_host(Tensor, void*, Stream&) override { fail("a planning device holds nothing"); }
};

Recompute recompute_of(const ModelConfig& c) {
  if (c.recompute_granularity == RecomputeGranularity::full)
    return {BlockParts::all(), c.recompute_method == RecomputeMethod::uniform, c.recompute_num_layers};
  Recompute recompute;
  if (c.recompute_granularity == RecomputeGranularity::none) return recompute;
  for (const RecomputeModule module : c.recompute_modules) {
    recompute.lost.core_attention |= module == RecomputeModule::core_attn;
    recompute.lost.norms |= module == RecomputeModule::layernorm;
    recompute.lost.mlp |= module == RecomputeModule::mlp;
  }
  return recompute;
}

FlatOptions flat_options_of(const Config& config, const Layout& layout, const GptShape& shape, const MeshPosition& at) {
  return {.dtype = shape.dtype,
          .bucket_size = config.parallel.bucket_size.value(),
          .sharding = config.parallel.data_parallel_sharding_strategy,
          .rank = at.dp,
          .ranks = layout.mesh.d,
          .tied_embeddings = shape.tied_embeddings};
}

}  // namespace

std::deque<GptStage> make_stages(ParamList& params, const GptShape& shape, const Config& config, const Layout& layout,
                                 const MeshPosition& at) {
  const Schedule& schedule = layout.schedule;
  const auto seed = static_cast<uint64_t>(config.train.seed);
  std::deque<GptStage> stages;
  Param* word_embedding = nullptr;
  for (int chunk = 0; chunk < schedule.v; ++chunk) {
    const auto number = static_cast<size_t>(schedule.stage_of(at.pp, chunk));
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

GptShape gpt_shape_of(const Config& c, const Layout& layout, const MeshPosition& at) {
  // Bulk is for the column-parallel layers; the others have nothing independent to run beside.
  const auto overlap = [&](std::optional<TensorOverlap> of_layer, bool column) {
    const TensorOverlap mode = of_layer.value_or(c.overlap.tp_comm_overlap);
    return mode == TensorOverlap::bulk && !column ? TensorOverlap::none : mode;
  };
  GptShape shape{model_spec_of(c.model)};
  shape.padded_vocab = layout.padded_vocab;
  shape.micro_batch = c.batch.micro_batch_size;
  shape.t = layout.mesh.t;
  shape.tensor_rank = at.tp;
  shape.sequence_parallel = c.parallel.sequence_parallel;
  shape.dtype = c.precision.dtype;
  shape.decay_norms_and_biases = c.optimizer.decay_norms_and_biases;
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

PipelineOptions pipeline_options_of(const Config& config) {
  return {.overlap_p2p_comm = config.overlap.overlap_p2p_comm, .receive_ahead = config.overlap.p2p_receive_ahead};
}

Links links_of(const CommConfig& c) {
  const auto link = [](const std::optional<double>& latency_us, const std::optional<double>& gbps) {
    Link result{.latency_us = latency_us.value()};
    if (gbps.value() > 0) result.gbps = *gbps;
    return result;
  };
  return {{"tensor", link(c.tensor_link_latency_us, c.tensor_link_gbps)},
          {"pipeline", link(c.pipeline_link_latency_us, c.pipeline_link_gbps)},
          {"data", link(c.data_link_latency_us, c.data_link_gbps)}};
}

RankState::RankState(const Config& config, const Layout& layout, const MeshPosition& at, Device& device,
                     Memory* buffers)
    : shape(gpt_shape_of(config, layout, at)),
      weight_arena(device, buffers ? *buffers : device, "weights"),
      gradient_arena(device, buffers ? *buffers : device, "gradients"),
      optimizer_arena(device, "optimizer"),
      activation_arena(device, "activations"),
      scratch_arena(device, "scratch"),
      snapshot_arena(device, "snapshot", Arena::Where::host),
      params(at.tp, shape.t, shape.sequence_parallel),
      stages(make_stages(params, shape, config, layout, at)),
      flat(params, flat_options_of(config, layout, shape, at), weight_arena, gradient_arena),
      adam(flat, optimizer_arena),
      scratch(scratch_arena, GptStage::scratch_bytes(shape)),
      step_numbers(optimizer_arena.allocate(DType::f32, {kStepNumbers})),
      loss(step_number(kLoss)),
      non_finite(optimizer_arena.allocate(DType::i64, {static_cast<int64_t>(flat.buckets.size()), kNonFiniteNumbers})) {
  const Schedule& schedule = layout.schedule;
  const Program& program = schedule.programs[static_cast<size_t>(at.pp)];
  const SlotPlan plan = plan_slots(program, schedule.v, SlotPool::per_chunk);
  for (size_t chunk = 0; chunk < stages.size(); ++chunk) {
    const bool whole_backwards = std::any_of(program.begin(), program.end(), [&](const Op& op) {
      return op.kind == OpKind::backward && op.chunk == static_cast<int>(chunk);
    });
    stages[chunk].allocate(activation_arena, plan.slots[chunk], plan.stashes[chunk], whole_backwards,
                           deferred_heads_of(config, layout));
  }
  for (int i = 0; i < Executor::boundary_buffers(schedule, at.pp, pipeline_options_of(config)); ++i)
    boundary_buffers.push_back(activation_arena.allocate(shape.dtype, shape.hidden_shape()));
  if (config.checkpoint.save_interval > 0 && config.checkpoint.async_save)
    snapshot = snapshot_arena.allocate(DType::u8, {saved_bytes(flat)});
}

MemoryPlan RankState::memory() const {
  MemoryPlan plan;
  for (const Arena* arena : {&weight_arena, &gradient_arena, &optimizer_arena, &activation_arena, &scratch_arena})
    plan.items.push_back({arena->name(), arena->bytes()});
  if (snapshot) plan.items.push_back({snapshot_arena.name(), snapshot_arena.bytes()});
  return plan;
}

MemoryPlan plan_memory(const Config& config, const Layout& layout, const MeshPosition& at) {
  PlanningDevice device;
  return RankState(config, layout, at, device).memory();
}

}  // namespace trivet
