#include "engine/train/inference.h"

#include <algorithm>

#include "engine/config/fields.h"
#include "engine/config/load.h"
#include "engine/model/modules.h"
#include "engine/train/logits.h"
#include "engine/train/rank_state.h"

namespace trivet {
namespace {

// Of the same model, but for contexts of at most so many positions.
GptShape shorter(GptShape shape, int64_t positions) {
  check(positions >= 1 && positions <= shape.seq, "contexts are as long as the model's sequences, or shorter");
  shape.seq = positions;
  return shape;
}

}  // namespace

LoadedConfig inference_config(const OpenCheckpoint& checkpoint, int tensor, int pipeline,
                              std::span<const std::string> sets) {
  const Config saved = parse_saved_config(checkpoint.state.config, checkpoint.directory + "/train_state.json");
  Config config;
  config.model = saved.model;
  config.precision = saved.precision;
  config.model.recompute_granularity = RecomputeGranularity::full;  // of activations, only each block's output is kept
  config.model.recompute_method = RecomputeMethod::uniform;
  config.model.recompute_num_layers = 1;
  config.model.attention_backend.reset();  // of where it was trained; contexts here are of any length
  config.parallel.tensor_model_parallel_size = tensor;
  config.parallel.pipeline_model_parallel_size = pipeline;
  config.data.path = "none";  // a run has to name its data; this one reads none
  config.train.train_iters = 1;
  return parse_config(to_yaml(config), checkpoint.directory, sets);
}

InferenceModel::InferenceModel(const Config& config, const Layout& layout, Communicator& world,
                               const OpenCheckpoint& checkpoint, int64_t positions)
    : backend_(make_inference_backend(config, world, threads_of_rank(config, world))),
      device_(backend_.device.get()),
      graphs_(make_graphs(config, backend_)),
      ops_(graphs_ ? graphs_.get() : backend_.ops.get()),
      mesh_(make_mesh(backend_.exchange ? *backend_.exchange : world, layout.mesh)),
      schedule_(layout.schedule),
      shape_(shorter(gpt_shape_of(config, layout, mesh_.at), positions)),
      input_(*device_, 1, shape_.tokens()),
      compute_(device_->create_compute_stream()),
      weights_(*device_, "weights"),
      activations_(*device_, "activations"),
      scratch_arena_(*device_, "scratch"),
      scratch_(scratch_arena_, GptStage::scratch_bytes(shape_)),
      params_(mesh_.at.tp, shape_.t, shape_.sequence_parallel),
      stages_(make_stages(params_, shape_, config, layout, mesh_.at)),
      loss_(activations_.allocate(DType::f32, {1})),
      ctx_{.ops = *ops_,
           .compute = *compute_,
           .tensor = {*mesh_.tensor, shape_.sequence_parallel},
           .weight_grads = no_queue_,
           .units = no_hooks_,
           .scratch = scratch_},
      guard_(backend_.exchange ? *backend_.exchange : world) {
  load(checkpoint, config.model.seq_length);
  std::vector<Stage*> stages;
  for (GptStage& stage : stages_) {
    stage.allocate(activations_, 1, 0, false);
    stages.push_back(&chunks_.emplace_back(stage, ctx_, *device_, step_, loss_));
  }
  const PipelineOptions options = pipeline_options_of(config);
  for (int i = 0; i < Executor::boundary_buffers(schedule_, mesh_.at.pp, options); ++i)
    boundary_buffers_.push_back(activations_.allocate(shape_.dtype, shape_.hidden_shape()));
  executor_ =
      std::make_unique<Executor>(schedule_, *mesh_.pipeline, *device_, *compute_, nullptr, boundary_buffers_, options);
  executor_->set_stages(std::move(stages));
  // Ranks that are threads: to give pinned memory back, as load() does, may take CUDA until the streams of all GPUs are
  // through, and a rank that went ahead would have its stream wait in NCCL for this one.
  world.barrier();
}

void InferenceModel::load(const OpenCheckpoint& checkpoint, int64_t seq_length) {
  // In fp32, as they are stored, a parameter at a time; one whose dtype that is straight to its place.
  int64_t largest = 0;
  for (const Param& param : params_.all()) largest = std::max(largest, param.shape.numel());
  Arena staging_arena(*device_, "staging");
  const Tensor staging = shape_.dtype == DType::f32 ? Tensor{} : staging_arena.allocate(DType::f32, {largest});
  for (Param& param : params_.all()) {
    param.weight = weights_.allocate(shape_.dtype, param.shape);
    ops_->run(op::Fill{param.weight, 0}, *compute_);  // padding
    Slice slice = slice_of(param, 0, param.shape.numel());
    if (param.spec.name == name_of(Module::position_embeddings) + ".weight")
      slice.global.dims[0] = seq_length;  // of which this has the first rows
    if (slice.count == 0) continue;
    const Tensor target = param.weight.view({param.weight.numel()}).slice(0, slice.count);
    const StateTensor wanted{param.spec.name, slice, staging ? staging.slice(0, slice.count) : target};
    compute_->synchronize();
    read_tensors(checkpoint, {&wanted, 1}, *device_, *compute_);
    if (staging) ops_->run(op::Convert{wanted.data, target}, *compute_);
    compute_->synchronize();
  }
}

std::vector<float> InferenceModel::next_token_logits(std::span<const int32_t> context) {
  check(!context.empty() && static_cast<int64_t>(context.size()) <= shape_.seq,
        "a context has 1 to `positions` tokens");
  const std::span<HostBatch> batches = input_.take();
  batches.front().fill_with(context, static_cast<size_t>(shape_.micro_batch));
  step_ = {.batches = batches, .training = false, .loss_scale = 0};
  over(graphs_.get(), *compute_, [&] { executor_->run_forward_only(1); });
  input_.queued(*compute_);
  return read_logits({mesh_, schedule_, *executor_, stages_, scratch_, *ops_, *device_, *compute_}, shape_,
                     static_cast<int64_t>(context.size()) - 1);
}

}  // namespace trivet
