// The rules for the values alone, in the order of config.h.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fmt/ranges.h>
#include <numeric>

#include "engine/config/blend_text.h"
#include "engine/config/fields.h"
#include "engine/config/rules.h"
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
       "{} of the {} columns of a head are {}, expected an even number of them above 0: they are rotated in pairs",
       m.rotary_percent, width, turned);
}

void check_rope(const ModelConfig& m, Rules& rule) {
  rule("model.rope_scaling_high_freq_factor", {"model.rope_scaling_low_freq_factor"},
       m.use_rope_scaling && m.rope_scaling_high_freq_factor <= m.rope_scaling_low_freq_factor,
       "{} is not above rope_scaling_low_freq_factor ({}): frequencies are interpolated between them",
       m.rope_scaling_high_freq_factor, m.rope_scaling_low_freq_factor);
}

void check_sizes(const Config& c, const Problems& problems, Rules& rule) {
  const ModelConfig& model = c.model;
  constexpr auto kTensor = "parallel.tensor_model_parallel_size", kPipeline = "parallel.pipeline_model_parallel_size",
                 kContext = "parallel.context_parallel_size";
  const int64_t t = c.parallel.tensor_model_parallel_size, p = c.parallel.pipeline_model_parallel_size;
  const int64_t of_context = std::max(c.parallel.context_parallel_size, 1), pieces = 2 * of_context;  // not checked yet
  rule(kContext, {"model.seq_length"}, of_context > 1 && !divides(pieces, model.seq_length),
       "{} ranks cut a sequence into {} pieces, which do not divide seq_length ({}); expected a multiple of {}, or "
       "context_parallel_size {}",
       of_context, pieces, model.seq_length, pieces,
       model.seq_length % 2 == 0 ? divisors(model.seq_length / 2, of_context) : "1");
  const bool aligned = model.seq_length % (16 * pieces) == 0;
  rule(kContext, {"model.attention_dropout", "model.seq_length"},
       of_context > 1 && model.attention_dropout > 0 && divides(pieces, model.seq_length) && !aligned,
       "{} ranks cut a sequence of {} into pieces of {}, but attention_dropout ({}) is drawn for squares of 16 "
       "positions; expected pieces of a multiple of 16, or attention_dropout: 0",
       of_context, model.seq_length, model.seq_length / pieces, model.attention_dropout);
  // The greatest common divisor of the known sizes that t must divide.
  int64_t common = 0;
  std::string failing;
  const auto cut = [&](std::string_view name, int64_t value, const std::vector<std::string_view>& keys) {
    if (!problems.clean(keys)) return;
    common = std::gcd(common, value);
    if (!divides(t, value)) failing += fmt::format("{}{} ({})", failing.empty() ? "" : " nor ", name, value);
  };
  if (const auto groups = model.num_query_groups)
    cut("num_query_groups", *groups, {"model.num_query_groups"});  // whole groups, and so whole heads
  else cut("num_attention_heads", model.num_attention_heads, {"model.num_attention_heads"});
  cut("ffn_hidden_size", ffn_of(model), {"model.ffn_hidden_size", "model.hidden_size"});
  if (c.parallel.sequence_parallel)
    cut(of_context > 1 ? "seq_length / context_parallel_size" : "seq_length", model.seq_length / of_context,
        {"model.seq_length", kContext});
  const bool groups = failing.starts_with("num_query_groups");
  rule(kTensor, {}, !failing.empty(), "{} does not divide {}{}; {} would work", t, failing,
       groups ? ": a head of keys and values is on one rank, with the attention heads that share it" : "",
       divisors(common, t));
  // Byte counts must stay within 63 bits, however many layers and micro-batches there are.
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
  rule(kTensor, {kPipeline, kContext}, t * p * of_context > kMostRanks,
       "{} x pipeline_model_parallel_size ({}){} are {} ranks, expected at most {}", t, p,
       of_context > 1 ? fmt::format(" x context_parallel_size ({})", of_context) : "", t * p * of_context, kMostRanks);
}

void check_recompute(const Config& c, Rules& rule) {
  const ModelConfig& m = c.model;
  const bool full = m.recompute_granularity == RecomputeGranularity::full;
  const bool method = m.recompute_method != RecomputeMethod::none;
  std::vector<RecomputeModule> once = m.recompute_modules;
  std::ranges::sort(once);
  const auto twice = std::ranges::adjacent_find(once);
  rule("model.recompute_modules", {}, twice != once.end(), "{} names {} twice",
       format_field(*find_field("model.recompute_modules"), c), twice == once.end() ? "" : word_of(*twice));
  rule("model.recompute_method", {"model.recompute_granularity"}, full && !method,
       "recompute_granularity full needs uniform or block, found none");
  rule("model.recompute_num_layers", {"model.recompute_granularity"}, full && m.recompute_num_layers == 0,
       "recompute_granularity full needs a number of layers, found 0; 1 saves the least activations");
}

void check_fp8(const Config& c, Rules& rule) {
  const PrecisionConfig& p = c.precision;
  const bool fp8 = p.fp8 != Fp8::none;
  const auto refused = [&](Fp8Recipe recipe, const char* why) {
    rule("precision.fp8_recipe", {"precision.fp8"}, fp8 && p.fp8_recipe == recipe,
         "found {}, expected tensorwise or blockwise: {}", word_of(recipe), why);
  };
  rule("precision.fp8", {"precision.dtype"}, fp8 && p.dtype != DType::bf16,
       "{} needs precision.dtype bf16, found {}: what is not in FP8 stays bf16", word_of(p.fp8), word_of(p.dtype));
  refused(Fp8Recipe::delayed,
          "a scale computed from the tensor itself needs no history in checkpoints or across ranks, "
          "and no margin for a sudden outlier");
  refused(Fp8Recipe::mxfp8, "no GPU that Trivet has kernels for multiplies blocks of 32 (Blackwell does)");
  rule("precision.fp8", {"precision.fp8_recipe"}, p.fp8 == Fp8::hybrid && p.fp8_recipe == Fp8Recipe::blockwise,
       "found hybrid, expected e4m3: a block of 128 needs no wider range, and gradients gain a bit (DeepSeek-V3 2024)");
  rule("precision.fp8_param_gather", {"precision.fp8_recipe"},
       p.fp8_param_gather && p.fp8_recipe != Fp8Recipe::tensorwise,
       "true needs fp8_recipe tensorwise, found {}: ranks that share a block do not yet agree on its scale",
       word_of(p.fp8_recipe));
  rule("precision.fp8_accumulator_bits", {}, p.fp8_accumulator_bits != 24 && p.fp8_accumulator_bits != 14,
       "found {}, expected 24 or 14", p.fp8_accumulator_bits);
  const int64_t ends = p.num_layers_at_start_in_bf16 + p.num_layers_at_end_in_bf16;
  rule("precision.first_last_layers_bf16",
       {"precision.num_layers_at_start_in_bf16", "precision.num_layers_at_end_in_bf16", "model.num_layers"},
       fp8 && p.first_last_layers_bf16 && ends >= c.model.num_layers,
       "leaves no layer in FP8: {} at the start and {} at the end are all of num_layers ({}); keep fewer, or fp8: none",
       p.num_layers_at_start_in_bf16, p.num_layers_at_end_in_bf16, c.model.num_layers);
  rule("precision.first_last_layers_bf16",
       {"precision.num_layers_at_start_in_bf16", "precision.num_layers_at_end_in_bf16"},
       p.first_last_layers_bf16 && ends == 0, "keeps no layer in bf16: both numbers are 0; leave it out, or keep some");
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

void check_data(const Config& c, Rules& rule) {
  const DataConfig& data = c.data;
  const bool one = !data.path.empty(), two = !data.train_path.empty();
  rule("data.train_path", {"data.path"}, one && two,
       "excludes data.path, which is also given: name one dataset to split by data.split, or one for training and one "
       "for validation; --set data.path= takes a file's data.path away");
  rule("data.path", {"data.train_path"}, !one && !two,
       "is required, or data.train_path: the prefix of a dataset's .bin and .idx files");
  for (const auto& [key, path, of] : {std::tuple("data.valid_path", &data.valid_path, "validation"),
                                      std::tuple("data.test_path", &data.test_path, "test")})
    rule(key, {"data.path", "data.train_path"}, one && !path->empty(),
         "goes with data.train_path, found data.path: its {} data is split off by data.split", of);
  const std::vector<std::string_view> paths = {"data.path", "data.train_path", "data.valid_path", "data.test_path"};
  for (const auto& [key, text] :
       {std::pair("data.path", &data.path), std::pair("data.train_path", &data.train_path),
        std::pair("data.valid_path", &data.valid_path), std::pair("data.test_path", &data.test_path)}) {
    const std::string problem = parse_blend(*text).problem;
    rule(key, {}, !problem.empty(), "found {}: {}; expected a prefix, a blend as 0.3,prefix,0.7,prefix, or prefixes",
         quote(*text), problem);
  }
  const std::string split = fmt::format("{}", fmt::join(data.split, ","));
  const double sum = std::accumulate(data.split.begin(), data.split.end(), 0.0);
  rule("data.split", paths, data.split.size() > 3 || !(sum > 0), "found \"{}\", expected {}", split,
       expected(*find_field("data.split")));
  const bool skips = c.train.skip_train, validates = evaluates(c) && !skips;
  rule("data.split", paths, !skips && !data.split.empty() && data.split[0] == 0, "{} leaves nothing to train on",
       split);
  const auto share = [&](size_t part) { return data.split.size() > part && data.split[part] > 0; };
  const bool chosen = c.train.eval_interval > 0;  // otherwise a tool's section directs evaluation
  rule("train.eval_interval", paths, validates && chosen && two && data.valid_path.empty(),
       "{} needs data.valid_path as well as data.train_path; give it, or 0 to never evaluate", c.train.eval_interval);
  rule("train.eval_interval", {"data.path", "data.split"}, validates && chosen && one && !share(1),
       "{} needs validation data, and data.split ({}) leaves none; 0 never evaluates", c.train.eval_interval, split);
  rule("data.valid_path", paths, validates && !chosen && two && data.valid_path.empty(),
       "is required along with data.train_path: this run evaluates");
  rule("data.split", paths, validates && !chosen && one && !share(1),
       "{} leaves no validation data, expected some: this run evaluates", split);
  rule("train.skip_train", paths,
       skips && (one ? !share(1) && !share(2) : data.valid_path.empty() && data.test_path.empty()),
       "true only evaluates, but {}",
       one ? fmt::format("data.split ({}) leaves neither validation nor test data", split)
           : "there is no data.valid_path or data.test_path");
}

void check_training(const Config& c, Rules& rule) {
  const TrainConfig& t = c.train;
  rule("train.run_dir", {}, t.run_dir.empty(), "is empty, expected the folder of the run");
  rule("train.non_finite_policy", {}, t.non_finite_policy == StepAction::skip && !t.check_for_nan_in_loss_and_grad,
       "skip has no effect with check_for_nan_in_loss_and_grad false: nothing looks for such a step");
  constexpr auto kUsual = "{} is not above the median; expected 0 (off), or above 1";
  rule("train.spike_factor", {}, t.spike_factor != 0 && t.spike_factor <= 1, kUsual, t.spike_factor);
  rule("train.straggler_factor", {}, t.straggler_factor != 0 && t.straggler_factor <= 1, kUsual, t.straggler_factor);
}

}  // namespace

void check_needs(const Config& c, Rules& rule) {
  for (const Field& field : fields())
    for (const Need& need : field.needs)
      rule.no_effect(field.name, need.of, !need.holds(c) && !is_default(field, c), "{} has no effect {}",
                     format_field(field, c), need.otherwise);
}

void check_rules_of_values(const Config& config, Problems& problems) {
  Rules rule(problems);
  check_heads(config.model, rule);
  check_rope(config.model, rule);
  check_sizes(config, problems, rule);
  check_recompute(config, rule);
  check_fp8(config, rule);
  check_schedule_kind(config, rule);
  check_schedules_over_steps(config, rule);
  check_data(config, rule);
  check_training(config, rule);
  for (const ToolSection& section : tool_sections())
    if (section.check) section.check(config, rule);
  check_needs(config, rule);
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
