#include "engine/train/rank_state.h"

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

StageRange whole_model(const GptShape& shape) { return {.num_layers = shape.num_layers}; }

FlatBuffer make_flat(ParamList& params, const Config& config, DType dtype, Arena& weights, Arena& gradients) {
  FlatBuffer flat(params, config.parallel.bucket_size);
  flat.allocate(dtype, weights, gradients);
  return flat;
}

}  // namespace

MeshShape mesh_shape_of(const Config& config, int world_size) {
  const int t = config.parallel.tensor_model_parallel_size;
  return {.t = t, .p = 1, .d = world_size / t, .order = parse_rank_order(config.parallel.order)};
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

RankState::RankState(const Config& config, const MeshPosition& at, Device& device)
    : shape(gpt_shape_of(config, at)),
      weight_arena(device, "weights"),
      gradient_arena(device, "gradients"),
      optimizer_arena(device, "optimizer"),
      activation_arena(device, "activations"),
      scratch_arena(device, "scratch"),
      params(at.tp, shape.t),
      stage(params, shape, whole_model(shape), static_cast<uint64_t>(config.train.seed)),
      flat(make_flat(params, config, shape.dtype, weight_arena, gradient_arena)),
      grad_reduce(flat, gradient_arena),
      adam(flat, optimizer_arena),
      scratch(scratch_arena, GptStage::scratch_bytes(shape)),
      residual_grad(activation_arena.allocate(shape.dtype, shape.hidden_shape())),
      loss(activation_arena.allocate(DType::f32, {1})) {
  stage.allocate(activation_arena, 1, false);
}

MemoryTable RankState::memory() const {
  MemoryTable table;
  for (const Arena* arena : {&weight_arena, &gradient_arena, &optimizer_arena, &activation_arena, &scratch_arena})
    table.emplace_back(arena->name(), arena->bytes());
  return table;
}

MemoryTable plan_memory(const Config& config, const MeshPosition& at) {
  PlanningDevice device;
  return RankState(config, at, device).memory();
}

}  // namespace trivet
