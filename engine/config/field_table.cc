// The table behind fields(): a line a key.
#include <utility>

#include "engine/config/fields.h"

namespace trivet {
namespace {

template <class Section>
Section& section(Config& config) {
  if constexpr (std::is_same_v<Section, ModelConfig>) return config.model;
  else if constexpr (std::is_same_v<Section, ParallelConfig>) return config.parallel;
  else if constexpr (std::is_same_v<Section, OverlapConfig>) return config.overlap;
  else if constexpr (std::is_same_v<Section, BatchConfig>) return config.batch;
  else if constexpr (std::is_same_v<Section, OptimizerConfig>) return config.optimizer;
  else if constexpr (std::is_same_v<Section, PrecisionConfig>) return config.precision;
  else if constexpr (std::is_same_v<Section, DataConfig>) return config.data;
  else if constexpr (std::is_same_v<Section, CommConfig>) return config.comm;
  else if constexpr (std::is_same_v<Section, CheckpointConfig>) return config.checkpoint;
  else if constexpr (std::is_same_v<Section, TrainConfig>) return config.train;
  else if constexpr (std::is_same_v<Section, DeviceConfig>) return config.device;
}
template <class Section, class T>
Section section_of(T Section::*);
template <auto member>
FieldRef at(Config& config) {
  return &(section<decltype(section_of(member))>(config).*member);
}

Field required(std::string_view name, FieldRef (*ref)(Config&), std::string_view about, Limits limits) {
  return {name, ref, about, limits, {}, true};
}
Field choice(std::string_view name, FieldRef (*ref)(Config&), std::string_view about,
             std::vector<std::string_view> choices) {
  return {name, ref, about, {}, std::move(choices)};
}
constexpr Limits range(double low, double high) { return {.low = low, .high = high}; }
constexpr Limits at_least(double low) { return {.low = low}; }
constexpr Limits above(double low) { return {.low = low, .low_open = true}; }
constexpr Limits fraction() { return {.low = 0, .high = 1, .high_open = true}; }

// The upper bounds keep every product of sizes (parameters, bytes, tokens a step) within 63 bits.
std::vector<Field> make_fields() {
  using M = ModelConfig;
  using P = ParallelConfig;
  using V = OverlapConfig;
  using B = BatchConfig;
  using O = OptimizerConfig;
  using R = PrecisionConfig;
  using D = DataConfig;
  using C = CommConfig;
  using K = CheckpointConfig;
  using T = TrainConfig;
  using E = DeviceConfig;
  return {
      required("model.num_layers", at<&M::num_layers>, "transformer layers, L", range(1, 10'000)),
      required("model.hidden_size", at<&M::hidden_size>, "width of the residual stream, h", range(1, 1'000'000)),
      {"model.ffn_hidden_size", at<&M::ffn_hidden_size>, "width of the MLP, f; auto: 4 h", range(1, 4'000'000)},
      required("model.num_attention_heads", at<&M::num_attention_heads>, "attention heads, a", range(1, 1'000'000)),
      required("model.seq_length", at<&M::seq_length>, "tokens of a sample, s", range(1, 10'000'000)),
      {"model.vocab_size", at<&M::vocab_size>, "tokens of the vocabulary; auto: the dataset's tokenizer's",
       range(1, 1'000'000'000)},
      {"model.make_vocab_size_divisible_by", at<&M::make_vocab_size_divisible_by>,
       "the embedding is padded to a multiple of this times t", range(1, 1'000'000)},
      {"model.untie_embeddings_and_output_weights", at<&M::untie_embeddings_and_output_weights>,
       "give the output layer a weight of its own"},
      {"model.init_method_std", at<&M::init_method_std>, "standard deviation of the initial weights", above(0)},
      {"model.scale_output_layer_init", at<&M::scale_output_layer_init>,
       "divide it by sqrt(2 L) in layers that write to the residual stream"},
      {"model.hidden_dropout", at<&M::hidden_dropout>, "dropout of the residual branches", fraction()},
      {"model.attention_dropout", at<&M::attention_dropout>, "dropout of the attention probabilities", fraction()},
      choice("model.attention_backend", at<&M::attention_backend>,
             "who computes attention on a GPU: Trivet's kernels, cuDNN's, or the faster of them, measured at the start",
             {"auto", "flash", "cudnn"}),
      {"model.layernorm_epsilon", at<&M::layernorm_epsilon>, "added to the variance", above(0)},
      choice("model.recompute_granularity", at<&M::recompute_granularity>,
             "activations made again in the backward pass: modules of each layer, or whole layers",
             {"none", "selective", "full"}),
      {"model.recompute_modules", at<&M::recompute_modules>,
       "selective: what of each layer, from core_attn, layernorm, mlp, with commas between"},
      choice("model.recompute_method", at<&M::recompute_method>,
             "full: groups of layers of which only the input is kept, or the first layers of each stage",
             {"none", "uniform", "block"}),
      {"model.recompute_num_layers", at<&M::recompute_num_layers>,
       "full: layers of a group (uniform), or of each stage (block)", range(0, 10'000)},

      {"parallel.tensor_model_parallel_size", at<&P::tensor_model_parallel_size>, "ranks that share each layer, t",
       range(1, 65'536)},
      {"parallel.pipeline_model_parallel_size", at<&P::pipeline_model_parallel_size>,
       "ranks that hold a run of layers each, p", range(1, 65'536)},
      {"parallel.virtual_pipeline_model_parallel_size", at<&P::virtual_pipeline_model_parallel_size>,
       "model chunks of a pipeline rank, v; auto: what the schedule needs", range(1, 10'000)},
      {"parallel.pipeline_schedule", at<&P::pipeline_schedule>,
       "a kind that `trivet schedule --help` lists, or a file with a schedule"},
      {"parallel.microbatch_group_size_per_vp_stage", at<&P::microbatch_group_size_per_vp_stage>,
       "interleaved: micro-batches of a chunk in a row; auto: the smallest that fits", range(1, 1'000'000)},
      {"parallel.decoder_first_pipeline_num_layers", at<&P::decoder_first_pipeline_num_layers>,
       "layers of the first stage; auto: as the others", range(0, 10'000)},
      {"parallel.decoder_last_pipeline_num_layers", at<&P::decoder_last_pipeline_num_layers>,
       "layers of the last stage; auto: as the others", range(0, 10'000)},
      {"parallel.account_for_embedding_in_pipeline_split", at<&P::account_for_embedding_in_pipeline_split>,
       "the embedding counts as a layer of the first stage"},
      {"parallel.account_for_loss_in_pipeline_split", at<&P::account_for_loss_in_pipeline_split>,
       "the output layer counts as a layer of the last stage"},
      {"parallel.sequence_parallel", at<&P::sequence_parallel>,
       "norms and dropout hold 1/t of the sequence; needs t > 1"},
      choice("parallel.order", at<&P::order>, "which ranks are neighbours, innermost first", {"tp-dp-pp", "tp-pp-dp"}),
      choice("parallel.data_parallel_sharding_strategy", at<&P::data_parallel_sharding_strategy>,
             "what data-parallel ranks share (ZeRO): nothing, optimizer state, gradients too, weights too",
             {"no_shard", "optim", "optim_grads", "optim_grads_params"}),
      {"parallel.bucket_size", at<&P::bucket_size>,
       "elements of a bucket of gradients and weights; auto: max(40e6, 1e6 d)", at_least(1)},

      {"overlap.overlap_p2p_comm", at<&V::overlap_p2p_comm>,
       "pipeline transfers run beside compute; false: each is waited for"},
      {"overlap.p2p_receive_ahead", at<&V::p2p_receive_ahead>,
       "receives posted ahead on each pipeline channel while overlapping", range(1, 64)},
      {"overlap.overlap_grad_reduce", at<&V::overlap_grad_reduce>,
       "reduce each bucket of gradients beside the backward pass, when its last micro-batch is through"},
      {"overlap.overlap_param_gather", at<&V::overlap_param_gather>,
       "gather sharded weights beside the next forward pass"},
      {"overlap.collectives_in_flight", at<&V::collectives_in_flight>,
       "how many reductions of gradients, and how many gathers of weights, may run at once", range(1, 64)},
      {"overlap.align_grad_reduce", at<&V::align_grad_reduce>,
       "start overlapped reductions at the same time on all pipeline ranks"},
      {"overlap.align_param_gather", at<&V::align_param_gather>,
       "start overlapped gathers of each chunk at the same time on all pipeline ranks"},
      {"overlap.average_in_collective", at<&V::average_in_collective>,
       "divide gradients by d while they are reduced; false: scale the loss beforehand"},
      {"overlap.defer_embedding_wgrad_compute", at<&V::defer_embedding_wgrad_compute>,
       "leave the output weight's gradients to the last stage's wait for the others at the end of a step"},
      {"overlap.wgrad_deferral_limit", at<&V::wgrad_deferral_limit>,
       "of the last so many micro-batches; 0: of all. Each holds its gradient of the logits", at_least(0)},
      choice("overlap.tp_comm_overlap", at<&V::tp_comm_overlap>,
             "how tensor-parallel communication hides behind products: whole collectives, or cut into parts",
             {"none", "bulk", "ring", "pipeline"}),
      choice("overlap.tp_comm_overlap_qkv", at<&V::tp_comm_overlap_qkv>, "the same for one linear layer",
             {"default", "none", "bulk", "ring", "pipeline"}),
      choice("overlap.tp_comm_overlap_proj", at<&V::tp_comm_overlap_proj>, "the same for one linear layer",
             {"default", "none", "ring", "pipeline"}),
      choice("overlap.tp_comm_overlap_fc1", at<&V::tp_comm_overlap_fc1>, "the same for one linear layer",
             {"default", "none", "bulk", "ring", "pipeline"}),
      choice("overlap.tp_comm_overlap_fc2", at<&V::tp_comm_overlap_fc2>, "the same for one linear layer",
             {"default", "none", "ring", "pipeline"}),

      {"batch.micro_batch_size", at<&B::micro_batch_size>, "samples of one pass, b", range(1, 1'000'000)},
      {"batch.global_batch_size", at<&B::global_batch_size>, "samples of a step; auto: b times d",
       range(1, 100'000'000)},

      {"optimizer.lr", at<&O::lr>, "peak learning rate", above(0)},
      {"optimizer.min_lr", at<&O::min_lr>, "learning rate after the decay; auto: lr / 10", at_least(0)},
      {"optimizer.lr_warmup_iters", at<&O::lr_warmup_iters>, "steps of linear warm-up", range(0, 1e12)},
      {"optimizer.lr_decay_iters", at<&O::lr_decay_iters>, "step at which min_lr is reached; auto: train_iters",
       range(1, 1e12)},
      choice("optimizer.lr_decay_style", at<&O::lr_decay_style>, "shape of the decay",
             {"cosine", "linear", "constant"}),
      {"optimizer.adam_beta1", at<&O::adam_beta1>, "decay of the first moment", fraction()},
      {"optimizer.adam_beta2", at<&O::adam_beta2>, "decay of the second moment", fraction()},
      {"optimizer.adam_eps", at<&O::adam_eps>, "added to the root of the second moment", above(0)},
      {"optimizer.weight_decay", at<&O::weight_decay>, "decoupled (AdamW)", at_least(0)},
      {"optimizer.decay_norms_and_biases", at<&O::decay_norms_and_biases>, "decay these too"},
      {"optimizer.clip_grad", at<&O::clip_grad>, "largest norm of the gradient; 0: no clipping", at_least(0)},

      choice("precision.dtype", at<&R::dtype>,
             "of weights and activations; main weights, moments and gradients are fp32", {"fp32", "bf16"}),

      {"data.path", at<&D::path>, "dataset prefix (.bin/.idx), cut by data.split"},
      {"data.split", at<&D::split>, "shares of train, validation and test in data.path"},
      {"data.train_path", at<&D::train_path>, "training dataset prefix, instead of data.path"},
      {"data.valid_path", at<&D::valid_path>, "validation dataset prefix, with data.train_path"},
      {"data.tokenizer_model", at<&D::tokenizer_model>, "tokenizer; \"\": PREFIX.model beside the dataset, if any"},
      {"data.seed", at<&D::seed>, "of the shuffles", at_least(0)},
      {"data.prefetch", at<&D::prefetch>, "micro-batches prepared ahead by a background thread", range(1, 10'000)},

      choice("comm.backend", at<&C::backend>, "who the ranks are (thread, mpi), or how their GPUs talk (nccl, staged)",
             {"auto", "thread", "mpi", "nccl", "staged"}),
      {"comm.nccl_ub", at<&C::nccl_ub>,
       "weights and gradients in memory that NCCL's data-parallel groups know and work on without copies (user "
       "buffers)"},
      {"comm.timeout_s", at<&C::timeout_s>,
       "a call that waits for longer ends the run: longer than a rank ever works alone; 0: never", at_least(0)},
      {"comm.link_latency_us", at<&C::link_latency_us>, "latency of an emulated link between ranks; 0: none",
       at_least(0)},
      {"comm.link_gbps", at<&C::link_gbps>, "its bandwidth, 10^9 bits a second; 0: no limit", at_least(0)},
      {"comm.tensor_link_latency_us", at<&C::tensor_link_latency_us>, "of tensor groups; auto: link_latency_us",
       at_least(0)},
      {"comm.tensor_link_gbps", at<&C::tensor_link_gbps>, "of tensor groups; auto: link_gbps", at_least(0)},
      {"comm.pipeline_link_latency_us", at<&C::pipeline_link_latency_us>, "of pipeline groups; auto: link_latency_us",
       at_least(0)},
      {"comm.pipeline_link_gbps", at<&C::pipeline_link_gbps>, "of pipeline groups; auto: link_gbps", at_least(0)},
      {"comm.data_link_latency_us", at<&C::data_link_latency_us>, "of data groups; auto: link_latency_us", at_least(0)},
      {"comm.data_link_gbps", at<&C::data_link_gbps>, "of data groups; auto: link_gbps", at_least(0)},

      {"checkpoint.save_interval", at<&K::save_interval>, "steps between checkpoints in run_dir/checkpoints; 0: none",
       range(0, 1e12)},
      {"checkpoint.keep_last", at<&K::keep_last>, "checkpoints kept; 0: all", range(0, 1e9)},
      {"checkpoint.async_save", at<&K::async_save>, "train on while a copy of the state is written"},
      {"checkpoint.max_failed_saves", at<&K::max_failed_saves>, "saves that may fail in a row before the run ends",
       range(1, 1e9)},

      required("train.train_iters", at<&T::train_iters>, "optimizer steps", range(1, 1e12)),
      {"train.eval_interval", at<&T::eval_interval>, "steps between evaluations; 0: never", range(0, 1e12)},
      {"train.eval_iters", at<&T::eval_iters>, "batches of an evaluation", range(1, 1e9)},
      {"train.seed", at<&T::seed>, "of weights and dropout", at_least(0)},
      {"train.run_dir", at<&T::run_dir>, "folder of metrics.jsonl, config.resolved.yaml, trace.json"},
      {"train.log_interval", at<&T::log_interval>, "steps between lines", range(1, 1e12)},
      {"train.exit_duration_in_mins", at<&T::exit_duration_in_mins>,
       "save and stop before the run has lasted so many minutes; 0: no limit", at_least(0)},
      {"train.straggler_factor", at<&T::straggler_factor>,
       "name a rank that works so many times as long as its peers; 0: do not look", at_least(0)},
      {"train.straggler_interval", at<&T::straggler_interval>, "steps between these looks", range(1, 1e12)},
      {"train.check_for_nan_in_loss_and_grad", at<&T::check_for_nan_in_loss_and_grad>,
       "act on a loss or gradient that is not finite"},
      choice("train.non_finite_policy", at<&T::non_finite_policy>, "what becomes of such a step", {"stop", "skip"}),
      {"train.spike_factor", at<&T::spike_factor>,
       "a loss or gradient norm above so many times its running median is a spike; 0: none is", at_least(0)},
      choice("train.spike_policy", at<&T::spike_policy>, "what becomes of such a step", {"warn", "skip", "stop"}),
      {"train.max_consecutive_skips", at<&T::max_consecutive_skips>, "after so many in a row the run ends",
       range(1, 1e12)},
      {"train.check_weight_hash_across_dp_replicas_interval", at<&T::check_weight_hash_across_dp_replicas_interval>,
       "steps between comparisons of replicated weights across data-parallel ranks; 0: never", range(0, 1e12)},
      {"train.deterministic_mode", at<&T::deterministic_mode>,
       "choose nothing by timing it, so that two runs on GPUs give the same bits; on CPUs they always do"},
      {"train.trace", at<&T::trace>, "write run_dir/trace.json"},
      choice("train.flops_convention", at<&T::flops_convention>, "of the model FLOPs behind TFLOP/s and MFU",
             {"causal", "full", "6n"}),

      choice("device.kind", at<&E::kind>, "where arithmetic runs", {"auto", "cpu", "cuda"}),
      {"device.tf32", at<&E::tf32>, "fp32 products on a GPU by its tensor cores, with 10 bits of mantissa"},
      choice("device.cuda_graph_impl", at<&E::cuda_graph_impl>,
             "launch what micro-batches repeat on a GPU as CUDA graphs: for small models, whose host is late",
             {"none", "local"}),
      {"device.threads_per_rank", at<&E::threads_per_rank>, "CPU threads of a rank; 0: the host's cores over its ranks",
       range(0, 4096)},
      {"device.peak_tflops", at<&E::peak_tflops>, "of one rank in the run's dtype; auto: by GPU name, or measured",
       above(0)},
  };
}

}  // namespace

const std::vector<Field>& fields() {
  static const std::vector<Field> table = make_fields();
  return table;
}

}  // namespace trivet
