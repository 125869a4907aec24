#include "engine/config/check_switches.h"

#include <algorithm>
#include <fmt/format.h>

#include "engine/config/fields.h"
#include "engine/config/words.h"
#include "parallel/data/flat_buffer.h"

namespace trivet {

int64_t default_bucket_size(int64_t d) { return std::max<int64_t>(40'000'000, 1'000'000 * d); }

void check_recompute(const Config& config, Problems& problems) {
  const ModelConfig& model = config.model;
  constexpr auto kGranularity = "model.recompute_granularity", kModules = "model.recompute_modules",
                 kMethod = "model.recompute_method", kLayers = "model.recompute_num_layers";
  if (!problems.clean({kGranularity, kMethod, kLayers})) return;
  const bool full = model.recompute_granularity == RecomputeGranularity::full,
             selective = model.recompute_granularity == RecomputeGranularity::selective;
  const auto no_effect = [&](std::string_view key, std::string_view found, std::string_view with) {
    problems.add(key, fmt::format("{} has no effect with recompute_granularity {}, only with {}", found,
                                  word_of(model.recompute_granularity), with));
  };
  const bool no_method = model.recompute_method == RecomputeMethod::none;
  if (!full && !no_method) no_effect(kMethod, word_of(model.recompute_method), "full");
  if (!full && model.recompute_num_layers != 0) no_effect(kLayers, std::to_string(model.recompute_num_layers), "full");
  if (full && no_method) problems.add(kMethod, "recompute_granularity full needs uniform or block, found none");
  if (full && model.recompute_num_layers == 0)
    problems.add(kLayers, "recompute_granularity full needs a number of layers, found 0; 1 keeps the least memory");
  if (!selective && model.recompute_modules != ModelConfig().recompute_modules)
    no_effect(kModules, format_field(*find_field(kModules), config), "selective");
}

void check_attention(const Config& config, Problems& problems) {
  constexpr auto kBackend = "model.attention_backend";
  if (config.model.attention_backend != AttentionBackend::cudnn || !problems.clean({kBackend})) return;
  if (config.model.attention_dropout > 0 && problems.clean({"model.attention_dropout"}))
    problems.add(kBackend,
                 fmt::format("cudnn cannot be with attention_dropout {}: cuDNN draws other numbers than Trivet, "
                             "whose dropout is the same under every layout; expected auto or flash, or no "
                             "attention_dropout",
                             config.model.attention_dropout));
  if (config.precision.dtype != DType::bf16 && problems.clean({"precision.dtype"}))
    problems.add(kBackend,
                 fmt::format("cudnn needs precision.dtype bf16, found {}: its fused attention knows no other; "
                             "expected auto or flash",
                             word_of(config.precision.dtype)));
}

void check_device(const Config& config, Problems& problems) {
  if (config.device.tf32 && config.precision.dtype != DType::f32 && problems.clean({"device.tf32", "precision.dtype"}))
    problems.add("device.tf32", fmt::format("true has no effect with precision.dtype {}: it is of fp32 products",
                                            word_of(config.precision.dtype)));
}

void check_saving(const CheckpointConfig& checkpoint, Problems& problems) {
  if (checkpoint.save_interval > 0 || !problems.clean({"checkpoint.save_interval"})) return;
  constexpr auto kNoEffect = "{} has no effect with save_interval 0: nothing is saved";
  if (checkpoint.async_save) problems.add("checkpoint.async_save", fmt::format(kNoEffect, true));
  if (checkpoint.keep_last > 0 && problems.clean({"checkpoint.keep_last"}))
    problems.add("checkpoint.keep_last", fmt::format(kNoEffect, checkpoint.keep_last));
}

void check_tensor_overlap(const Config& config, Problems& problems) {
  if (config.parallel.sequence_parallel) return;
  const OverlapConfig& o = config.overlap;
  const std::pair<std::string_view, std::optional<TensorOverlap>> keys[] = {
      {"overlap.tp_comm_overlap", o.tp_comm_overlap},
      {"overlap.tp_comm_overlap_qkv", o.tp_comm_overlap_qkv},
      {"overlap.tp_comm_overlap_proj", o.tp_comm_overlap_proj},
      {"overlap.tp_comm_overlap_fc1", o.tp_comm_overlap_fc1},
      {"overlap.tp_comm_overlap_fc2", o.tp_comm_overlap_fc2}};
  for (const auto& [key, value] : keys)
    if (value.value_or(TensorOverlap::none) != TensorOverlap::none && problems.clean({key}))
      problems.add(key,
                   fmt::format("{} needs sequence_parallel (and so tensor_model_parallel_size above 1): it cuts the "
                               "gathering and scattering of positions",
                               word_of(*value)));
}

void check_pipeline_overlap(const Config& config, Problems& problems) {
  constexpr auto kAhead = "overlap.p2p_receive_ahead";
  const int ahead = config.overlap.p2p_receive_ahead, p = config.parallel.pipeline_model_parallel_size;
  if (ahead == OverlapConfig().p2p_receive_ahead || !problems.clean({kAhead})) return;
  if (p == 1)
    problems.add(kAhead,
                 fmt::format("{} needs pipeline_model_parallel_size above 1, found 1: nothing is received", ahead));
  else if (!config.overlap.overlap_p2p_comm)
    problems.add(kAhead,
                 fmt::format("{} has no effect with overlap_p2p_comm false: then as few receives are posted ahead "
                             "as the schedule needs",
                             ahead));
}

void check_data_parallel(const Config& config, const RunFacts& facts, Problems& problems) {
  constexpr auto kStrategy = "parallel.data_parallel_sharding_strategy", kBucket = "parallel.bucket_size",
                 kReduce = "overlap.overlap_grad_reduce", kGather = "overlap.overlap_param_gather",
                 kFlight = "overlap.collectives_in_flight";
  if (!problems.clean({kStrategy, "parallel.tensor_model_parallel_size", "parallel.pipeline_model_parallel_size"}))
    return;
  const int64_t d = facts.world_size / ranks_of_one_replica(config);
  const Sharding sharding = config.parallel.data_parallel_sharding_strategy;
  const std::string_view strategy = word_of(sharding);
  const OverlapConfig& overlap = config.overlap;
  const auto alone = [&](bool on, std::string_view key) {
    if (on && d <= 1)
      problems.add(key,
                   fmt::format("true has nothing to overlap: the data parallel size is {} (world {} over tensor {} x "
                               "pipeline {}); leave it out, or start more ranks",
                               d, facts.world_size, config.parallel.tensor_model_parallel_size,
                               config.parallel.pipeline_model_parallel_size));
  };
  if (config.comm.nccl_ub && d <= 1)
    problems.add("comm.nccl_ub", fmt::format("true has no buffers to register: the data parallel size is {}", d));
  if (const int64_t interval = config.train.check_weight_hash_across_dp_replicas_interval; interval > 0 && d <= 1)
    problems.add("train.check_weight_hash_across_dp_replicas_interval",
                 fmt::format("{} has no replicas to compare: the data parallel size is 1; leave it out", interval));
  alone(overlap.overlap_grad_reduce, kReduce);
  alone(overlap.overlap_param_gather, kGather);
  if (overlap.overlap_param_gather && sharding == Sharding::no_shard)
    problems.add(kGather,
                 "true needs data_parallel_sharding_strategy optim or above: with no_shard every rank updates "
                 "all weights, and nothing is gathered");
  if (overlap.collectives_in_flight > 1 && !overlap.overlap_grad_reduce && !overlap.overlap_param_gather)
    problems.add(kFlight, fmt::format("{} needs overlap_grad_reduce or overlap_param_gather: without them collectives "
                                      "run one after the other",
                                      overlap.collectives_in_flight));
  const bool units = streams_grads(sharding);
  const int p = config.parallel.pipeline_model_parallel_size;
  const auto align = [&](bool on, std::string_view key, bool overlapped, std::string_view needs, bool streamed) {
    if (!on) return;
    if (!overlapped) problems.add(key, fmt::format("true needs {}: it says when overlapped collectives start", needs));
    else if (p == 1)
      problems.add(key, "true needs pipeline_model_parallel_size above 1, found 1: there is nothing to align with");
    else if (streamed)
      problems.add(key,
                   fmt::format("true has no effect with {}: its collectives start when a unit is at work", strategy));
  };
  align(overlap.align_grad_reduce, "overlap.align_grad_reduce", overlap.overlap_grad_reduce, "overlap_grad_reduce",
        units);
  align(overlap.align_param_gather, "overlap.align_param_gather", overlap.overlap_param_gather, "overlap_param_gather",
        sharding == Sharding::optim_grads_params);
  if (overlap.defer_embedding_wgrad_compute && p == 1)
    problems.add("overlap.defer_embedding_wgrad_compute",
                 "true needs pipeline_model_parallel_size above 1, found 1: there are no other stages to wait for");
  else if (overlap.defer_embedding_wgrad_compute && units)
    problems.add("overlap.defer_embedding_wgrad_compute",
                 fmt::format("true cannot be with {}: the gradients of a unit are reduced as soon as its backward is "
                             "through; optim works",
                             strategy));
  if (overlap.wgrad_deferral_limit > 0 && !overlap.defer_embedding_wgrad_compute)
    problems.add("overlap.wgrad_deferral_limit",
                 fmt::format("{} needs defer_embedding_wgrad_compute", overlap.wgrad_deferral_limit));
  if (overlap.average_in_collective && d <= 1)
    problems.add("overlap.average_in_collective",
                 "true has nothing to average: the data parallel size is 1; leave it out");
  if (units && config.parallel.bucket_size && *config.parallel.bucket_size != default_bucket_size(d))
    problems.add(kBucket,
                 fmt::format("{} has no effect with {}: there a bucket is a unit of the model (embedding, layer, "
                             "head); leave it out",
                             *config.parallel.bucket_size, strategy));
}

}  // namespace trivet
