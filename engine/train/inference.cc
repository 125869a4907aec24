#include "engine/train/inference.h"

#include <algorithm>
#include <utility>

#include "base/files.h"
#include "engine/config/blend_text.h"
#include "engine/config/fields.h"
#include "engine/data/tokenizer.h"
#include "engine/model/modules.h"

namespace trivet {

LoadedConfig inference_config(const OpenCheckpoint& checkpoint, int tensor, int pipeline,
                              std::span<const std::string> sets) {
  const Config saved = parse_saved_config(checkpoint.state.config, checkpoint.directory + "/train_state.json");
  Config config;
  config.model = saved.model;
  config.precision.dtype = saved.precision.dtype;
  // Each layer saves its keys and values for the tokens to come, and little else.
  config.model.recompute_granularity = RecomputeGranularity::selective;
  config.model.recompute_modules = {RecomputeModule::core_attn, RecomputeModule::layernorm, RecomputeModule::mlp};
  config.model.recompute_method = RecomputeMethod::none;
  config.model.recompute_num_layers = 0;
  config.parallel.tensor_model_parallel_size = tensor;
  config.parallel.pipeline_model_parallel_size = pipeline;
  LoadedConfig loaded{.config = config, .path = checkpoint.directory, .trains = false};
  for (const Field& field : fields()) loaded.origins[std::string(field.name)] = {Origin::file, checkpoint.directory};
  loaded.origins["parallel.tensor_model_parallel_size"].where = "--tensor-parallel";
  loaded.origins["parallel.pipeline_model_parallel_size"].where = "--pipeline-parallel";
  loaded = with_sets(std::move(loaded), sets);
  if (loaded.config.precision.fp8 != Fp8::none)
    throw ConfigError(
        fmt::format("precision.fp8: found {}, expected none, or no --set precision.fp8: text is generated "
                    "in precision.dtype, whatever the training used",
                    word_of(loaded.config.precision.fp8)));
  return loaded;
}

void read_weights(Rank& rank, const OpenCheckpoint& checkpoint, int64_t seq_length) {
  RankState& state = rank.state;
  Stream& compute = *rank.compute;
  // One parameter at a time: fp32 directly, other types through fp32 staging.
  int64_t largest = 0;
  for (const Param& param : state.params.all()) largest = std::max(largest, param.shape.numel());
  Arena staging_arena(rank.device, "staging");
  const bool stages = state.shape.dtype != DType::f32;
  const Tensor staging = stages ? staging_arena.allocate(DType::f32, {largest}) : Tensor{};
  const auto read = [&](const Param& param) {
    Slice slice = slice_of(param, 0, param.shape.numel());
    if (param.spec.name == name_of(Module::position_embeddings) + ".weight")
      slice.global.dims[0] = seq_length;  // rows in the checkpoint; this slice has the first rows
    if (slice.count == 0) return;
    const Tensor target = param.weight.view({param.weight.numel()}).slice(0, slice.count);
    const StateTensor wanted{param.spec.name, slice, staging ? staging.slice(0, slice.count) : target};
    compute.synchronize();
    read_tensors(checkpoint, {&wanted, 1}, rank.device, compute);
    if (staging) rank.ops.run(op::Convert{wanted.data, target}, compute);
    compute.synchronize();
  };
  state.flat.initialize(read, rank.ops, compute);
}

int threads_for_tokens(const Config& config, Communicator& world) {
  constexpr int64_t kElementsPerThread = 1 << 18;  // 0.5 MB in bf16: reading it takes longer than starting a thread
  const int most = threads_of_rank(config, world);
  if (config.device.threads_per_rank > 0) return most;
  const ModelSpec spec = model_spec_of(config.model);
  const int64_t elements = spec.hidden * spec.ffn / config.parallel.tensor_model_parallel_size;
  return static_cast<int>(std::clamp<int64_t>(elements / kElementsPerThread, 1, most));
}

std::unique_ptr<Rank> open_model(const Config& config, const Layout& layout, Communicator& world,
                                 const OpenCheckpoint& checkpoint, int64_t positions) {
  // Sequence parallelism splits positions evenly, as it does the model's sequences.
  const int64_t t = config.parallel.tensor_model_parallel_size;
  if (config.parallel.sequence_parallel) positions = (positions + t - 1) / t * t;
  auto rank = std::make_unique<Rank>(config, layout, make_backend(config, world, threads_of_rank(config, world)), world,
                                     RankOptions{.positions = positions});
  // A second reason for all ranks to wait here: freeing pinned memory, as read_weights() does, may wait for the streams
  // of all GPUs. If ranks are threads, the stream of a rank that is ahead would be waiting for this rank in NCCL.
  const auto read = [&] { read_weights(*rank, checkpoint, config.model.seq_length); };
  if (const auto failure = failure_of_all(HostWorld(world), read)) {
    rank.reset();
    std::rethrow_exception(failure);
  }
  return rank;
}

std::string tokenizer_of(const OpenCheckpoint& checkpoint) {
  if (checkpoint.state.tokenizer == "bytes") return "bytes";
  const DataConfig data = parse_saved_config(checkpoint.state.config, checkpoint.directory + "/train_state.json").data;
  if (!data.tokenizer_model.empty() && file_exists(data.tokenizer_model)) return data.tokenizer_model;
  for (const std::string& prefix : {first_prefix(data.path), first_prefix(data.train_path)})
    if (!prefix.empty())
      if (const std::string file = tokenizer_file(prefix); !file.empty()) return file;
  return "";
}

}  // namespace trivet
