// Config: the description of a run, as plain structs with defaults. The keys are Megatron's and NeMo's; a YAML file has
// one map per struct (model: parallel: …) with these names. load.h fills it, validate.h checks it, explain.h shows it.
//
// Glossary, the letters of the Megatron papers, used throughout Trivet:
//   b micro-batch size   s sequence length   h hidden size   f ffn size   a attention heads   L layers   vocab
//   t tensor-, p pipeline-, d data-parallel size   v model chunks per pipeline rank   m micro-batches per step
//
// An empty optional means "derived": validate.h's resolve() fills it in.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/words.h"
#include "engine/config/tool_section.h"
#include "engine/metrics/accounting.h"
#include "kernels/base/device.h"
#include "kernels/base/dtype.h"
#include "kernels/base/trace.h"
#include "kernels/cpu_isa.h"
#include "parallel/context/cut.h"
#include "parallel/data/flat_buffer.h"
#include "parallel/mesh_shape.h"
#include "parallel/tensor/fp8_mode.h"
#include "parallel/tensor/overlap_mode.h"

namespace trivet {

// Enums, and the names of their values in a file. Enums that lower floors use are declared on those floors.
enum class RecomputeGranularity { none, selective, full };
enum class RecomputeModule { core_attn, layernorm, mlp };
enum class RecomputeMethod { none, uniform, block };
enum class LrDecay { cosine, linear, constant, inverse_square_root, wsd };
enum class WsdDecay { exponential, linear, cosine, minus_sqrt };
enum class Ramp { constant, linear, cosine };
enum class CommBackend { thread, mpi, nccl, staged };
enum class StepAction { take, warn, skip, stop };  // what to do with a step once its loss and gradient norm are known
enum class CudaGraphs { none, local };

constexpr auto words_of(RecomputeGranularity) { return word_list("none", "selective", "full"); }
constexpr auto words_of(RecomputeModule) { return word_list("core_attn", "layernorm", "mlp"); }
constexpr auto words_of(RecomputeMethod) { return word_list("none", "uniform", "block"); }
constexpr auto words_of(LrDecay) { return word_list("cosine", "linear", "constant", "inverse-square-root", "WSD"); }
constexpr auto words_of(WsdDecay) { return word_list("exponential", "linear", "cosine", "minus_sqrt"); }
constexpr auto words_of(Ramp) { return word_list("constant", "linear", "cosine"); }
constexpr auto words_of(CommBackend) { return word_list("thread", "mpi", "nccl", "staged"); }
constexpr auto words_of(StepAction) { return word_list("take", "warn", "skip", "stop"); }
constexpr auto words_of(FlopsConvention) { return word_list("causal", "full", "6n"); }
constexpr auto words_of(CudaGraphs) { return word_list("none", "local"); }
constexpr auto words_of(DType) { return word_list("fp32", "bf16"); }
constexpr auto words_of(DeviceKind) { return word_list("cpu", "cuda"); }
constexpr auto words_of(CpuIsa) { return kCpuIsaNames; }
constexpr auto words_of(Sharding) { return word_list("no_shard", "optim", "optim_grads", "optim_grads_params"); }
constexpr auto words_of(CpCommType) { return word_list("p2p", "all_gather"); }
constexpr auto words_of(Fp8) { return word_list("none", "hybrid", "e4m3"); }
constexpr auto words_of(Fp8Recipe) { return word_list("tensorwise", "blockwise", "delayed", "mxfp8"); }
constexpr auto words_of(TensorOverlap) { return word_list("none", "bulk", "ring", "pipeline"); }

struct ModelConfig {
  int64_t num_layers = 0;
  int64_t hidden_size = 0;
  std::optional<int64_t> ffn_hidden_size;  // 4 h; with swiglu 8/3 h, in multiples of 64
  int64_t num_attention_heads = 0;
  std::optional<int64_t> num_query_groups = {};  // num_attention_heads
  std::optional<int64_t> kv_channels = {};       // hidden_size / num_attention_heads
  int64_t seq_length = 0;
  std::optional<int64_t> vocab_size;  // the dataset tokenizer's
  int64_t make_vocab_size_divisible_by = 128;
  bool untie_embeddings_and_output_weights = false;
  Norm normalization = Norm::layernorm;
  bool swiglu = false;
  bool add_bias_linear = true;
  bool add_qkv_bias = false;  // if add_bias_linear is false
  bool qk_layernorm = false;  // per head, with `normalization`
  Positions position_embedding_type = Positions::learned;
  double rotary_base = 10'000;
  double rotary_percent = 1;
  bool use_rope_scaling = false;  // the scaling of Llama 3.1
  double rope_scaling_factor = 8;
  double rope_scaling_low_freq_factor = 1;
  double rope_scaling_high_freq_factor = 4;
  int64_t rope_scaling_original_max_position_embeddings = 8192;
  double init_method_std = 0.02;
  bool scale_output_layer_init = true;  // the layers that write to the residual stream: std / sqrt(2 L)
  double hidden_dropout = 0;
  double attention_dropout = 0;
  double layernorm_epsilon = 1e-5;
  RecomputeGranularity recompute_granularity = RecomputeGranularity::none;
  std::vector<RecomputeModule> recompute_modules = {RecomputeModule::core_attn};  // selective
  RecomputeMethod recompute_method = RecomputeMethod::none;                       // full
  int64_t recompute_num_layers = 0;                                               // full
  std::optional<int64_t> cross_entropy_chunk_rows = {};  // 0: no chunks; auto: cross_entropy_rows_of (validate.h)
};

struct ParallelConfig {
  int tensor_model_parallel_size = 1;
  int context_parallel_size = 1;
  CpCommType cp_comm_type = CpCommType::p2p;
  int pipeline_model_parallel_size = 1;
  std::optional<int64_t> virtual_pipeline_model_parallel_size;  // model chunks per pipeline rank; set by the schedule
  std::string pipeline_schedule = "1f1b";                       // a kind of `trivet schedule`, or a schedule file
  std::optional<int64_t> microbatch_group_size_per_vp_stage;    // interleaved; empty: chosen to fit
  std::optional<int64_t> decoder_first_pipeline_num_layers;
  std::optional<int64_t> decoder_last_pipeline_num_layers;
  bool account_for_embedding_in_pipeline_split = false;
  bool account_for_loss_in_pipeline_split = false;
  bool sequence_parallel = false;
  AxisOrder order = kUsualOrder;  // tp-cp-dp-pp: axes of the mesh, innermost first
  Sharding data_parallel_sharding_strategy = Sharding::no_shard;
  std::optional<int64_t> bucket_size;  // elements per bucket of gradients and weights: max(40e6, 1e6 d)
};

struct OverlapConfig {
  bool overlap_p2p_comm = true;        // pipeline transfers overlap compute; off: waits for each send
  int p2p_receive_ahead = 2;           // receives posted ahead on each pipeline channel while overlapping
  bool overlap_cp_comm = true;         // context-parallel communication overlaps attention
  bool overlap_grad_reduce = false;    // reduce a bucket of gradients as soon as the last micro-batch has filled it
  bool overlap_param_gather = false;   // gather sharded weights during the next forward pass
  int collectives_in_flight = 1;       // limit for each of the two above
  bool align_grad_reduce = false;      // start reductions at the same time on all pipeline ranks
  bool align_param_gather = false;     // same for gathers
  bool average_in_collective = false;  // divide by d while reducing; off: the loss is scaled beforehand
  bool defer_embedding_wgrad_compute = false;  // the output weight's gradients wait for the pipeline to drain
  int64_t wgrad_deferral_limit = 0;            // limits deferral to this many last micro-batches; 0: all
  TensorOverlap tp_comm_overlap = TensorOverlap::none;
  std::optional<TensorOverlap> tp_comm_overlap_qkv;  // default: tp_comm_overlap; same for the next three
  std::optional<TensorOverlap> tp_comm_overlap_proj;
  std::optional<TensorOverlap> tp_comm_overlap_fc1;
  std::optional<TensorOverlap> tp_comm_overlap_fc2;
};

struct BatchConfig {
  int64_t micro_batch_size = 1;
  std::optional<int64_t> global_batch_size;  // micro_batch_size * d; with a schedule of sizes, the largest
  std::optional<std::vector<int64_t>> rampup_batch_size = {};  // start, increment, samples
  std::string step_batch_size_schedule = {};                   // "0:768 250B:1536": 768, then 1536 after 250B tokens
};

struct OptimizerConfig {
  double lr = 3e-4;
  std::optional<double> min_lr = {};              // lr / 10
  std::optional<int64_t> lr_warmup_iters = 0;     // empty: lr_decay_iters / 10
  std::optional<double> lr_warmup_fraction = {};  // of lr_decay_iters, instead of lr_warmup_iters
  double lr_warmup_init = 0;                      // the lr at which the warm-up begins
  std::optional<int64_t> lr_decay_iters = {};     // train_iters
  LrDecay lr_decay_style = LrDecay::cosine;
  int64_t lr_wsd_decay_iters = 0;  // WSD: the number of steps before lr_decay_iters over which lr decays
  // With train.train_samples, these replace the three that count steps.
  std::optional<int64_t> lr_warmup_samples = 0;  // empty: lr_decay_samples / 10
  std::optional<int64_t> lr_decay_samples = {};  // train_samples
  int64_t lr_wsd_decay_samples = 0;
  WsdDecay lr_wsd_decay_style = WsdDecay::exponential;
  std::optional<double> decoupled_lr = {};      // lr of word embeddings and output layer; empty: lr
  std::optional<double> decoupled_min_lr = {};  // the same for min_lr
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.95;
  double adam_eps = 1e-8;
  double weight_decay = 0.1;
  std::optional<double> start_weight_decay = {};  // a ramp over the run, unless weight_decay_incr_style is constant
  std::optional<double> end_weight_decay = {};
  Ramp weight_decay_incr_style = Ramp::constant;
  bool decay_norms_and_biases = false;
  // If a resumed run's schedules differ from the checkpoint's, which to use; neither set: an error.
  bool override_opt_param_scheduler = false;        // this configuration's
  bool use_checkpoint_opt_param_scheduler = false;  // the checkpoint's
  double clip_grad = 1.0;                           // 0: no clipping
};

// The lengths of the learning rate's schedule, in steps or in samples.
struct LrSpan {
  std::optional<int64_t> warmup, decay;
  int64_t wsd_decay = 0;
};

struct PrecisionConfig {
  DType dtype = DType::f32;
  Fp8 fp8 = Fp8::none;
  Fp8Recipe fp8_recipe = Fp8Recipe::tensorwise;
  bool fp8_wgrad = true;
  bool fp8_param_gather = false;
  int64_t fp8_accumulator_bits = 24;
  bool fp8_report = false;
  bool first_last_layers_bf16 = false;
  int64_t num_layers_at_start_in_bf16 = 1, num_layers_at_end_in_bf16 = 1;
};

struct DataConfig {
  // A prefix of .bin/.idx, or a blend: weight,prefix,weight,prefix, … (blend_text.h).
  std::string path;  // split into train/validation/test by `split`; alternatively,
  std::vector<double> split = {98, 2, 0};
  std::string train_path;  // a prefix or blend for each
  std::string valid_path;
  std::string test_path;
  bool repeat = true;           // reshuffle and repeat the training data; false: one pass
  std::string tokenizer_model;  // default: the one next to the dataset, if any
  // For documents within a sample: positions restart at 0 in each, tokens attend only to their own document, and the
  // prediction made at a document's last token is masked.
  bool reset_position_ids = false, reset_attention_mask = false, eod_mask_loss = false;
  int64_t seed = 1234;   // for shuffling
  int64_t prefetch = 2;  // micro-batches that a background thread prepares ahead
};

// The emulated link of one class of groups; empty: link_latency_us, link_gbps.
struct ClassLink {
  std::optional<double> latency_us, gbps;
};

struct CommConfig {
  // thread, mpi: how ranks run. nccl, staged (through host memory, so that ranks may share a GPU): the transport
  // between GPUs. auto: the best that the launcher and the GPUs allow.
  std::optional<CommBackend> backend;
  bool nccl_ub = false;    // registers weights and gradients with NCCL's data-parallel groups
  double timeout_s = 600;  // a call that takes longer ends the run; 0: no timeout
  // Emulated links between the ranks of a group (parallel/comm/link.h): for all groups, or for one class of them.
  double link_latency_us = 0;
  double link_gbps = 0;                              // 10^9 bits per second; 0: no limit
  std::array<ClassLink, kCommClasses.size()> links;  // the keys CLASS_link_latency_us, CLASS_link_gbps
  bool shared_port = false;                          // the emulated links of all classes share one port per rank
  bool measure_links = false;                        // measures the real links at start
};

struct CheckpointConfig {
  int64_t save_interval = 0;  // steps between checkpoints in run_dir/checkpoints; 0: none
  int64_t keep_last = 0;      // keep this many checkpoints; 0: all
  // Also kept: steps that are multiples of save_retain_interval, and the keep_best steps of lowest validation loss.
  int64_t save_retain_interval = 0, keep_best = 0;
  std::string mirror;            // a second folder, to which checkpoints are copied in the background; empty: none
  bool async_save = false;       // copy the state, then write it while training continues
  int64_t max_failed_saves = 3;  // consecutive failures that end the run
};

struct TrainConfig {
  int64_t train_iters = 0;    // 0: derived from train_samples
  int64_t train_samples = 0;  // rounded down to whole steps
  int64_t eval_interval = 0;  // 0: never
  int64_t eval_iters = 10;
  bool full_validation = false;  // evaluate the full set, in order
  int64_t eval_samples = 0;      // or this many of the set's first samples; 0: eval_iters batches
  bool skip_train = false;       // evaluate a checkpoint and exit
  int64_t seed = 1234;           // for weights and dropout
  std::string run_dir = "runs/default";
  std::string tensorboard_dir;  // for event files; empty: none
  int64_t log_interval = 1;
  double exit_duration_in_mins = 0;  // save and stop before the run has lasted this long; 0: no limit
  int64_t exit_interval = 0;         // save and stop after each multiple of this many steps; 0: never
  double straggler_factor = 2;       // report a rank that takes this many times as long as its peers; 0: off
  int64_t straggler_interval = 50;   // steps
  // NaN, Inf and loss spikes: engine/train/number_check.h.
  bool check_for_nan_in_loss_and_grad = true;
  StepAction non_finite_policy = StepAction::stop;  // or skip
  double spike_factor = 0;                          // times the running median; 0: no spike detection
  StepAction spike_policy = StepAction::warn;       // or skip, or stop
  int64_t max_consecutive_skips = 10;
  int64_t check_weight_hash_across_dp_replicas_interval = 0;  // steps; 0: never
  bool deterministic_mode = false;  // choose nothing by timing, so that GPU runs are bit-identical
  bool trace = false;               // write run_dir/trace.json
  FlopsConvention flops_convention = FlopsConvention::causal;
};

struct DeviceConfig {
  std::optional<DeviceKind> kind;                 // auto: the GPUs, if the hosts have any
  std::optional<CpuIsa> cpu_isa;                  // auto: the best that the CPUs of all hosts support
  bool tf32 = false;                              // fp32 GEMMs on the tensor cores of a GPU, with 10 bits of mantissa
  CudaGraphs cuda_graph_impl = CudaGraphs::none;  // local: each micro-batch is launched as a graph
  int threads_per_rank = 0;                       // 0: the host's cores divided by its ranks
  std::optional<double> peak_tflops;              // per rank, in the run's dtype; auto: by GPU name, or measured
};

struct Config {
  ModelConfig model;
  ParallelConfig parallel;
  OverlapConfig overlap;
  BatchConfig batch;
  OptimizerConfig optimizer;
  PrecisionConfig precision;
  DataConfig data;
  CommConfig comm;
  CheckpointConfig checkpoint;
  TrainConfig train;
  DeviceConfig device;
  ToolValues tools;
};

// True if the run evaluates; it then evaluates the test set at its end, if there is one.
inline bool evaluates(const Config& c) {
  return c.train.eval_interval > 0 || c.train.skip_train || directing_section(c);
}
inline bool evaluates_in_order(const TrainConfig& c) { return c.full_validation || c.eval_samples > 0; }

inline LrSpan lr_span_of(const Config& c) {
  const OptimizerConfig& o = c.optimizer;
  return c.train.train_samples > 0 ? LrSpan{o.lr_warmup_samples, o.lr_decay_samples, o.lr_wsd_decay_samples}
                                   : LrSpan{o.lr_warmup_iters, o.lr_decay_iters, o.lr_wsd_decay_iters};
}

}  // namespace trivet
