#include "engine/config/fields.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <numeric>

#include "engine/config/scalar.h"

namespace trivet {
namespace {

template <auto section, auto member>
FieldRef at(Config& config) {
  return &(config.*section.*member);
}
template <auto member>
constexpr auto model = at<&Config::model, member>;
template <auto member>
constexpr auto parallel = at<&Config::parallel, member>;
template <auto member>
constexpr auto batch = at<&Config::batch, member>;
template <auto member>
constexpr auto optimizer = at<&Config::optimizer, member>;
template <auto member>
constexpr auto data = at<&Config::data, member>;
template <auto member>
constexpr auto comm = at<&Config::comm, member>;
template <auto member>
constexpr auto checkpoint = at<&Config::checkpoint, member>;
template <auto member>
constexpr auto train = at<&Config::train, member>;

constexpr Limits range(double low, double high) { return {.low = low, .high = high}; }
constexpr Limits at_least(double low) { return {.low = low}; }
constexpr Limits above(double low) { return {.low = low, .low_open = true}; }
constexpr Limits fraction() { return {.low = 0, .high = 1, .high_open = true}; }

// The upper bounds keep every product of sizes (parameters, bytes, tokens a step) within 63 bits.
std::vector<Field> make_fields() {
  using M = ModelConfig;
  using P = ParallelConfig;
  using B = BatchConfig;
  using O = OptimizerConfig;
  using D = DataConfig;
  using C = CommConfig;
  using K = CheckpointConfig;
  using T = TrainConfig;
  return {
      {"model.num_layers", model<&M::num_layers>, "transformer layers, L", range(1, 10'000), {}, true},
      {"model.hidden_size", model<&M::hidden_size>, "width of the residual stream, h", range(1, 1'000'000), {}, true},
      {"model.ffn_hidden_size", model<&M::ffn_hidden_size>, "width of the MLP, f; auto: 4 h", range(1, 4'000'000)},
      {"model.num_attention_heads",
       model<&M::num_attention_heads>,
       "attention heads, a",
       range(1, 1'000'000),
       {},
       true},
      {"model.seq_length", model<&M::seq_length>, "tokens of a sample, s", range(1, 10'000'000), {}, true},
      {"model.vocab_size", model<&M::vocab_size>, "tokens of the vocabulary; auto: the dataset's tokenizer's",
       range(1, 1'000'000'000)},
      {"model.make_vocab_size_divisible_by", model<&M::make_vocab_size_divisible_by>,
       "the embedding is padded to a multiple of this times t", range(1, 1'000'000)},
      {"model.untie_embeddings_and_output_weights", model<&M::untie_embeddings_and_output_weights>,
       "give the output layer a weight of its own"},
      {"model.init_method_std", model<&M::init_method_std>, "standard deviation of the initial weights", above(0)},
      {"model.scale_output_layer_init", model<&M::scale_output_layer_init>,
       "divide it by sqrt(2 L) in layers that write to the residual stream"},
      {"model.hidden_dropout", model<&M::hidden_dropout>, "dropout of the residual branches", fraction()},
      {"model.attention_dropout", model<&M::attention_dropout>, "dropout of the attention probabilities", fraction()},
      {"model.attention_backend",
       model<&M::attention_backend>,
       "who computes attention on a GPU: Trivet's kernels, cuDNN's, or the faster of them, measured at the start",
       {},
       {"auto", "flash", "cudnn"}},
      {"model.layernorm_epsilon", model<&M::layernorm_epsilon>, "added to the variance", above(0)},
      {"model.recompute_granularity",
       model<&M::recompute_granularity>,
       "activations made again in the backward pass: modules of each layer, or whole layers",
       {},
       {"none", "selective", "full"}},
      {"model.recompute_modules", model<&M::recompute_modules>,
       "selective: what of each layer, from core_attn, layernorm, mlp, with commas between"},
      {"model.recompute_method",
       model<&M::recompute_method>,
       "full: groups of layers of which only the input is kept, or the first layers of each stage",
       {},
       {"none", "uniform", "block"}},
      {"model.recompute_num_layers", model<&M::recompute_num_layers>,
       "full: layers of a group (uniform), or of each stage (block)", range(0, 10'000)},

      {"parallel.tensor_model_parallel_size", parallel<&P::tensor_model_parallel_size>,
       "ranks that share each layer, t", range(1, 65'536)},
      {"parallel.pipeline_model_parallel_size", parallel<&P::pipeline_model_parallel_size>,
       "ranks that hold a run of layers each, p", range(1, 65'536)},
      {"parallel.virtual_pipeline_model_parallel_size", parallel<&P::virtual_pipeline_model_parallel_size>,
       "model chunks of a pipeline rank, v; auto: what the schedule needs", range(1, 10'000)},
      {"parallel.pipeline_schedule", parallel<&P::pipeline_schedule>,
       "a kind that `trivet schedule --kinds` lists, or a file with a schedule"},
      {"parallel.microbatch_group_size_per_vp_stage", parallel<&P::microbatch_group_size_per_vp_stage>,
       "interleaved: micro-batches of a chunk in a row; auto: the smallest that fits", range(1, 1'000'000)},
      {"parallel.decoder_first_pipeline_num_layers", parallel<&P::decoder_first_pipeline_num_layers>,
       "layers of the first stage; auto: as the others", range(0, 10'000)},
      {"parallel.decoder_last_pipeline_num_layers", parallel<&P::decoder_last_pipeline_num_layers>,
       "layers of the last stage; auto: as the others", range(0, 10'000)},
      {"parallel.account_for_embedding_in_pipeline_split", parallel<&P::account_for_embedding_in_pipeline_split>,
       "the embedding counts as a layer of the first stage"},
      {"parallel.account_for_loss_in_pipeline_split", parallel<&P::account_for_loss_in_pipeline_split>,
       "the output layer counts as a layer of the last stage"},
      {"parallel.sequence_parallel", parallel<&P::sequence_parallel>,
       "norms and dropout hold 1/t of the sequence; needs t > 1"},
      {"parallel.order",
       parallel<&P::order>,
       "which ranks are neighbours, innermost first",
       {},
       {"tp-dp-pp", "tp-pp-dp"}},
      {"parallel.data_parallel_sharding_strategy",
       parallel<&P::data_parallel_sharding_strategy>,
       "what data-parallel ranks share (ZeRO): nothing, optimizer state, gradients too, weights too",
       {},
       {"no_shard", "optim", "optim_grads", "optim_grads_params"}},
      {"parallel.bucket_size", parallel<&P::bucket_size>,
       "elements of a bucket of gradients and weights; auto: max(40e6, 1e6 d)", at_least(1)},

      {"overlap.overlap_p2p_comm", at<&Config::overlap, &OverlapConfig::overlap_p2p_comm>,
       "pipeline transfers run beside compute; false: each is waited for"},
      {"overlap.p2p_receive_ahead", at<&Config::overlap, &OverlapConfig::p2p_receive_ahead>,
       "receives posted ahead on each pipeline channel while overlapping", range(1, 64)},
      {"overlap.overlap_grad_reduce", at<&Config::overlap, &OverlapConfig::overlap_grad_reduce>,
       "reduce each bucket of gradients beside the backward pass, when its last micro-batch is through"},
      {"overlap.overlap_param_gather", at<&Config::overlap, &OverlapConfig::overlap_param_gather>,
       "gather sharded weights beside the next forward pass"},
      {"overlap.collectives_in_flight", at<&Config::overlap, &OverlapConfig::collectives_in_flight>,
       "how many reductions of gradients, and how many gathers of weights, may run at once", range(1, 64)},
      {"overlap.align_grad_reduce", at<&Config::overlap, &OverlapConfig::align_grad_reduce>,
       "start overlapped reductions at the same time on all pipeline ranks"},
      {"overlap.align_param_gather", at<&Config::overlap, &OverlapConfig::align_param_gather>,
       "start overlapped gathers of each chunk at the same time on all pipeline ranks"},
      {"overlap.average_in_collective", at<&Config::overlap, &OverlapConfig::average_in_collective>,
       "divide gradients by d while they are reduced; false: scale the loss beforehand"},
      {"overlap.defer_embedding_wgrad_compute", at<&Config::overlap, &OverlapConfig::defer_embedding_wgrad_compute>,
       "leave the output weight's gradients to the last stage's wait for the others at the end of a step"},
      {"overlap.wgrad_deferral_limit", at<&Config::overlap, &OverlapConfig::wgrad_deferral_limit>,
       "of the last so many micro-batches; 0: of all. Each holds its gradient of the logits", at_least(0)},
      {"overlap.tp_comm_overlap",
       at<&Config::overlap, &OverlapConfig::tp_comm_overlap>,
       "how tensor-parallel communication hides behind products: whole collectives, or cut into parts",
       {},
       {"none", "bulk", "ring", "pipeline"}},
      {"overlap.tp_comm_overlap_qkv",
       at<&Config::overlap, &OverlapConfig::tp_comm_overlap_qkv>,
       "the same for one linear layer",
       {},
       {"default", "none", "bulk", "ring", "pipeline"}},
      {"overlap.tp_comm_overlap_proj",
       at<&Config::overlap, &OverlapConfig::tp_comm_overlap_proj>,
       "the same for one linear layer",
       {},
       {"default", "none", "ring", "pipeline"}},
      {"overlap.tp_comm_overlap_fc1",
       at<&Config::overlap, &OverlapConfig::tp_comm_overlap_fc1>,
       "the same for one linear layer",
       {},
       {"default", "none", "bulk", "ring", "pipeline"}},
      {"overlap.tp_comm_overlap_fc2",
       at<&Config::overlap, &OverlapConfig::tp_comm_overlap_fc2>,
       "the same for one linear layer",
       {},
       {"default", "none", "ring", "pipeline"}},

      {"batch.micro_batch_size", batch<&B::micro_batch_size>, "samples of one pass, b", range(1, 1'000'000)},
      {"batch.global_batch_size", batch<&B::global_batch_size>, "samples of a step; auto: b times d",
       range(1, 100'000'000)},

      {"optimizer.lr", optimizer<&O::lr>, "peak learning rate", above(0)},
      {"optimizer.min_lr", optimizer<&O::min_lr>, "learning rate after the decay; auto: lr / 10", at_least(0)},
      {"optimizer.lr_warmup_iters", optimizer<&O::lr_warmup_iters>, "steps of linear warm-up", range(0, 1e12)},
      {"optimizer.lr_decay_iters", optimizer<&O::lr_decay_iters>, "step at which min_lr is reached; auto: train_iters",
       range(1, 1e12)},
      {"optimizer.lr_decay_style",
       optimizer<&O::lr_decay_style>,
       "shape of the decay",
       {},
       {"cosine", "linear", "constant"}},
      {"optimizer.adam_beta1", optimizer<&O::adam_beta1>, "decay of the first moment", fraction()},
      {"optimizer.adam_beta2", optimizer<&O::adam_beta2>, "decay of the second moment", fraction()},
      {"optimizer.adam_eps", optimizer<&O::adam_eps>, "added to the root of the second moment", above(0)},
      {"optimizer.weight_decay", optimizer<&O::weight_decay>, "decoupled (AdamW)", at_least(0)},
      {"optimizer.decay_norms_and_biases", optimizer<&O::decay_norms_and_biases>, "decay these too"},
      {"optimizer.clip_grad", optimizer<&O::clip_grad>, "largest norm of the gradient; 0: no clipping", at_least(0)},

      {"precision.dtype",
       at<&Config::precision, &PrecisionConfig::dtype>,
       "of weights and activations; main weights, moments and gradients are fp32",
       {},
       {"fp32", "bf16"}},

      {"data.path", data<&D::path>, "dataset prefix (.bin/.idx), cut by data.split"},
      {"data.split", data<&D::split>, "shares of train, validation and test in data.path"},
      {"data.train_path", data<&D::train_path>, "training dataset prefix, instead of data.path"},
      {"data.valid_path", data<&D::valid_path>, "validation dataset prefix, with data.train_path"},
      {"data.tokenizer_model", data<&D::tokenizer_model>, "tokenizer; \"\": PREFIX.model beside the dataset, if any"},
      {"data.seed", data<&D::seed>, "of the shuffles", at_least(0)},
      {"data.prefetch", data<&D::prefetch>, "micro-batches prepared ahead by a background thread", range(1, 10'000)},

      {"comm.backend",
       comm<&C::backend>,
       "who the ranks are (thread, mpi), or how their GPUs talk (nccl, staged)",
       {},
       {"auto", "thread", "mpi", "nccl", "staged"}},
      {"comm.nccl_ub", comm<&C::nccl_ub>,
       "weights and gradients in memory that NCCL's data-parallel groups know and work on without copies (user "
       "buffers)"},
      {"comm.timeout_s", comm<&C::timeout_s>,
       "a call that waits for longer ends the run: longer than a rank ever works alone; 0: never", at_least(0)},
      {"comm.link_latency_us", comm<&C::link_latency_us>, "latency of an emulated link between ranks; 0: none",
       at_least(0)},
      {"comm.link_gbps", comm<&C::link_gbps>, "its bandwidth, 10^9 bits a second; 0: no limit", at_least(0)},
      {"comm.tensor_link_latency_us", comm<&C::tensor_link_latency_us>, "of tensor groups; auto: link_latency_us",
       at_least(0)},
      {"comm.tensor_link_gbps", comm<&C::tensor_link_gbps>, "of tensor groups; auto: link_gbps", at_least(0)},
      {"comm.pipeline_link_latency_us", comm<&C::pipeline_link_latency_us>, "of pipeline groups; auto: link_latency_us",
       at_least(0)},
      {"comm.pipeline_link_gbps", comm<&C::pipeline_link_gbps>, "of pipeline groups; auto: link_gbps", at_least(0)},
      {"comm.data_link_latency_us", comm<&C::data_link_latency_us>, "of data groups; auto: link_latency_us",
       at_least(0)},
      {"comm.data_link_gbps", comm<&C::data_link_gbps>, "of data groups; auto: link_gbps", at_least(0)},

      {"checkpoint.save_interval", checkpoint<&K::save_interval>,
       "steps between checkpoints in run_dir/checkpoints; 0: none", range(0, 1e12)},
      {"checkpoint.keep_last", checkpoint<&K::keep_last>, "checkpoints kept; 0: all", range(0, 1e9)},
      {"checkpoint.async_save", checkpoint<&K::async_save>, "train on while a copy of the state is written"},
      {"checkpoint.max_failed_saves", checkpoint<&K::max_failed_saves>,
       "saves that may fail in a row before the run ends", range(1, 1e9)},

      {"train.train_iters", train<&T::train_iters>, "optimizer steps", range(1, 1e12), {}, true},
      {"train.eval_interval", train<&T::eval_interval>, "steps between evaluations; 0: never", range(0, 1e12)},
      {"train.eval_iters", train<&T::eval_iters>, "batches of an evaluation", range(1, 1e9)},
      {"train.seed", train<&T::seed>, "of weights and dropout", at_least(0)},
      {"train.run_dir", train<&T::run_dir>, "folder of metrics.jsonl, config.resolved.yaml, trace.json"},
      {"train.log_interval", train<&T::log_interval>, "steps between lines", range(1, 1e12)},
      {"train.exit_duration_in_mins", train<&T::exit_duration_in_mins>,
       "save and stop before the run has lasted so many minutes; 0: no limit", at_least(0)},
      {"train.straggler_factor", train<&T::straggler_factor>,
       "name a rank that works so many times as long as its peers; 0: do not look", at_least(0)},
      {"train.straggler_interval", train<&T::straggler_interval>, "steps between these looks", range(1, 1e12)},
      {"train.check_for_nan_in_loss_and_grad", train<&T::check_for_nan_in_loss_and_grad>,
       "act on a loss or gradient that is not finite"},
      {"train.non_finite_policy", train<&T::non_finite_policy>, "what becomes of such a step", {}, {"stop", "skip"}},
      {"train.spike_factor", train<&T::spike_factor>,
       "a loss or gradient norm above so many times its running median is a spike; 0: none is", at_least(0)},
      {"train.spike_policy", train<&T::spike_policy>, "what becomes of such a step", {}, {"warn", "skip", "stop"}},
      {"train.max_consecutive_skips", train<&T::max_consecutive_skips>, "after so many in a row the run ends",
       range(1, 1e12)},
      {"train.check_weight_hash_across_dp_replicas_interval", train<&T::check_weight_hash_across_dp_replicas_interval>,
       "steps between comparisons of replicated weights across data-parallel ranks; 0: never", range(0, 1e12)},
      {"train.deterministic_mode", train<&T::deterministic_mode>,
       "choose nothing by timing it, so that two runs on GPUs give the same bits; on CPUs they always do"},
      {"train.trace", train<&T::trace>, "write run_dir/trace.json"},
      {"train.flops_convention",
       train<&T::flops_convention>,
       "of the model FLOPs behind TFLOP/s and MFU",
       {},
       {"causal", "full", "6n"}},

      {"device.kind", at<&Config::device, &DeviceConfig::kind>, "where arithmetic runs", {}, {"auto", "cpu", "cuda"}},
      {"device.tf32", at<&Config::device, &DeviceConfig::tf32>,
       "fp32 products on a GPU by its tensor cores, with 10 bits of mantissa"},
      {"device.cuda_graph_impl",
       at<&Config::device, &DeviceConfig::cuda_graph_impl>,
       "launch what micro-batches repeat on a GPU as CUDA graphs: for small models, whose host is late. No dropout",
       {},
       {"none", "local"}},
      {"device.threads_per_rank", at<&Config::device, &DeviceConfig::threads_per_rank>,
       "CPU threads of a rank; 0: the host's cores over its ranks", range(0, 4096)},
      {"device.peak_tflops", at<&Config::device, &DeviceConfig::peak_tflops>,
       "of one rank in the run's dtype; auto: by GPU name, or measured", above(0)},
  };
}

// The functions below only read through it.
FieldRef read(const Field& field, const Config& config) { return field.ref(const_cast<Config&>(config)); }

bool inside(const Limits& limits, double x) {
  return (limits.low_open ? x > limits.low : x >= limits.low) &&
         (limits.high_open ? x < limits.high : x <= limits.high);
}

std::string describe(const Limits& limits) {
  const bool low = std::isfinite(limits.low), high = std::isfinite(limits.high);
  if (low && high)
    return fmt::format(" {} {} {} {}", limits.low_open ? "above" : "from", limits.low,
                       limits.high_open ? "to below" : "to", limits.high);
  if (low) return fmt::format(" {} {}", limits.low_open ? "above" : "of at least", limits.low);
  if (high) return fmt::format(" {} {}", limits.high_open ? "below" : "of at most", limits.high);
  return "";
}

std::string yaml_quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\', out += c;
    else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) out += fmt::format("\\x{:02x}", c);
    else out += c;
  }
  return out + '"';
}

// How a value of each type is read from text: false where the text is not one.
struct Parse {
  const Scalar& scalar;
  bool operator()(int64_t* to) const { return store(to, parse_integer(scalar.text)); }
  bool operator()(int* to) const {
    const auto value = parse_integer(scalar.text);
    if (!value || *value < std::numeric_limits<int>::min() || *value > std::numeric_limits<int>::max()) return false;
    return store(to, value);
  }
  bool operator()(double* to) const { return store(to, parse_number(scalar.text)); }
  bool operator()(bool* to) const { return store(to, parse_truth(scalar.text)); }
  bool operator()(std::string* to) const {
    const bool control = std::any_of(scalar.text.begin(), scalar.text.end(),
                                     [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
    if (scalar.null || control || scalar.text.size() > 4096) return false;
    *to = scalar.text;
    return true;
  }
  template <class T>
  bool operator()(std::optional<T>* to) const {
    if (!scalar.quoted && (scalar.null || scalar.text == "auto" || scalar.text.empty())) {
      to->reset();
      return true;
    }
    T value;
    if (!(*this)(&value)) return false;
    *to = value;
    return true;
  }

 private:
  template <class T, class U>
  bool store(T* to, const std::optional<U>& value) const {
    if (scalar.quoted || scalar.null || !value) return false;
    *to = static_cast<T>(*value);
    return true;
  }
};

struct Format {
  const Field& field;
  std::string operator()(const int64_t* v) const { return std::to_string(*v); }
  std::string operator()(const int* v) const { return std::to_string(*v); }
  std::string operator()(const double* v) const { return fmt::format("{}", *v); }  // shortest that reads back exactly
  std::string operator()(const bool* v) const { return *v ? "true" : "false"; }
  std::string operator()(const std::string* v) const { return field.choices.empty() ? yaml_quoted(*v) : *v; }
  template <class T>
  std::string operator()(const std::optional<T>* v) const {
    return *v ? (*this)(&**v) : "auto";
  }
};

}  // namespace

bool Field::is_optional() const {
  Config config;
  const FieldRef value = ref(config);
  return std::holds_alternative<std::optional<int64_t>*>(value) ||
         std::holds_alternative<std::optional<double>*>(value);
}

const std::vector<Field>& fields() {
  static const std::vector<Field> table = make_fields();
  return table;
}

const Field* find_field(std::string_view name) {
  for (const Field& field : fields())
    if (field.name == name) return &field;
  return nullptr;
}

std::string expected(const Field& field) {
  Config config;
  struct Kind {
    const char* operator()(int64_t*) const { return "an integer"; }
    const char* operator()(int*) const { return "an integer"; }
    const char* operator()(double*) const { return "a number"; }
    const char* operator()(bool*) const { return "true or false"; }
    const char* operator()(std::string*) const { return "text"; }
    const char* operator()(std::optional<int64_t>*) const { return "an integer"; }
    const char* operator()(std::optional<double>*) const { return "a number"; }
  };
  if (!field.choices.empty()) return "one of " + join(field.choices, ", ");
  return std::visit(Kind{}, field.ref(config)) + describe(field.limits) + (field.is_optional() ? ", or auto" : "");
}

std::optional<std::string> parse_field(const Field& field, const Scalar& scalar, Config& config) {
  Config trial = config;
  if (std::visit(Parse{scalar}, field.ref(trial))) {
    auto problem = check_field(field, trial);
    if (!problem) config = std::move(trial);
    return problem;
  }
  if (scalar.null) return "found nothing, expected " + expected(field);
  const bool is_text = std::holds_alternative<std::string*>(field.ref(config));
  return fmt::format("found {}{}, expected {}{}", scalar.quoted && !is_text ? "the quoted text " : "",
                     quote(scalar.text), expected(field),
                     is_text ? " without control characters, at most 4096 bytes" : "");
}

std::optional<std::string> check_field(const Field& field, const Config& config) {
  struct Number {
    std::optional<double> operator()(const int64_t* v) const { return static_cast<double>(*v); }
    std::optional<double> operator()(const int* v) const { return *v; }
    std::optional<double> operator()(const double* v) const { return *v; }
    std::optional<double> operator()(const bool*) const { return {}; }
    std::optional<double> operator()(const std::string*) const { return {}; }
    std::optional<double> operator()(const std::optional<int64_t>* v) const {
      return *v ? std::optional<double>(static_cast<double>(**v)) : std::nullopt;
    }
    std::optional<double> operator()(const std::optional<double>* v) const { return *v; }
  };
  const FieldRef value = read(field, config);
  if (const auto number = std::visit(Number{}, value);
      number && !(std::isfinite(*number) && inside(field.limits, *number)))
    return fmt::format("found {}, expected {}", format_field(field, config), expected(field));
  if (!field.choices.empty()) {
    const std::string& text = *std::get<std::string*>(value);
    if (std::find(field.choices.begin(), field.choices.end(), text) == field.choices.end())
      return fmt::format("found {}, expected {}", quote(text), expected(field));
  }
  return {};
}

std::string format_field(const Field& field, const Config& config) {
  return std::visit(Format{field}, read(field, config));
}

bool same_values(const Config& a, const Config& b) {
  return std::all_of(fields().begin(), fields().end(),
                     [&](const Field& field) { return format_field(field, a) == format_field(field, b); });
}

std::string_view nearest(std::string_view text, const std::vector<std::string_view>& candidates) {
  std::string_view best;
  if (text.size() > 100) return best;
  size_t best_distance = std::max<size_t>(2, text.size() / 3) + 1;
  std::vector<size_t> row;
  for (const std::string_view candidate : candidates) {  // Levenshtein's distance, one row at a time
    row.resize(candidate.size() + 1);
    std::iota(row.begin(), row.end(), size_t{0});
    for (size_t i = 0; i < text.size(); ++i) {
      size_t diagonal = row[0];
      row[0] = i + 1;
      for (size_t j = 0; j < candidate.size(); ++j) {
        const size_t replaced = diagonal + (text[i] != candidate[j]);
        diagonal = row[j + 1];
        row[j + 1] = std::min({replaced, diagonal + 1, row[j] + 1});
      }
    }
    if (row.back() < best_distance) best_distance = row.back(), best = candidate;
  }
  return best;
}

std::string join(const std::vector<std::string_view>& words, std::string_view separator) {
  std::string text;
  for (const std::string_view word : words) {
    if (!text.empty()) text += separator;
    text += word;
  }
  return text;
}

std::vector<std::string_view> split_words(std::string_view text) {
  std::vector<std::string_view> words;
  while (true) {
    const size_t comma = text.find(',');
    std::string_view word = text.substr(0, comma);
    while (word.starts_with(' ')) word.remove_prefix(1);
    while (word.ends_with(' ')) word.remove_suffix(1);
    words.push_back(word);
    if (comma == std::string_view::npos) return words;
    text.remove_prefix(comma + 1);
  }
}

std::string quote(std::string_view text) {
  constexpr size_t kMost = 60;
  std::string out = "\"";
  for (const char c : text.substr(0, kMost)) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) out += fmt::format("\\x{:02x}", c);
    else out += c;
  }
  return out + (text.size() > kMost ? "…\"" : "\"");
}

}  // namespace trivet
