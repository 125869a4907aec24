// The table behind fields(): a line a key.
#include "engine/config/fields.h"
#include "engine/config/value_types.h"

namespace trivet {
namespace {

// Declares the keys of a section, whose values are in a member of Config.
template <class Section>
class Declare {
 public:
  Declare(std::vector<Field>& table, std::string section, Section Config::*values)
      : table_(table), section_(std::move(section)), values_(values) {}

  template <class T>
  Field& operator()(std::string_view key, T Section::*member, std::string about, Numbers numbers = {}) {
    Field field = field_of_type<T>();
    field.name = fmt::format("{}.{}", section_, key);
    field.about = std::move(about);
    field.numbers = numbers;
    field.at = [values = values_, member](Config& config) -> void* { return &(config.*values.*member); };
    return table_.emplace_back(std::move(field));
  }

 private:
  std::vector<Field>& table_;
  std::string section_;
  Section Config::*values_;
};

constexpr Numbers range(double low, double high, std::string_view unit) {
  return {.low = low, .high = high, .unit = unit};
}
constexpr Numbers at_least(double low, std::string_view unit = {}) { return {.low = low, .unit = unit}; }
constexpr Numbers above(double low, std::string_view unit = {}) { return {.low = low, .low_open = true, .unit = unit}; }
constexpr Numbers fraction() { return {.low = 0, .high = 1, .high_open = true}; }

// The key and the member of the same name.
#define KEY(member) #member, &S::member

// The upper bounds keep every product of sizes (parameters, bytes, tokens a step) within 63 bits.

void declare_model(std::vector<Field>& table) {
  using S = ModelConfig;
  Declare model(table, "model", &Config::model);
  model(KEY(num_layers), "transformer layers, L", range(1, 10'000, "layers")).required = true;
  model(KEY(hidden_size), "width of the residual stream, h", range(1, 1'000'000, "columns")).required = true;
  model(KEY(ffn_hidden_size), "width of the MLP, f; auto: 4 h", range(1, 4'000'000, "columns"));
  model(KEY(num_attention_heads), "attention heads, a", range(1, 1'000'000, "heads")).required = true;
  model(KEY(seq_length), "tokens of a sample, s", range(1, 10'000'000, "tokens")).required = true;
  model(KEY(vocab_size), "tokens of the vocabulary; auto: the dataset's tokenizer's",
        range(1, 1'000'000'000, "tokens"));
  model(KEY(make_vocab_size_divisible_by), "the embedding is padded to a multiple of this times t",
        range(1, 1'000'000, "tokens"));
  model(KEY(untie_embeddings_and_output_weights), "give the output layer a weight of its own");
  model(KEY(init_method_std), "standard deviation of the initial weights", above(0));
  model(KEY(scale_output_layer_init), "divide it by sqrt(2 L) in layers that write to the residual stream");
  model(KEY(hidden_dropout), "dropout of the residual branches", fraction());
  model(KEY(attention_dropout), "dropout of the attention probabilities", fraction());
  model(KEY(attention_backend),
        "who computes attention on a GPU: Trivet's kernels, cuDNN's, or the faster of them, measured at the start");
  model(KEY(layernorm_epsilon), "added to the variance", above(0));
  model(KEY(recompute_granularity),
        "activations made again in the backward pass: modules of each layer, or whole layers");
  model(KEY(recompute_modules), "selective: what of each layer").takes =
      "core_attn, layernorm or mlp, or several with commas between";
  model(KEY(recompute_method),
        "full: groups of layers of which only the input is kept, or the first layers of each stage");
  model(KEY(recompute_num_layers), "full: layers of a group (uniform), or of each stage (block)",
        range(0, 10'000, "layers"));
}

void declare_parallel(std::vector<Field>& table) {
  using S = ParallelConfig;
  Declare parallel(table, "parallel", &Config::parallel);
  parallel(KEY(tensor_model_parallel_size), "ranks that share each layer, t", range(1, 65'536, "ranks"));
  parallel(KEY(pipeline_model_parallel_size), "ranks that hold a run of layers each, p", range(1, 65'536, "ranks"));
  parallel(KEY(virtual_pipeline_model_parallel_size),
           "model chunks of a pipeline rank, v; auto: what the schedule needs", range(1, 10'000, "chunks"));
  parallel(KEY(pipeline_schedule), "a kind that `trivet schedule --help` lists, or a file with a schedule");
  parallel(KEY(microbatch_group_size_per_vp_stage),
           "interleaved: micro-batches of a chunk in a row; auto: the smallest that fits",
           range(1, 1'000'000, "micro-batches"));
  parallel(KEY(decoder_first_pipeline_num_layers), "layers of the first stage; auto: as the others",
           range(0, 10'000, "layers"));
  parallel(KEY(decoder_last_pipeline_num_layers), "layers of the last stage; auto: as the others",
           range(0, 10'000, "layers"));
  parallel(KEY(account_for_embedding_in_pipeline_split), "the embedding counts as a layer of the first stage");
  parallel(KEY(account_for_loss_in_pipeline_split), "the output layer counts as a layer of the last stage");
  parallel(KEY(sequence_parallel), "norms and dropout hold 1/t of the sequence; needs t > 1");
  parallel(KEY(order), "which ranks are neighbours, innermost first");
  parallel(KEY(data_parallel_sharding_strategy),
           "what data-parallel ranks share (ZeRO): nothing, optimizer state, gradients too, weights too");
  parallel(KEY(bucket_size), "elements of a bucket of gradients and weights; auto: max(40e6, 1e6 d)",
           at_least(1, "elements"));
}

void declare_overlap(std::vector<Field>& table) {
  using S = OverlapConfig;
  Declare overlap(table, "overlap", &Config::overlap);
  overlap(KEY(overlap_p2p_comm), "pipeline transfers run beside compute; false: each is waited for");
  overlap(KEY(p2p_receive_ahead), "receives posted ahead on each pipeline channel while overlapping",
          range(1, 64, "receives"));
  overlap(KEY(overlap_grad_reduce),
          "reduce each bucket of gradients beside the backward pass, when its last micro-batch is through");
  overlap(KEY(overlap_param_gather), "gather sharded weights beside the next forward pass");
  overlap(KEY(collectives_in_flight),
          "how many reductions of gradients, and how many gathers of weights, may run at once",
          range(1, 64, "collectives"));
  overlap(KEY(align_grad_reduce), "start overlapped reductions at the same time on all pipeline ranks");
  overlap(KEY(align_param_gather), "start overlapped gathers of each chunk at the same time on all pipeline ranks");
  overlap(KEY(average_in_collective), "divide gradients by d while they are reduced; false: scale the loss beforehand");
  overlap(KEY(defer_embedding_wgrad_compute),
          "leave the output weight's gradients to the last stage's wait for the others at the end of a step");
  overlap(KEY(wgrad_deferral_limit),
          "of the last so many micro-batches; 0: of all. Each holds its gradient of the logits",
          at_least(0, "micro-batches"));
  overlap(KEY(tp_comm_overlap),
          "how tensor-parallel communication hides behind products: whole collectives, or cut into parts");
  const auto of_layer = [&](std::string_view key, std::optional<TensorOverlap> S::*member, bool bulk) {
    Field& field = overlap(key, member, "the same for one linear layer");
    field.empty = "default";
    if (!bulk) field.words = {"none", "ring", "pipeline"};
  };
  of_layer(KEY(tp_comm_overlap_qkv), true);
  of_layer(KEY(tp_comm_overlap_proj), false);
  of_layer(KEY(tp_comm_overlap_fc1), true);
  of_layer(KEY(tp_comm_overlap_fc2), false);
}

void declare_batch(std::vector<Field>& table) {
  using S = BatchConfig;
  Declare batch(table, "batch", &Config::batch);
  batch(KEY(micro_batch_size), "samples of one pass, b", range(1, 1'000'000, "samples"));
  batch(KEY(global_batch_size), "samples of a step; auto: b times d", range(1, 100'000'000, "samples"));
}

void declare_optimizer(std::vector<Field>& table) {
  using S = OptimizerConfig;
  Declare optimizer(table, "optimizer", &Config::optimizer);
  optimizer(KEY(lr), "peak learning rate", above(0));
  optimizer(KEY(min_lr), "learning rate after the decay; auto: lr / 10", at_least(0));
  optimizer(KEY(lr_warmup_iters), "steps of linear warm-up", range(0, 1e12, "steps"));
  optimizer(KEY(lr_decay_iters), "step at which min_lr is reached; auto: train_iters", range(1, 1e12, "steps"));
  optimizer(KEY(lr_decay_style), "shape of the decay");
  optimizer(KEY(adam_beta1), "decay of the first moment", fraction());
  optimizer(KEY(adam_beta2), "decay of the second moment", fraction());
  optimizer(KEY(adam_eps), "added to the root of the second moment", above(0));
  optimizer(KEY(weight_decay), "decoupled (AdamW)", at_least(0));
  optimizer(KEY(decay_norms_and_biases), "decay these too");
  optimizer(KEY(clip_grad), "largest norm of the gradient; 0: no clipping", at_least(0));
}

void declare_precision(std::vector<Field>& table) {
  using S = PrecisionConfig;
  Declare precision(table, "precision", &Config::precision);
  precision(KEY(dtype), "of weights and activations; main weights, moments and gradients are fp32");
}

void declare_data(std::vector<Field>& table) {
  using S = DataConfig;
  Declare data(table, "data", &Config::data);
  data(KEY(path), "dataset prefix (.bin/.idx), cut by data.split");
  data(KEY(split), "how data.path is cut", at_least(0)).takes =
      "up to three shares of train, validation and test such as 98,2,0";
  data(KEY(train_path), "training dataset prefix, instead of data.path");
  data(KEY(valid_path), "validation dataset prefix, with data.train_path");
  data(KEY(tokenizer_model), "tokenizer; \"\": PREFIX.model beside the dataset, if any");
  data(KEY(seed), "of the shuffles", at_least(0));
  data(KEY(prefetch), "micro-batches prepared ahead by a background thread", range(1, 10'000, "micro-batches"));
}

void declare_comm(std::vector<Field>& table) {
  using S = CommConfig;
  Declare comm(table, "comm", &Config::comm);
  comm(KEY(backend), "who the ranks are (thread, mpi), or how their GPUs talk (nccl, staged)");
  comm(KEY(nccl_ub),
       "weights and gradients in memory that NCCL's data-parallel groups know and work on without copies (user "
       "buffers)");
  comm(KEY(timeout_s), "a call that waits for longer ends the run: longer than a rank ever works alone; 0: never",
       at_least(0, "s"));
  comm(KEY(link_latency_us), "latency of an emulated link between ranks; 0: none", at_least(0, "us"));
  comm(KEY(link_gbps), "its bandwidth, 10^9 bits a second; 0: no limit", at_least(0, "Gbit/s"));
  comm(KEY(tensor_link_latency_us), "of tensor groups; auto: link_latency_us", at_least(0, "us"));
  comm(KEY(tensor_link_gbps), "of tensor groups; auto: link_gbps", at_least(0, "Gbit/s"));
  comm(KEY(pipeline_link_latency_us), "of pipeline groups; auto: link_latency_us", at_least(0, "us"));
  comm(KEY(pipeline_link_gbps), "of pipeline groups; auto: link_gbps", at_least(0, "Gbit/s"));
  comm(KEY(data_link_latency_us), "of data groups; auto: link_latency_us", at_least(0, "us"));
  comm(KEY(data_link_gbps), "of data groups; auto: link_gbps", at_least(0, "Gbit/s"));
}

void declare_checkpoint(std::vector<Field>& table) {
  using S = CheckpointConfig;
  Declare checkpoint(table, "checkpoint", &Config::checkpoint);
  checkpoint(KEY(save_interval), "steps between checkpoints in run_dir/checkpoints; 0: none", range(0, 1e12, "steps"));
  checkpoint(KEY(keep_last), "checkpoints kept; 0: all", range(0, 1e9, "checkpoints"));
  checkpoint(KEY(async_save), "train on while a copy of the state is written");
  checkpoint(KEY(max_failed_saves), "saves that may fail in a row before the run ends", range(1, 1e9, "saves"));
}

void declare_train(std::vector<Field>& table) {
  using S = TrainConfig;
  Declare train(table, "train", &Config::train);
  train(KEY(train_iters), "optimizer steps", range(1, 1e12, "steps")).required = true;
  train(KEY(eval_interval), "steps between evaluations; 0: never", range(0, 1e12, "steps"));
  train(KEY(eval_iters), "batches of an evaluation", range(1, 1e9, "batches"));
  train(KEY(seed), "of weights and dropout", at_least(0));
  train(KEY(run_dir), "folder of metrics.jsonl, config.resolved.yaml, trace.json");
  train(KEY(log_interval), "steps between lines", range(1, 1e12, "steps"));
  train(KEY(exit_duration_in_mins), "save and stop before the run has lasted so many minutes; 0: no limit",
        at_least(0, "minutes"));
  train(KEY(straggler_factor), "name a rank that works so many times as long as its peers; 0: do not look",
        at_least(0));
  train(KEY(straggler_interval), "steps between these looks", range(1, 1e12, "steps"));
  train(KEY(check_for_nan_in_loss_and_grad), "act on a loss or gradient that is not finite");
  train(KEY(non_finite_policy), "what becomes of such a step").words = {"stop", "skip"};
  train(KEY(spike_factor), "a loss or gradient norm above so many times its running median is a spike; 0: none is",
        at_least(0));
  train(KEY(spike_policy), "what becomes of such a step").words = {"warn", "skip", "stop"};
  train(KEY(max_consecutive_skips), "after so many in a row the run ends", range(1, 1e12, "steps"));
  train(KEY(check_weight_hash_across_dp_replicas_interval),
        "steps between comparisons of replicated weights across data-parallel ranks; 0: never",
        range(0, 1e12, "steps"));
  train(KEY(deterministic_mode),
        "choose nothing by timing it, so that two runs on GPUs give the same bits; on CPUs they always do");
  train(KEY(trace), "write run_dir/trace.json");
  train(KEY(flops_convention), "of the model FLOPs behind TFLOP/s and MFU");
}

void declare_device(std::vector<Field>& table) {
  using S = DeviceConfig;
  Declare device(table, "device", &Config::device);
  device(KEY(kind), "where arithmetic runs");
  device(KEY(tf32), "fp32 products on a GPU by its tensor cores, with 10 bits of mantissa");
  device(KEY(cuda_graph_impl),
         "launch what micro-batches repeat on a GPU as CUDA graphs: for small models, whose host is late");
  device(KEY(threads_per_rank), "CPU threads of a rank; 0: the host's cores over its ranks", range(0, 4096, "threads"));
  device(KEY(peak_tflops), "of one rank in the run's dtype; auto: by GPU name, or measured", above(0, "TFLOP/s"));
}

#undef KEY

}  // namespace

const std::vector<Field>& fields() {
  static const std::vector<Field> all = [] {
    std::vector<Field> table;
    for (const auto declare :
         {declare_model, declare_parallel, declare_overlap, declare_batch, declare_optimizer, declare_precision,
          declare_data, declare_comm, declare_checkpoint, declare_train, declare_device})
      declare(table);
    return table;
  }();
  return all;
}

}  // namespace trivet
