// The rules of the values alone, in the order of config.h.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fmt/ranges.h>
#include <numeric>

#include "engine/config/fields.h"
#include "engine/config/rules.h"
#include "engine/data/batch_sizes.h"
#include "parallel/pipeline/schedule.h"

namespace trivet {
namespace {

void check_heads(const ModelConfig& m, Rules& rule) {
  const int64_t heads = m.num_attention_heads, groups = m.num_query_groups.value_or(heads);
  rule("model.num_attention_heads", {"model.hidden_size"}, !m.kv_channels && !divides(heads, m.hidden_size),
       "{} does not divide hidden_size ({}); {} would work", heads, m.hidden_size, divisors(m.hidden_size, heads));
  rule(
      "model.num_query_groups", {"model.num_attention_heads"}, !divides(groups, heads),
      "{} does not divide num_attention_heads ({}): each head of keys and values serves as many of them; {} would work",
      groups, heads, divisors(heads, groups));
  const int64_t width = m.kv_channels.value_or(divides(heads, m.hidden_size) ? m.hidden_size / heads : 2);
  rule("model.kv_channels", {"model.num_attention_heads"}, heads > 0 && width > 4'000'000 / heads,
       "{} x num_attention_heads ({}) columns, expected at most 4000000", width, heads);
  const double share = m.rotary_percent >= 0 && m.rotary_percent <= 1 ? m.rotary_percent : 1;
  const auto turned = static_cast<int64_t>(static_cast<double>(width) * share);
  rule("model.rotary_percent", {"model.num_attention_heads", "model.hidden_size", "model.kv_channels"},
       m.position_embedding_type == Positions::rope && (turned < 2 || turned % 2 != 0),
       "{} of the {} columns of a head are {}, expected an even number of them above 0: they turn in pairs",
       m.rotary_percent, width, turned);
}

// What has no effect on this kind of model.
void check_kind(const Config& c, Rules& rule) {
  const ModelConfig& m = c.model;
  const Config defaults;
  const auto without = [&](bool broken, std::string_view of, std::string_view found,
                           const std::vector<std::string_view>& keys) {
    for (const std::string_view key : keys) {
      const std::string value = format_field(*find_field(key), c);
      rule.no_effect(key, {of}, broken && value != format_field(*find_field(key), defaults),
                     "{} has no effect with {}; leave it out", value, found);
    }
  };
  without(m.add_bias_linear, "model.add_bias_linear", "add_bias_linear true: all linear layers have biases",
          {"model.add_qkv_bias"});
  without(m.position_embedding_type != Positions::rope, "model.position_embedding_type",
          "position_embedding_type learned_absolute",
          {"model.rotary_base", "model.rotary_percent", "model.use_rope_scaling"});
  without(!m.use_rope_scaling, "model.use_rope_scaling", "use_rope_scaling false",
          {"model.rope_scaling_factor", "model.rope_scaling_low_freq_factor", "model.rope_scaling_high_freq_factor",
           "model.rope_scaling_original_max_position_embeddings"});
  rule("model.rope_scaling_high_freq_factor", {"model.rope_scaling_low_freq_factor"},
       m.use_rope_scaling && m.rope_scaling_high_freq_factor <= m.rope_scaling_low_freq_factor,
       "{} is not above rope_scaling_low_freq_factor ({}): frequencies are interpolated between them",
       m.rope_scaling_high_freq_factor, m.rope_scaling_low_freq_factor);
}

void check_sizes(const Config& c, const Problems& problems, Rules& rule) {
  const ModelConfig& model = c.model;
  constexpr auto kTensor = "parallel.tensor_model_parallel_size", kPipeline = "parallel.pipeline_model_parallel_size";
  const int64_t t = c.parallel.tensor_model_parallel_size, p = c.parallel.pipeline_model_parallel_size;
  rule.no_effect(
      "parallel.sequence_parallel", {kTensor}, c.parallel.sequence_parallel && t == 1,
      "true needs tensor_model_parallel_size above 1, found 1: the sequence is divided among the tensor-parallel "
      "ranks, and there are no others");
  // What t has to divide, as far as it is known.
  int64_t common = 0;
  std::string failing;
  const auto cut = [&](std::string_view name, int64_t value, const std::vector<std::string_view>& keys) {
    if (!problems.clean(keys)) return;
    common = std::gcd(common, value);
    if (!divides(t, value)) failing += fmt::format("{}{} ({})", failing.empty() ? "" : " nor ", name, value);
  };
  if (const auto groups = model.num_query_groups)
    cut("num_query_groups", *groups, {"model.num_query_groups"});  // whole ones, and so whole heads
  else cut("num_attention_heads", model.num_attention_heads, {"model.num_attention_heads"});
  cut("ffn_hidden_size", ffn_of(model), {"model.ffn_hidden_size", "model.hidden_size"});
  if (c.parallel.sequence_parallel) cut("seq_length", model.seq_length, {"model.seq_length"});
  const bool groups = failing.starts_with("num_query_groups");
  rule(kTensor, {}, !failing.empty(), "{} does not divide {}{}; {} would work", t, failing,
       groups ? ": a head of keys and values is on one rank, with the attention heads that share it" : "",
       divisors(common, t));
  // Numbers of bytes stay within 63 bits, however many layers and micro-batches there are.
  const double heads =
      static_cast<double>(model.num_attention_heads) * static_cast<double>(model.kv_channels.value_or(0));
  const double columns = std::max({3.0 * static_cast<double>(model.hidden_size), 3 * heads,
                                   (model.swiglu ? 2 : 1) * static_cast<double>(ffn_of(model)),
                                   static_cast<double>(model.vocab_size.value_or(0))});
  const double tib = 4.0 * static_cast<double>(model.seq_length) * static_cast<double>(c.batch.micro_batch_size) *
                     columns / static_cast<double>(int64_t{1} << 40);
  rule("model.seq_length", {"batch.micro_batch_size", "model.hidden_size", "model.ffn_hidden_size", "model.vocab_size"},
       tib > 8, "{} x micro_batch_size ({}) x {} columns are a tensor of {:.0f} TiB, expected at most 8",
       model.seq_length, c.batch.micro_batch_size, columns, tib);
  rule(kTensor, {kPipeline}, t * p > kMostRanks,
       "{} x pipeline_model_parallel_size ({}) are {} ranks, expected at most {}", t, p, t * p, kMostRanks);
}

void check_recompute(const Config& c, Rules& rule) {
  constexpr auto kGranularity = "model.recompute_granularity";
  const ModelConfig& m = c.model;
  const bool full = m.recompute_granularity == RecomputeGranularity::full;
  const bool selective = m.recompute_granularity == RecomputeGranularity::selective;
  const bool method = m.recompute_method != RecomputeMethod::none;
  constexpr auto kNoEffect = "{} has no effect with recompute_granularity {}, only with {}";
  const std::string_view granularity = word_of(m.recompute_granularity);
  std::vector<RecomputeModule> once = m.recompute_modules;
  std::ranges::sort(once);
  const auto twice = std::ranges::adjacent_find(once);
  rule("model.recompute_modules", {}, twice != once.end(), "{} names {} twice",
       format_field(*find_field("model.recompute_modules"), c), twice == once.end() ? "" : word_of(*twice));
  rule.no_effect("model.recompute_modules", {kGranularity},
                 !selective && m.recompute_modules != ModelConfig().recompute_modules, kNoEffect,
                 format_field(*find_field("model.recompute_modules"), c), granularity, "selective");
  rule.no_effect("model.recompute_method", {kGranularity}, !full && method, kNoEffect, word_of(m.recompute_method),
                 granularity, "full");
  rule("model.recompute_method", {kGranularity}, full && !method,
       "recompute_granularity full needs uniform or block, found none");
  rule.no_effect("model.recompute_num_layers", {kGranularity}, !full && m.recompute_num_layers != 0, kNoEffect,
                 m.recompute_num_layers, granularity, "full");
  rule("model.recompute_num_layers", {kGranularity}, full && m.recompute_num_layers == 0,
       "recompute_granularity full needs a number of layers, found 0; 1 saves the least activations");
}

void check_arithmetic(const Config& c, Rules& rule) {
  const bool cudnn = c.model.attention_backend == AttentionBackend::cudnn;
  rule("model.attention_backend", {"model.attention_dropout"}, cudnn && c.model.attention_dropout > 0,
       "cudnn excludes attention_dropout {}: cuDNN draws other numbers than Trivet, whose dropout is the same "
       "under every layout; expected auto or flash, or no attention_dropout",
       c.model.attention_dropout);
  const DType dtype = c.precision.dtype;
  rule("model.attention_backend", {"precision.dtype"}, cudnn && dtype != DType::bf16,
       "cudnn needs precision.dtype bf16, found {}: its fused attention supports no other; expected auto or flash",
       format_field(*find_field("precision.dtype"), c));
  rule.no_effect("device.tf32", {"precision.dtype"}, c.device.tf32 && dtype != DType::f32,
                 "true has no effect with precision.dtype {}: it applies to fp32 GEMMs",
                 format_field(*find_field("precision.dtype"), c));
}

void check_schedule_kind(const Config& c, Rules& rule) {
  const std::string& kind = c.parallel.pipeline_schedule;
  std::vector<std::string_view> kinds;
  for (const ScheduleKind& known : schedule_kinds()) kinds.push_back(known.name);
  const std::string_view near = nearest(kind, kinds);
  rule("parallel.pipeline_schedule", {}, !is_file_of_schedule(kind) && !std::ranges::count(kinds, kind),
       "there is no schedule '{}'; there are {}{}", kind, fmt::to_string(fmt::join(kinds, ", ")),
       near.empty() ? "" : fmt::format(" - did you mean {}?", near));
}

void check_overlap(const Config& c, Rules& rule) {
  const OverlapConfig& o = c.overlap;
  const std::pair<std::string_view, std::optional<TensorOverlap>> modes[] = {
      {"overlap.tp_comm_overlap", o.tp_comm_overlap},
      {"overlap.tp_comm_overlap_qkv", o.tp_comm_overlap_qkv},
      {"overlap.tp_comm_overlap_proj", o.tp_comm_overlap_proj},
      {"overlap.tp_comm_overlap_fc1", o.tp_comm_overlap_fc1},
      {"overlap.tp_comm_overlap_fc2", o.tp_comm_overlap_fc2}};
  for (const auto& [key, asked] : modes) {
    const TensorOverlap mode = asked.value_or(TensorOverlap::none);
    rule.no_effect(
        key, {"parallel.sequence_parallel"}, mode != TensorOverlap::none && !c.parallel.sequence_parallel,
        "{} needs sequence_parallel (and so tensor_model_parallel_size above 1): it splits the all-gather and "
        "reduce-scatter of positions",
        word_of(mode));
  }
  const bool ahead = o.p2p_receive_ahead != OverlapConfig().p2p_receive_ahead;
  const bool alone = c.parallel.pipeline_model_parallel_size == 1;
  rule.no_effect("overlap.p2p_receive_ahead", {"parallel.pipeline_model_parallel_size"}, ahead && alone,
                 "{} needs pipeline_model_parallel_size above 1, found 1: nothing is received", o.p2p_receive_ahead);
  rule.no_effect("overlap.overlap_p2p_comm", {"parallel.pipeline_model_parallel_size"}, !o.overlap_p2p_comm && alone,
                 "false needs pipeline_model_parallel_size above 1, found 1: there are no transfers to wait for");
  rule.no_effect(
      "overlap.p2p_receive_ahead", {"overlap.overlap_p2p_comm"}, ahead && !o.overlap_p2p_comm,
      "{} has no effect with overlap_p2p_comm false: then as few receives are posted ahead as the schedule needs",
      o.p2p_receive_ahead);
}

// The keys of an LrSpan, and of the run's length, by what they count.
struct SpanKeys {
  std::string_view warmup, decay, wsd_decay, length;
};
constexpr SpanKeys kStepKeys{"optimizer.lr_warmup_iters", "optimizer.lr_decay_iters", "optimizer.lr_wsd_decay_iters",
                             "train.train_iters"};
constexpr SpanKeys kSampleKeys{"optimizer.lr_warmup_samples", "optimizer.lr_decay_samples",
                               "optimizer.lr_wsd_decay_samples", "train.train_samples"};
std::string_view short_name(std::string_view key) { return key.substr(key.find('.') + 1); }

void check_wsd(const OptimizerConfig& o, const LrSpan& span, int64_t decay, const SpanKeys& keys, Rules& rule) {
  const bool wsd = o.lr_decay_style == LrDecay::wsd;
  constexpr auto kOnly = "{} has no effect with lr_decay_style {}, only with WSD";
  rule.no_effect(keys.wsd_decay, {"optimizer.lr_decay_style"}, !wsd && span.wsd_decay != 0, kOnly, span.wsd_decay,
                 word_of(o.lr_decay_style));
  rule.no_effect("optimizer.lr_wsd_decay_style", {"optimizer.lr_decay_style"},
                 !wsd && o.lr_wsd_decay_style != WsdDecay::exponential, kOnly, word_of(o.lr_wsd_decay_style),
                 word_of(o.lr_decay_style));
  const int64_t most = decay - span.warmup.value_or(0);
  rule(keys.wsd_decay, {keys.decay, keys.warmup, keys.length}, wsd && (span.wsd_decay < 1 || span.wsd_decay > most),
       "found {}, expected 1 to {}: WSD decays after the warm-up, until {} ({})", span.wsd_decay, most,
       short_name(keys.decay), decay);
}

void check_weight_decay(const OptimizerConfig& o, Rules& rule) {
  const bool ramp = o.weight_decay_incr_style != Ramp::constant;
  for (const auto& [key, value] : {std::pair("optimizer.start_weight_decay", o.start_weight_decay),
                                   std::pair("optimizer.end_weight_decay", o.end_weight_decay)}) {
    rule.no_effect(key, {"optimizer.weight_decay_incr_style"}, value.has_value() && !ramp,
                   "{} has no effect with weight_decay_incr_style constant, only with linear or cosine",
                   value.value_or(0));
    rule(key, {"optimizer.weight_decay_incr_style"}, ramp && !value,
         "weight_decay_incr_style {} needs both ends of its ramp, start_weight_decay and end_weight_decay",
         word_of(o.weight_decay_incr_style));
  }
  rule("optimizer.end_weight_decay", {"optimizer.start_weight_decay"},
       o.end_weight_decay.value_or(0) < o.start_weight_decay.value_or(0),
       "{} is below start_weight_decay ({}), expected at least that: a ramp does not fall",
       o.end_weight_decay.value_or(0), o.start_weight_decay.value_or(0));
}

void check_warmup(const OptimizerConfig& o, const LrSpan& span, int64_t decay, const SpanKeys& keys, Rules& rule) {
  rule(keys.warmup, {keys.decay, keys.length}, span.warmup.value_or(0) > decay,
       "{} is above {} ({}), expected at most that: the warm-up is the first part of the schedule",
       span.warmup.value_or(0), short_name(span.decay ? keys.decay : keys.length), decay);
  const double fraction = o.lr_warmup_fraction.value_or(0);
  rule("optimizer.lr_warmup_fraction", {keys.warmup},
       o.lr_warmup_fraction && span.warmup.value_or(0) != 0 && *span.warmup != warmup_of_fraction(fraction, decay),
       "{} and {} ({}) are two lengths of the warm-up, expected one of them", fraction, short_name(keys.warmup),
       span.warmup.value_or(0));
  rule.no_effect("optimizer.lr_warmup_init", {keys.warmup, "optimizer.lr_warmup_fraction"},
                 o.lr_warmup_init != 0 && fraction == 0 && span.warmup == 0,
                 "{} has no effect without a warm-up ({} 0)", o.lr_warmup_init, short_name(keys.warmup));
  rule("optimizer.lr_warmup_init", {"optimizer.lr"}, o.lr_warmup_init > o.lr,
       "{} is above lr ({}), expected at most that", o.lr_warmup_init, o.lr);
}

// A run has one length, and what its schedules count.
void check_length(const Config& c, Rules& rule) {
  const bool samples = c.train.train_samples > 0;
  rule("train.train_iters", {"train.train_samples"}, !samples && c.train.train_iters == 0,
       "is required, or train.train_samples: optimizer steps, an integer from 1 to 1000000000000");
  Config otherwise = c;
  otherwise.train.train_samples = samples ? 0 : 1;
  const LrSpan other = lr_span_of(otherwise);
  const SpanKeys& keys = samples ? kStepKeys : kSampleKeys;
  constexpr auto kNoEffect = "{} has no effect {} train.train_samples; leave it out";
  const auto unused = [&](std::string_view key, bool given, int64_t value) {
    rule.no_effect(key, {"train.train_samples"}, given, kNoEffect, value, samples ? "with" : "without");
  };
  unused(keys.warmup, other.warmup.value_or(0) != 0, other.warmup.value_or(0));
  unused(keys.decay, other.decay.has_value(), other.decay.value_or(0));
  unused(keys.wsd_decay, other.wsd_decay != 0, other.wsd_decay);
}

void check_optimizer(const Config& c, Rules& rule) {
  const OptimizerConfig& o = c.optimizer;
  const SpanKeys& keys = c.train.train_samples > 0 ? kSampleKeys : kStepKeys;
  const LrSpan span = lr_span_of(c);
  const double min_lr = o.min_lr.value_or(o.lr / 10);
  const int64_t length = c.train.train_samples > 0 ? c.train.train_samples : c.train.train_iters;
  const int64_t decay = span.decay.value_or(length);
  // resolve() writes the values of a constant schedule that change nothing, so these are welcome back.
  const bool constant = o.lr_decay_style == LrDecay::constant;
  constexpr auto kNoEffect = "{} has no effect with lr_decay_style constant; leave it out, or choose cosine or linear";
  rule.no_effect("optimizer.min_lr", {"optimizer.lr", "optimizer.lr_decay_style"},
                 constant && o.min_lr && min_lr != o.lr, kNoEffect, min_lr);
  rule.no_effect(keys.decay, {keys.length, "optimizer.lr_decay_style"}, constant && decay != length, kNoEffect, decay);
  rule("optimizer.min_lr", {"optimizer.lr"}, min_lr > o.lr, "{} is above lr ({}), expected at most that", min_lr, o.lr);
  check_warmup(o, span, decay, keys, rule);
  check_wsd(o, span, decay, keys, rule);
  const double decoupled = o.decoupled_lr.value_or(o.lr);
  const double least = o.decoupled_min_lr.value_or(min_lr);
  rule("optimizer.decoupled_min_lr", {"optimizer.decoupled_lr", "optimizer.lr", "optimizer.min_lr"},
       (o.decoupled_lr || o.decoupled_min_lr) && least > decoupled, "{} is above {} ({}), expected at most that", least,
       o.decoupled_lr ? "decoupled_lr" : "lr", decoupled);
  check_weight_decay(o, rule);
}

void check_batch_sizes(const Config& c, Rules& rule) {
  const BatchConfig& b = c.batch;
  const bool ramp = b.rampup_batch_size.has_value(), steps = !b.step_batch_size_schedule.empty();
  constexpr auto kRamp = "batch.rampup_batch_size", kSteps = "batch.step_batch_size_schedule";
  constexpr auto kNeeds = "needs train.train_samples: with changing batches a run is as long as its samples";
  rule(kRamp, {}, ramp && b.rampup_batch_size->size() != 3, "found \"{}\", expected {}",
       fmt::format("{}", fmt::join(b.rampup_batch_size.value_or(std::vector<int64_t>{}), ",")),
       expected(*find_field(kRamp)));
  rule(kRamp, {kSteps}, ramp && steps, "excludes step_batch_size_schedule, which is also given");
  rule(kRamp, {"train.train_samples"}, ramp && c.train.train_samples == 0, kNeeds);
  rule(kSteps, {"train.train_samples"}, steps && c.train.train_samples == 0, kNeeds);
  const auto sizes = parse_batch_size_schedule(b.step_batch_size_schedule, c.model.seq_length);
  rule(kSteps, {"model.seq_length"}, steps && !sizes,
       "found \"{}\", expected tokens:samples … with ascending tokens, the first 0, such as \"0:768 250B:1536\"",
       b.step_batch_size_schedule);
  rule("batch.global_batch_size", {kSteps}, sizes && b.global_batch_size.value_or(sizes->largest()) != sizes->largest(),
       "{} is not the largest of step_batch_size_schedule ({}); leave it out", b.global_batch_size.value_or(0),
       sizes ? sizes->largest() : 0);
}

void check_data(const Config& c, Rules& rule) {
  const DataConfig& data = c.data;
  const bool one = !data.path.empty(), two = !data.train_path.empty();
  rule("data.train_path", {"data.path"}, one && two,
       "excludes data.path, which is also given: name one dataset to split by data.split, or one for training and one "
       "for validation; --set data.path= takes a file's data.path away");
  rule("data.path", {"data.train_path"}, !one && !two,
       "is required, or data.train_path: the prefix of a dataset's .bin and .idx files");
  rule("data.valid_path", {"data.path", "data.train_path"}, one && !data.valid_path.empty(),
       "goes with data.train_path, found data.path: its validation data is split off by data.split");
  const std::vector<std::string_view> paths = {"data.path", "data.train_path", "data.valid_path"};
  const std::string split = fmt::format("{}", fmt::join(data.split, ","));
  const double sum = std::accumulate(data.split.begin(), data.split.end(), 0.0);
  rule.no_effect("data.split", paths, two && data.split != DataConfig().split,
                 "\"{}\" has no effect with data.train_path: only data.path is split; leave it out", split);
  rule("data.split", paths, data.split.size() > 3 || !(sum > 0) || !std::isfinite(sum), "found \"{}\", expected {}",
       split, expected(*find_field("data.split")));
  rule("data.split", paths, !data.split.empty() && data.split[0] == 0, "{} leaves nothing to train on", split);
  const bool evaluates = c.train.eval_interval > 0;
  rule("train.eval_interval", paths, evaluates && two && data.valid_path.empty(),
       "{} needs data.valid_path beside data.train_path; give it, or 0 to never evaluate", c.train.eval_interval);
  rule("train.eval_interval", {"data.path", "data.split"},
       evaluates && one && (data.split.size() < 2 || data.split[1] == 0),
       "{} needs validation data, and data.split ({}) leaves none; 0 never evaluates", c.train.eval_interval, split);
}

void check_training(const Config& c, Rules& rule) {
  const CheckpointConfig& k = c.checkpoint;
  const TrainConfig& t = c.train;
  const Config defaults;
  // A value of a feature that `of` switches off.
  const auto off = [&](std::string_view key, const std::vector<std::string_view>& of, bool broken,
                       std::string_view why) {
    const Field& field = *find_field(key);
    const std::string value = format_field(field, c);
    rule.no_effect(key, of, broken && value != format_field(field, defaults), "{} has no effect with {}", value, why);
  };
  for (const char* key : {"checkpoint.async_save", "checkpoint.keep_last", "checkpoint.max_failed_saves"})
    off(key, {"checkpoint.save_interval"}, k.save_interval == 0, "save_interval 0: nothing is saved");
  off("train.eval_iters", {"train.eval_interval"}, t.eval_interval == 0, "eval_interval 0: nothing is evaluated");
  off("data.valid_path", {"train.eval_interval"}, t.eval_interval == 0, "eval_interval 0: nothing is evaluated");
  off("train.straggler_interval", {"train.straggler_factor"}, t.straggler_factor == 0,
      "straggler_factor 0: nothing looks for stragglers");
  off("train.spike_policy", {"train.spike_factor"}, t.spike_factor == 0,
      "spike_factor 0: nothing looks for spikes; expected a factor above 1");
  off("train.max_consecutive_skips", {"train.non_finite_policy", "train.spike_policy"},
      t.non_finite_policy != StepAction::skip && t.spike_policy != StepAction::skip,
      "neither non_finite_policy nor spike_policy skip: no step is skipped");
  rule("train.run_dir", {}, t.run_dir.empty(), "is empty, expected the folder of the run");
  rule("train.non_finite_policy", {}, t.non_finite_policy == StepAction::skip && !t.check_for_nan_in_loss_and_grad,
       "skip has no effect with check_for_nan_in_loss_and_grad false: nothing looks for such a step");
  constexpr auto kUsual = "{} is not above the median; expected 0 (off), or above 1";
  rule("train.spike_factor", {}, t.spike_factor != 0 && t.spike_factor <= 1, kUsual, t.spike_factor);
  rule("train.straggler_factor", {}, t.straggler_factor != 0 && t.straggler_factor <= 1, kUsual, t.straggler_factor);
}

}  // namespace

void check_rules_of_values(const Config& config, Problems& problems) {
  Rules rule(problems);
  check_heads(config.model, rule);
  check_kind(config, rule);
  check_sizes(config, problems, rule);
  check_recompute(config, rule);
  check_arithmetic(config, rule);
  check_schedule_kind(config, rule);
  check_overlap(config, rule);
  check_length(config, rule);
  check_batch_sizes(config, rule);
  check_optimizer(config, rule);
  check_data(config, rule);
  check_training(config, rule);
}

std::string divisors(int64_t n, int64_t near) {
  std::vector<int64_t> found;
  for (int64_t i = 1; i <= n / i; ++i) {
    if (n % i != 0) continue;
    found.push_back(i);
    if (i != n / i) found.push_back(n / i);
  }
  if (found.empty()) return "";
  std::ranges::sort(found, {}, [near](int64_t x) { return std::abs(x - near); });
  found.resize(std::min<size_t>(found.size(), 6));
  std::ranges::sort(found);
  const std::string last = std::to_string(found.back());
  found.pop_back();
  return found.empty() ? last : fmt::format("{} or {}", fmt::join(found, ", "), last);
}

}  // namespace trivet
