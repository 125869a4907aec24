#include "engine/train/rank_state.h"

#include <algorithm>
#include <fmt/format.h>

#include "engine/model/layer_split.h"
#include "parallel/pipeline/check.h"

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
  std::unique_ptr<Stream> create_compute_stream() override { fail("a planning device computes nothing"); }
  std::unique_ptr<Stream> create_side_stream(StreamPriority) override { fail("a planning device computes nothing"); }
  std::unique_ptr<Event> create_event() override { fail("a planning device computes nothing"); }
  void copy_to_device(const void*, Tensor, Stream&) override { fail("a planning device holds nothing"); }
  void copy_to_host(Tensor, void*, Stream&) override { fail("a planning device holds nothing"); }
};

// Of one rank's chunks.
std::deque<GptStage> make_stages(ParamList& params, const GptShape& shape, const Config& config, const MeshPosition& at,
                                 const Schedule& schedule) {
  const std::vector<StageRange> ranges = stage_ranges_of(config, schedule);
  const auto seed = static_cast<uint64_t>(config.train.seed);
  std::deque<GptStage> stages;
  const Param* word_embedding = nullptr;
  for (int chunk = 0; chunk < schedule.v; ++chunk) {
    const StageRange& range = ranges[static_cast<size_t>(schedule.stage_of(at.pp, chunk))];
    const GptStage& stage = stages.emplace_back(params, shape, range, seed, word_embedding);
    if (stage.word_embedding()) word_embedding = stage.word_embedding();
  }
  return stages;
}

}  // namespace

MeshShape mesh_shape_of(const Config& config, int world_size) {
  const int t = config.parallel.tensor_model_parallel_size, p = config.parallel.pipeline_model_parallel_size;
  return {.t = t, .p = p, .d = world_size / (t * p), .order = parse_rank_order(config.parallel.order)};
}

DType dtype_of(const PrecisionConfig& config) { return config.dtype == "bf16" ? DType::bf16 : DType::f32; }

GptShape gpt_shape_of(const Config& c, const MeshPosition& at) {
  const int t = c.parallel.tensor_model_parallel_size;
  const int64_t multiple = c.model.make_vocab_size_divisible_by * t;
  const int64_t vocab = c.model.vocab_size.value();
  return {.num_layers = c.model.num_layers,
          .hidden = c.model.hidden_size,
          .ffn = c.model.ffn_hidden_size.value(),
          .heads = c.model.num_attention_heads,
          .seq = c.model.seq_length,
          .vocab = vocab,
          .padded_vocab = (vocab + multiple - 1) / multiple * multiple,
          .micro_batch = c.batch.micro_batch_size,
          .t = t,
          .tensor_rank = at.tp,
          .sequence_parallel = c.parallel.sequence_parallel,
          .tied_embeddings = !c.model.untie_embeddings_and_output_weights,
          .dtype = dtype_of(c.precision),
          .layernorm_epsilon = static_cast<float>(c.model.layernorm_epsilon),
          .hidden_dropout = static_cast<float>(c.model.hidden_dropout),
          .attention_dropout = static_cast<float>(c.model.attention_dropout),
          .init_std = static_cast<float>(c.model.init_method_std),
          .scale_output_layer_init = c.model.scale_output_layer_init,
          .decay_norms_and_biases = c.optimizer.decay_norms_and_biases};
}

PipelineOptions pipeline_options_of(const Config& config) {
  return {.overlap_p2p_comm = config.overlap.overlap_p2p_comm, .receive_ahead = config.overlap.p2p_receive_ahead};
}

Schedule schedule_of(const Config& config, int micro_batches) {
  const ParallelConfig& c = config.parallel;
  const auto kinds = schedule_kinds();
  const bool known = std::any_of(kinds.begin(), kinds.end(),
                                 [&](const ScheduleKind& kind) { return kind.name == c.pipeline_schedule; });
  if (known)
    return make_schedule({.kind = c.pipeline_schedule,
                          .p = c.pipeline_model_parallel_size,
                          .m = micro_batches,
                          .v = c.virtual_pipeline_model_parallel_size,
                          .group_size = c.microbatch_group_size_per_vp_stage});
  Schedule schedule = read_schedule_file(c.pipeline_schedule);
  check_schedule(schedule);
  if (schedule.p != c.pipeline_model_parallel_size || schedule.m != micro_batches)
    throw ConfigError(
        fmt::format("{}: the schedule is for {} pipeline ranks and {} micro-batches, but the run has {} "
                    "and {}",
                    c.pipeline_schedule, schedule.p, schedule.m, c.pipeline_model_parallel_size, micro_batches));
  return schedule;
}

std::vector<StageRange> stage_ranges_of(const Config& config, const Schedule& schedule) {
  const ParallelConfig& c = config.parallel;
  return split_layers({.num_layers = config.model.num_layers,
                       .stages = schedule.stages(),
                       .first_layers = c.decoder_first_pipeline_num_layers,
                       .last_layers = c.decoder_last_pipeline_num_layers,
                       .account_for_embedding = c.account_for_embedding_in_pipeline_split,
                       .account_for_loss = c.account_for_loss_in_pipeline_split});
}

RankState::RankState(const Config& config, const MeshPosition& at, const Schedule& schedule, Device& device)
    : shape(gpt_shape_of(config, at)),
      weight_arena(device, "weights"),
      gradient_arena(device, "gradients"),
      optimizer_arena(device, "optimizer"),
      activation_arena(device, "activations"),
      scratch_arena(device, "scratch"),
      params(at.tp, shape.t),
      stages(make_stages(params, shape, config, at, schedule)),
      flat(params, config.parallel.bucket_size, shape.dtype, weight_arena, gradient_arena),
      grad_reduce(flat, gradient_arena),
      adam(flat, optimizer_arena),
      scratch(scratch_arena, GptStage::scratch_bytes(shape)),
      loss(activation_arena.allocate(DType::f32, {1})) {
  const Program& program = schedule.programs[static_cast<size_t>(at.pp)];
  const SlotPlan plan = plan_slots(program, schedule.v, SlotPool::per_chunk);
  for (size_t chunk = 0; chunk < stages.size(); ++chunk) {
    const bool whole_backwards = std::any_of(program.begin(), program.end(), [&](const Op& op) {
      return op.kind == OpKind::backward && op.chunk == static_cast<int>(chunk);
    });
    stages[chunk].allocate(activation_arena, plan.slots[chunk], plan.stashes[chunk], whole_backwards);
  }
  for (int i = 0; i < Executor::boundary_buffers(schedule, at.pp, pipeline_options_of(config)); ++i)
    boundary_buffers.push_back(activation_arena.allocate(shape.dtype, shape.hidden_shape()));
}

MemoryTable RankState::memory() const {
  MemoryTable table;
  for (const Arena* arena : {&weight_arena, &gradient_arena, &optimizer_arena, &activation_arena, &scratch_arena})
    table.emplace_back(arena->name(), arena->bytes());
  return table;
}

MemoryTable plan_memory(const Config& config, const MeshPosition& at, const Schedule& schedule) {
  PlanningDevice device;
  return RankState(config, at, schedule, device).memory();
}

}  // namespace trivet
