// Applies a benchmark's rules to a configuration: values that the rules fix are derived if the configuration does not
// set them; a conflicting value is an error in the closed division, and a note in the open one.
#include "tools/mlperf/section.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <iterator>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/config/field_types.h"
#include "engine/config/rules.h"
#include "tools/mlperf/procedure.h"
#include "tools/mlperf/rules.h"

namespace trivet {
namespace {

using enum MlperfBenchmark;

bool is_tiny(MlperfBenchmark benchmark) { return benchmark == tiny || benchmark == tiny_gpt3; }

struct Wanted {
  std::string_view key;
  std::string value;
};

// The configuration keys of the rules' constants.
constexpr std::pair<std::string_view, std::string_view> kConstants[] = {
    {"opt_adam_beta_1", "optimizer.adam_beta1"},
    {"opt_adamw_beta_1", "optimizer.adam_beta1"},
    {"opt_adam_beta_2", "optimizer.adam_beta2"},
    {"opt_adamw_beta_2", "optimizer.adam_beta2"},
    {"opt_adam_epsilon", "optimizer.adam_eps"},
    {"opt_adamw_epsilon", "optimizer.adam_eps"},
    {"opt_weight_decay", "optimizer.weight_decay"},
    {"opt_adamw_weight_decay", "optimizer.weight_decay"},
    {"opt_gradient_clip_norm", "optimizer.clip_grad"},
    {"max_sequence_length", "model.seq_length"},
    {"max_steps", "train.train_iters"},
};

// Model sizes from Brown et al. 2020, table 2.1, and Grattafiori et al. 2024, table 3; all other values from the
// reference implementations (run_gpt3.sh, NeMo's Llama31Config).
struct Model {
  MlperfBenchmark benchmark;
  int64_t layers, hidden, ffn, heads, groups, vocab;
};
constexpr Model kModels[] = {{gpt3, 96, 12288, 49152, 96, 96, 50257},
                             {llama31_405b, 126, 16384, 53248, 128, 8, 32000},
                             {llama31_8b, 32, 4096, 14336, 32, 8, 128256}};

std::vector<Wanted> wanted_model(MlperfBenchmark benchmark, bool from_checkpoint) {
  const auto* const model = std::ranges::find(kModels, benchmark, &Model::benchmark);
  if (model == std::end(kModels)) return {};
  const bool llama = benchmark != gpt3;
  std::vector<Wanted> wanted{{"model.num_layers", fmt::to_string(model->layers)},
                             {"model.hidden_size", fmt::to_string(model->hidden)},
                             {"model.ffn_hidden_size", fmt::to_string(model->ffn)},
                             {"model.num_attention_heads", fmt::to_string(model->heads)},
                             {"model.num_query_groups", fmt::to_string(model->groups)},
                             {"model.vocab_size", fmt::to_string(model->vocab)},
                             {"model.normalization", llama ? "RMSNorm" : "LayerNorm"},
                             {"model.position_embedding_type", llama ? "rope" : "learned_absolute"},
                             {"model.swiglu", llama ? "true" : "false"},
                             {"model.add_bias_linear", llama ? "false" : "true"},
                             {"model.untie_embeddings_and_output_weights", llama ? "true" : "false"},
                             {"model.kv_channels", fmt::to_string(model->hidden / model->heads)},
                             {"optimizer.lr_warmup_init", "0"},
                             {"optimizer.decay_norms_and_biases", llama ? "false" : "true"}};
  if (llama) wanted.insert(wanted.end(), {{"model.rotary_base", "500000"}, {"model.use_rope_scaling", "true"}});
  // Other keys must keep their defaults, except those that only choose how to compute, or that a checkpoint makes moot.
  std::set<std::string_view> others = {"model.make_vocab_size_divisible_by",
                                       "model.recompute_granularity",
                                       "model.recompute_modules",
                                       "model.recompute_method",
                                       "model.recompute_num_layers",
                                       "model.cross_entropy_chunk_rows"};
  if (from_checkpoint) others.insert({"model.init_method_std", "model.scale_output_layer_init"});
  for (const Wanted& want : wanted) others.insert(want.key);
  const Config defaults;
  for (const Field& field : fields())
    if (field.section() == "model" && !field.required && !others.contains(field.name))
      wanted.push_back({field.name, format_field(field, defaults)});
  return wanted;
}

std::string steps_text(double steps) { return fmt::to_string(static_cast<int64_t>(std::ceil(steps))); }

// The values that the rules fix. batch: samples per step. config: supplies the values that the rules leave free.
std::vector<Wanted> wanted_values(const mlperf::Benchmark& b, const Config& config, int64_t batch) {
  const MlperfBenchmark benchmark = mlperf_of(config).benchmark;
  std::vector<Wanted> wanted = wanted_model(benchmark, b.starts_from_checkpoint());
  for (const auto& [logged, allowed] : b.constants)
    for (const auto& [name, key] : kConstants)
      if (logged == name && !is_tiny(benchmark)) wanted.push_back({key, allowed.front().dump()});
  wanted.push_back({"train.eval_interval", fmt::to_string(b.interval(batch) / batch)});
  // The schedule follows the rules, whatever schedule the checkpoint used.
  if (b.starts_from_checkpoint()) wanted.push_back({"optimizer.override_opt_param_scheduler", "true"});
  if (is_tiny(benchmark)) return wanted;
  wanted.push_back({"train.full_validation", benchmark == gpt3 ? "true" : "false"});
  wanted.push_back({"train.eval_samples", benchmark == gpt3 ? "0" : b.constant("eval_samples")->dump()});
  double lr = config.optimizer.lr;
  if (b.base_rates) {
    const std::vector<double> rates = b.base_rates(batch);
    if (std::ranges::count(rates, lr) == 0) lr = rates.front();
    wanted.push_back({"optimizer.lr", fmt::to_string(lr)});
  }
  if (b.end_rate) wanted.push_back({"optimizer.min_lr", fmt::format("{:.15g}", b.end_rate(lr))});
  const auto warmup = b.steps_of("opt_learning_rate_warmup_steps", batch, 0);
  if (warmup) wanted.push_back({"optimizer.lr_warmup_iters", steps_text(*warmup)});
  const double behind = std::ceil(warmup.value_or(static_cast<double>(config.optimizer.lr_warmup_iters.value_or(0))));
  // The end of the schedule; the Llama benchmarks log only the part after the warm-up.
  if (const auto decay = b.steps_of("opt_learning_rate_decay_steps", batch, behind))
    wanted.push_back({"optimizer.lr_decay_iters", steps_text(benchmark == gpt3 ? *decay : *decay + behind)});
  wanted.push_back({"optimizer.lr_decay_style", "cosine"});
  return wanted;
}

std::string name_of(const MlperfConfig& c) { return std::string(word_of(c.benchmark)); }

void declare_mlperf(std::vector<Field>& table) {
#define KEY(member, ...)                     \
  add_field<decltype(MlperfConfig::member)>( \
      table, "mlperf." #member, [](Config& c) -> void* { return &c.tools.of<MlperfConfig>().member; }, __VA_ARGS__)
  KEY(benchmark, "follow the rules of this benchmark of MLPerf Training (docs/mlperf.md) and write its log");
  KEY(round, "round whose rules apply, such as \"5.1\"; \"\": the last round with the benchmark");
  KEY(division, "closed: breaking a rule is an error; open: it is a note");
  KEY(submission_org, "logged: the submitter");
  KEY(submission_platform, "logged: the system");
  KEY(submission_status, "logged: the system's status");
  KEY(target, "validation loss at which the run ends; auto: as in the rules", above(0, "nats per token"));
  KEY(eval_interval_samples, "samples between evaluations, rounded up to steps; auto: as in the rules",
      range(1, 1e9, "samples"));
  KEY(skipped_evaluations, "leave out the first this many evaluations", range(0, 1e6, "evaluations"));
  KEY(cache_clear, "command that drops the caches of a host, run once on each; \"\": none");
  KEY(warmup_steps, "steps on synthetic data before the clock starts; they change nothing", range(0, 1e6, "steps"));
#undef KEY
  for (Field& field : table)  // a benchmark run evaluates, whatever train.eval_interval is
    for (Need& need : field.needs)
      if (std::ranges::count(need.of, "train.eval_interval") > 0) need.of.push_back("mlperf.benchmark");
  for (Field& field : table)
    if (field.section() == "mlperf" && field.key() != "benchmark")
      field.needs.push_back({{"mlperf.benchmark"},
                             [](const Config& c) { return mlperf_of(c).benchmark != none; },
                             "with mlperf.benchmark none"});
}

void check_mlperf(const Config& config, Rules& rule) {
  const MlperfConfig& c = mlperf_of(config);
  constexpr auto kBenchmark = "mlperf.benchmark";
  if (c.benchmark == none) return;
  constexpr auto kRequired = "is required with benchmark {}: {}";
  rule("mlperf.submission_org", {}, c.submission_org.empty(), kRequired, name_of(c),
       "the submitter, or TEST-NOT-A-RESULT");
  rule("mlperf.submission_platform", {}, c.submission_platform.empty(), kRequired, name_of(c), "the system's name");
  const bool own = is_tiny(c.benchmark);
  rule("mlperf.target", {}, own && !c.target, kRequired, name_of(c), "the validation loss at which the run ends");
  rule("mlperf.eval_interval_samples", {}, own && !c.eval_interval_samples, kRequired, name_of(c),
       "samples between evaluations");
  const auto* const rules = own ? nullptr : mlperf::find_benchmark(word_of(c.benchmark), c.round);
  rule("mlperf.round", {kBenchmark}, !own && !rules, "\"{}\" has no {}; expected one of its rounds, or \"\"", c.round,
       name_of(c));
  rule("mlperf.round", {kBenchmark}, own && !c.round.empty(), "\"{}\" has no {}: it is in no round; expected \"\"",
       c.round, name_of(c));
  const bool closed = rules && c.division == MlperfDivision::closed;
  constexpr auto kForbidden = "{} is not allowed in the closed division: expected {}, or auto";
  rule("mlperf.target", {kBenchmark}, closed && c.target.value_or(rules->target) != rules->target, kForbidden,
       c.target.value_or(0), closed ? rules->target : 0);
  const int64_t interval = c.eval_interval_samples.value_or(0);
  rule("mlperf.eval_interval_samples", {kBenchmark}, closed && interval != 0 && interval != rules->cadence, kForbidden,
       interval, closed ? rules->cadence : 0);
  rule("train.train_samples", {kBenchmark}, config.train.train_samples > 0,
       "excludes mlperf.benchmark, whose rules count steps; set train_iters, the maximum length of the run");
  rule(ramp_key(config), {kBenchmark}, config.batch.rampup_batch_size || !config.batch.step_batch_size_schedule.empty(),
       "excludes mlperf.benchmark, whose rules fix one batch size");
  rule("train.skip_train", {kBenchmark}, config.train.skip_train, "excludes mlperf.benchmark, which trains");
  constexpr auto kOneRate = "excludes mlperf.benchmark, whose log has one rate and one weight decay for all weights";
  rule("optimizer.weight_decay_incr_style", {kBenchmark}, config.optimizer.weight_decay_incr_style != Ramp::constant,
       kOneRate);
  rule("optimizer.decoupled_lr", {kBenchmark}, config.optimizer.decoupled_lr.has_value(), kOneRate);
  rule("optimizer.use_checkpoint_opt_param_scheduler", {kBenchmark},
       config.optimizer.use_checkpoint_opt_param_scheduler, "excludes mlperf.benchmark, whose rules fix the schedule");
  rule("train.exit_duration_in_mins", {kBenchmark}, config.train.exit_duration_in_mins > 0,
       "excludes mlperf.benchmark: a resumed run has no continuous clock");
}

void derive_mlperf(LoadedConfig& loaded, int64_t batch, Problems& problems, std::vector<std::string>& notes) {
  Config& config = loaded.config;
  const MlperfConfig& c = mlperf_of(config);
  const auto benchmark = benchmark_of(c);
  if (!benchmark) return;
  const bool closed = c.division == MlperfDivision::closed;
  if (const auto* const rules = mlperf::find_benchmark(name_of(c), c.round); rules && !closed) {
    if (benchmark->target != rules->target)
      notes.push_back(fmt::format("mlperf.target is {}, but the rules have {}", benchmark->target, rules->target));
    if (benchmark->cadence != rules->cadence)
      notes.push_back(
          fmt::format("mlperf.eval_interval_samples is {}, but the rules have {}", benchmark->cadence, rules->cadence));
  }
  for (const Wanted& want : wanted_values(*benchmark, config, batch)) {
    const Field& field = *find_field(want.key);
    Config by_rules = config;
    if (const auto problem = parse_field(field, {.text = want.value}, by_rules)) fail(*problem);
    const std::string found = format_field(field, config), expected = format_field(field, by_rules);
    if (found == expected) continue;
    const auto origin = loaded.origins.find(want.key);
    if (origin == loaded.origins.end() || origin->second.kind == Origin::derived) {
      field.copy(field.at(by_rules), field.at(config));
      loaded.origins[std::string(want.key)] = {Origin::derived, "the rules of " + name_of(c)};
    } else if (closed) {
      problems.add(want.key,
                   fmt::format("{} is not allowed in the closed division of {} with batches of {}: expected {}", found,
                               name_of(c), batch, expected));
    } else {
      notes.push_back(fmt::format("{} is {}, but the rules of {} have {}", want.key, found, name_of(c), expected));
    }
  }
  const int64_t skips = benchmark->skipped_evaluations ? benchmark->skipped_evaluations(batch) : 0;
  if (c.skipped_evaluations > skips && !is_tiny(c.benchmark)) {
    const std::string text = fmt::format("{} is above what {} allows with batches of {}: {}", c.skipped_evaluations,
                                         name_of(c), batch, skips);
    if (closed) problems.add("mlperf.skipped_evaluations", text);
    else notes.push_back("mlperf.skipped_evaluations: " + text);
  }
  if (const int64_t first = config.train.eval_interval * (c.skipped_evaluations + 1);
      loaded.trains && first > config.train.train_iters)
    problems.add("train.train_iters",
                 fmt::format("found {}, but the first evaluation is after step {}: expected at least that",
                             config.train.train_iters, first));
  if (batch < benchmark->least_batch || batch > benchmark->most_batch)
    notes.push_back(
        fmt::format("batches of {} have no reference points in {}, only those from {} to {} do: a "
                    "submission needs its own",
                    batch, name_of(c), benchmark->least_batch, benchmark->most_batch));
  if (benchmark->scaled_rate && benchmark->base_rates(batch).front() * 1152 != static_cast<double>(batch) * 8e-5)
    notes.push_back(
        fmt::format("the official checker compares the learning rate without tolerance, and no number "
                    "passes it with batches of {}",
                    batch));
}

}  // namespace

std::optional<mlperf::Benchmark> benchmark_of(const MlperfConfig& c) {
  if (c.benchmark == none) return {};
  mlperf::Benchmark benchmark;
  if (!is_tiny(c.benchmark)) {
    const auto* const found = mlperf::find_benchmark(word_of(c.benchmark), c.round);
    if (!found) return {};
    benchmark = *found;
  } else {
    benchmark.counts_tokens = c.benchmark == tiny_gpt3;
    benchmark.constants = {{"opt_name", {c.benchmark == tiny_gpt3 ? "adam" : "adamw"}}};
  }
  benchmark.name = word_of(c.benchmark);
  if (c.target) benchmark.target = *c.target;
  if (c.eval_interval_samples) benchmark.cadence = *c.eval_interval_samples;
  return benchmark;
}

std::optional<TimeToTarget> time_to_target(const Config& config, double step_seconds) {
  const auto benchmark = benchmark_of(mlperf_of(config));
  const int64_t batch = config.batch.global_batch_size.value_or(0);
  const auto reference = benchmark ? mlperf::reference_convergence(*benchmark, batch) : std::nullopt;
  if (!reference) return {};
  TimeToTarget to{.steps = reference->mean / static_cast<double>(batch)};
  to.evaluations = std::max(0.0, reference->mean / static_cast<double>(benchmark->interval(batch)) -
                                     static_cast<double>(mlperf_of(config).skipped_evaluations));
  const double steps = benchmark->constant("eval_samples")->get<double>() / static_cast<double>(batch);
  to.minutes = (to.steps + to.evaluations * steps / 3) * step_seconds / 60;
  return to;
}

const MlperfConfig& mlperf_of(const Config& config) { return config.tools.of<MlperfConfig>(); }

ToolSection mlperf_section() {
  return {.name = "mlperf",
          .defaults = [] { return std::any(MlperfConfig()); },
          .declare = declare_mlperf,
          .check = check_mlperf,
          .derive = derive_mlperf,
          .directing_key = "mlperf.benchmark",
          .procedure = MlperfRun::begin};
}

}  // namespace trivet
