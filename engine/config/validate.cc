#include "engine/config/validate.h"

#include <algorithm>
#include <fmt/format.h>
#include <mutex>
#include <tuple>

#include "base/check.h"
#include "engine/config/fields.h"
#include "engine/config/rules.h"
#include "parallel/pipeline/check.h"

namespace trivet {
namespace {

void check_values(const Config& config, Problems& problems) {
  for (const Field& field : fields()) {
    if (!problems.clean({field.name})) continue;
    const auto problem = check_field(field, config);
    if (!problem) continue;
    const bool missing = field.required && is_default(field, config);
    problems.add(field.name, missing ? fmt::format("is required: {}, {}", field.about, expected(field)) : *problem);
  }
}

std::string_view key_of(ScheduleError::Part part) {
  switch (part) {
    case ScheduleError::kind: return "parallel.pipeline_schedule";
    case ScheduleError::chunks: return "parallel.virtual_pipeline_model_parallel_size";
    case ScheduleError::group_size: return "parallel.microbatch_group_size_per_vp_stage";
    case ScheduleError::micro_batches: return "batch.global_batch_size";
  }
  fail("unknown part of a schedule");
}

Schedule make_known_schedule(const ParallelConfig& c, int64_t micro_batches) {
  const auto as_int = [](const std::optional<int64_t>& n) {
    return n ? std::optional(static_cast<int>(*n)) : std::nullopt;
  };
  try {
    return make_schedule({.kind = c.pipeline_schedule,
                          .p = c.pipeline_model_parallel_size,
                          .m = static_cast<int>(micro_batches),
                          .v = as_int(c.virtual_pipeline_model_parallel_size),
                          .group_size = as_int(c.microbatch_group_size_per_vp_stage)});
  } catch (const ScheduleError& error) {
    throw KeyError(std::string(key_of(error.part)), error.what());
  }
}

Schedule read_schedule_of(const ParallelConfig& c, int64_t micro_batches) {
  Schedule schedule = read_schedule_file(c.pipeline_schedule);
  if (schedule.p != c.pipeline_model_parallel_size || schedule.m != micro_batches)
    throw ConfigError(fmt::format("{} is for {} pipeline ranks and {} micro-batches, but the run has {} and {}",
                                  c.pipeline_schedule, schedule.p, schedule.m, c.pipeline_model_parallel_size,
                                  micro_batches));
  if (const int64_t v = c.virtual_pipeline_model_parallel_size.value_or(schedule.v); v != schedule.v)
    throw KeyError("parallel.virtual_pipeline_model_parallel_size",
                   fmt::format("{} is not the {} of the schedule {}; expected that, or default", v, schedule.v,
                               c.pipeline_schedule));
  return schedule;
}

// The safe channel depth of a known schedule. Each schedule is checked and simulated only once because a search
// resolves thousands of configurations.
int depth_of_known(const Schedule& schedule) {
  static std::mutex mutex;
  static std::map<std::tuple<std::string, int, int, int, int>, int> depths;
  const std::tuple key(schedule.kind, schedule.p, schedule.m, schedule.v, schedule.group_size.value_or(0));
  {
    const std::lock_guard lock(mutex);
    if (const auto known = depths.find(key); known != depths.end()) return known->second;
  }
  check_schedule(schedule);
  const int depth = safe_channel_depth(schedule);
  const std::lock_guard lock(mutex);
  return depths[key] = depth;
}

// Makes or reads the schedule. Throws ConfigError if it does not fit. Raises `depth` to the schedule's safe depth.
Schedule find_schedule(const ParallelConfig& c, int64_t micro_batches, int& depth) {
  const bool of_file = is_file_of_schedule(c.pipeline_schedule);
  Schedule schedule = of_file ? read_schedule_of(c, micro_batches) : make_known_schedule(c, micro_batches);
  depth = std::max(depth, of_file ? safe_channel_depth(schedule) : depth_of_known(schedule));
  return schedule;
}

// Reports an error thrown by `f` as a problem with the key, or with a KeyError's own key; rethrows bugs. Returns false
// if there was a problem.
template <class F>
bool succeeds(Problems& problems, std::string_view key, const F& f) {
  try {
    f();
    return true;
  } catch (const Error& error) {
    if (error.exit_code() == Error("").exit_code()) throw;
    const auto* of_key = dynamic_cast<const KeyError*>(&error);
    problems.add(of_key ? of_key->key : key, error.what());
    return false;
  }
}

// In decimal, as a person would write it: 3e-3 / 10 as doubles is 0.00030000000000000003.
double tenth_of(double x) { return parse_number(fmt::format("{:.15g}", x / 10)).value_or(x / 10); }

template <class T>
void derive(LoadedConfig& loaded, std::string_view key, std::optional<T>& to, T value, std::string how) {
  if (to) return;
  to = value;
  loaded.origins[std::string(key)] = {Origin::derived, std::move(how)};
}

// Restores the defaults of the values that the rules leave out.
void leave_out(LoadedConfig& loaded, const Problems& problems, std::vector<std::string>& notes) {
  for (const auto& [key, note] : problems.left_out()) {
    const Field& field = *find_field(key);
    set_default(field, loaded.config);
    loaded.origins[key] = {Origin::derived, "it has no effect"};
    notes.push_back(note);
  }
}

// Converts an automatic warm-up to the unit of the run's length, unless a warm-up length is given in that unit.
void carry_auto_warmup(LoadedConfig& loaded) {
  OptimizerConfig& o = loaded.config.optimizer;
  const bool samples = loaded.config.train.train_samples > 0;
  auto& other = samples ? o.lr_warmup_iters : o.lr_warmup_samples;
  if (other) return;
  other = 0;
  const std::string counted = samples ? "lr_warmup_samples" : "lr_warmup_iters";
  loaded.origins[samples ? "optimizer.lr_warmup_iters" : "optimizer.lr_warmup_samples"] = {Origin::derived, counted};
  if (!loaded.origins.contains("optimizer." + counted)) (samples ? o.lr_warmup_samples : o.lr_warmup_iters).reset();
}

// Derives the lengths of the learning rate's schedule.
void derive_span(LoadedConfig& loaded) {
  OptimizerConfig& o = loaded.config.optimizer;
  const bool samples = loaded.config.train.train_samples > 0;
  const std::string of = samples ? "samples" : "iters", decay_name = "lr_decay_" + of;
  auto& decay = samples ? o.lr_decay_samples : o.lr_decay_iters;
  auto& warmup = samples ? o.lr_warmup_samples : o.lr_warmup_iters;
  derive(loaded, "optimizer." + decay_name, decay,
         samples ? loaded.config.train.train_samples : std::max<int64_t>(loaded.config.train.train_iters, 1),
         "train_" + of);
  const auto fraction = o.lr_warmup_fraction;
  if (fraction && warmup == 0) warmup.reset();
  derive(loaded, "optimizer.lr_warmup_" + of, warmup, fraction ? warmup_of_fraction(*fraction, *decay) : *decay / 10,
         fraction ? "lr_warmup_fraction * " + decay_name : decay_name + " / 10");
}

// Derives the number of steps of a run whose length is in samples.
void derive_steps(LoadedConfig& loaded, const BatchSizes& sizes, Problems& problems) {
  TrainConfig& train = loaded.config.train;
  if (train.train_samples == 0) return;
  const int64_t steps = sizes.steps_within(train.train_samples);
  if (steps == 0)
    problems.add("train.train_samples",
                 fmt::format("{} are less than one step of {} samples", train.train_samples, sizes.of_step(0)));
  else if (train.train_iters != 0 && train.train_iters != steps)
    problems.add("train.train_iters",
                 fmt::format("{} and train_samples ({}, which are {} steps) are two lengths of the "
                             "run; leave one out",
                             train.train_iters, train.train_samples, steps));
  if (train.train_iters == 0) loaded.origins["train.train_iters"] = {Origin::derived, "train_samples"};
  train.train_iters = steps;
}

// d: data-parallel ranks; sharing: ranks that reduce gradients together.
void derive_values(LoadedConfig& loaded, const RunFacts& facts, int64_t d, int64_t sharing) {
  Config& c = loaded.config;
  derive(loaded, "model.ffn_hidden_size", c.model.ffn_hidden_size, ffn_of(c.model),
         c.model.swiglu ? "8/3 * hidden_size in multiples of 64" : "4 * hidden_size");
  derive(loaded, "model.vocab_size", c.model.vocab_size, facts.dataset_vocab_size.value_or(0),
         "the dataset's tokenizer");
  const bool sizes = !c.batch.step_batch_size_schedule.empty();
  derive(loaded, "batch.global_batch_size", c.batch.global_batch_size,
         batch_sizes_of(c, c.batch.micro_batch_size * d).largest(),
         sizes ? "the largest of step_batch_size_schedule" : "micro_batch_size * data parallel size");
  derive(loaded, "parallel.bucket_size", c.parallel.bucket_size, default_bucket_size(sharing), "max(40e6, 1e6 d)");
  const bool constant = c.optimizer.lr_decay_style == LrDecay::constant;  // lr never changes
  derive(loaded, "optimizer.min_lr", c.optimizer.min_lr, constant ? c.optimizer.lr : tenth_of(c.optimizer.lr),
         constant ? "lr" : "lr / 10");
  if (c.train.train_iters > 0 || c.train.train_samples > 0 || !loaded.trains) derive_span(loaded);
  for (size_t k = 0; k < c.comm.links.size(); ++k) {
    // Without context parallelism its keys stay auto: study IDs hash values that are not the default.
    if (kCommClasses[k] == "context" && c.parallel.context_parallel_size <= 1) continue;
    const std::string of = fmt::format("comm.{}_", kCommClasses[k]);
    derive(loaded, of + "link_latency_us", c.comm.links[k].latency_us, c.comm.link_latency_us, "link_latency_us");
    derive(loaded, of + "link_gbps", c.comm.links[k].gbps, c.comm.link_gbps, "link_gbps");
  }
}

}  // namespace

void check_config(const LoadedConfig& loaded, Problems& problems) {
  const auto& [data, train] = std::tie(loaded.config.data, loaded.config.train);
  if (!loaded.trains && data.path.empty() && data.train_path.empty()) problems.mute("data.path");
  if (!loaded.trains && train.train_iters == 0 && train.train_samples == 0) problems.mute("train.train_iters");
  check_values(loaded.config, problems);
  check_rules_of_values(loaded.config, problems);
}

BatchSizes batch_sizes_of(const Config& c, int64_t full) {
  if (const auto sizes = parse_batch_size_schedule(c.batch.step_batch_size_schedule, c.model.seq_length)) return *sizes;
  const std::vector<int64_t> ramp = c.batch.rampup_batch_size.value_or(std::vector<int64_t>{});
  full = c.batch.global_batch_size.value_or(full);
  return ramp.size() == 3 && ramp[0] <= full ? ramp_of_batch_sizes(ramp[0], ramp[1], ramp[2], full)
                                             : BatchSizes{{{0, full}}};
}

Layout resolve(LoadedConfig& loaded, const RunFacts& facts) {
  check(facts.world_size >= 1, "a world has at least one rank");
  Config& config = loaded.config;
  carry_auto_warmup(loaded);
  Layout layout;
  for (size_t before = 0;; before = layout.notes.size()) {  // leaving a value out may make others ineffective
    Problems problems(loaded.path, loaded.origins);
    check_config(loaded, problems);
    for (const std::string_view key : loaded.left_to_planner)  // an optional key is derived as usual
      if (find_field(key)->empty.empty())
        problems.add(key, "auto is for `trivet plan`, which chooses the fastest that fits; expected " +
                              expected(*find_field(key)));
    check_rules_of_ranks(loaded, facts, problems);
    problems.throw_if_any();
    leave_out(loaded, problems, layout.notes);
    if (layout.notes.size() == before) break;
  }

  const ParallelConfig& c = config.parallel;
  layout.mesh = replica_mesh(config);
  layout.mesh[Axis::dp] = facts.world_size / layout.mesh.world();
  Problems problems(loaded.path, loaded.origins);
  const int64_t largest = batch_sizes_of(config, config.batch.micro_batch_size * layout.mesh[Axis::dp]).largest();
  for (const ToolSection& section : tool_sections())
    if (section.derive) section.derive(loaded, largest, problems, layout.notes);
  derive_values(loaded, facts, layout.mesh[Axis::dp], layout.mesh.size(kGradientAxes));
  const int64_t unit = config.model.make_vocab_size_divisible_by * layout.mesh[Axis::tp];
  layout.padded_vocab = (*config.model.vocab_size + unit - 1) / unit * unit;
  layout.batch_sizes = batch_sizes_of(config, *config.batch.global_batch_size);
  const int64_t together = config.batch.micro_batch_size * layout.mesh[Axis::dp];
  layout.micro_batches = layout.batch_sizes.largest() / together;

  derive_steps(loaded, layout.batch_sizes, problems);
  if (succeeds(problems, "parallel.pipeline_schedule",
               [&] { layout.schedule = find_schedule(c, layout.micro_batches, layout.channel_depth); })) {
    for (const BatchSizes::Part& part : layout.batch_sizes.parts) {
      const int64_t m = part.samples / together;
      if (m == layout.micro_batches || layout.smaller.contains(m)) continue;
      if (!succeeds(problems, ramp_key(config), [&] { layout.smaller[m] = find_schedule(c, m, layout.channel_depth); }))
        break;
    }
    derive(loaded, "parallel.virtual_pipeline_model_parallel_size",
           config.parallel.virtual_pipeline_model_parallel_size, int64_t{layout.schedule.v}, "the schedule");
    succeeds(problems, "model.num_layers", [&] {
      layout.layers_of_stage =
          split_layers({.num_layers = config.model.num_layers,
                        .stages = layout.schedule.stages(),
                        .chunks = layout.schedule.map == StageMap::interleaved ? layout.schedule.v : 1,
                        .first_layers = c.decoder_first_pipeline_num_layers,
                        .last_layers = c.decoder_last_pipeline_num_layers,
                        .account_for_embedding = c.account_for_embedding_in_pipeline_split,
                        .account_for_loss = c.account_for_loss_in_pipeline_split});
    });
    check_rules_of_layout(config, layout, problems);
  }
  problems.throw_if_any();
  leave_out(loaded, problems, layout.notes);
  if (!config.data.path.empty() && config.data.split.size() > 2 && config.data.split[2] > 0 && !evaluates(config))
    layout.notes.push_back("data.split reserves a test set, which this run never evaluates (train.eval_interval 0)");
  return layout;
}

std::vector<int64_t> split_layers(const LayerSplit& s) {
  const std::string key_of_layers =
      s.first_layers ? "parallel.decoder_first_pipeline_num_layers" : "parallel.decoder_last_pipeline_num_layers";
  const bool layers_given = s.first_layers || s.last_layers, accounts = s.account_for_embedding || s.account_for_loss;
  if (s.stages == 1) return {s.num_layers};
  for (const auto& [key, number] : {std::pair("parallel.decoder_first_pipeline_num_layers", s.first_layers),
                                    std::pair("parallel.decoder_last_pipeline_num_layers", s.last_layers)})
    if (number.value_or(0) % s.chunks != 0)
      throw KeyError(
          key, fmt::format("{} is not a multiple of the {} chunks over which its pipeline rank divides its layers",
                           *number, s.chunks));
  // Stages that share the remaining layers evenly.
  const int64_t even_stages = s.stages - s.chunks * ((s.first_layers ? 1 : 0) + (s.last_layers ? 1 : 0));
  const int64_t units = s.num_layers - s.first_layers.value_or(0) - s.last_layers.value_or(0) +
                        (s.account_for_embedding ? 1 : 0) + (s.account_for_loss ? 1 : 0);
  if (units < 0 || (even_stages == 0 && units != 0))
    throw KeyError(key_of_layers,
                   fmt::format("the first and last of {} pipeline stages hold {} and {} layers, but the model has {}",
                               s.stages, s.first_layers.value_or(0), s.last_layers.value_or(0), s.num_layers));
  if (even_stages > 0 && (units % even_stages != 0 || units == 0)) {
    int64_t fewer = s.num_layers - units % even_stages;
    if (units < even_stages || fewer < 1) fewer += even_stages;  // otherwise a stage, or the model, would be empty
    const std::string why = accounts ? fmt::format(", or {} layers with those accounted for at the ends,", units)
                            : layers_given
                                ? fmt::format(", of which {} layers are left for {} stages,", units, even_stages)
                                : "";
    throw KeyError("model.num_layers",
                   fmt::format("{}{} cannot be split evenly over {} pipeline stages; {} or {} would, or "
                               "decoder_first_pipeline_num_layers and decoder_last_pipeline_num_layers that leave a "
                               "multiple of the rest",
                               s.num_layers, why, s.stages, fewer, fewer + even_stages));
  }
  std::vector<int64_t> layers(static_cast<size_t>(s.stages), even_stages > 0 ? units / even_stages : 0);
  const size_t ranks = layers.size() / static_cast<size_t>(s.chunks);
  for (size_t stage = 0; stage < layers.size(); ++stage) {
    if (s.first_layers && stage % ranks == 0) layers[stage] = *s.first_layers / s.chunks;
    if (s.last_layers && stage % ranks == ranks - 1) layers[stage] = *s.last_layers / s.chunks;
  }
  if (s.account_for_embedding) --layers.front();
  if (s.account_for_loss) --layers.back();
  return layers;
}

int64_t ffn_of(const ModelConfig& c) {
  const int64_t h = c.hidden_size;
  return c.ffn_hidden_size.value_or(c.swiglu ? std::max<int64_t>(8 * h / 3 / 64 * 64, 64) : 4 * h);
}

int64_t cross_entropy_rows_of(const Config& c, const Layout& layout) {
  constexpr int64_t kMiB = 1 << 20, kWhole = 1792 * kMiB, kChunk = 512 * kMiB;
  const int64_t all = c.model.seq_length / layout.mesh[Axis::cp] * c.batch.micro_batch_size;
  const int64_t row_bytes = layout.padded_vocab / layout.mesh[Axis::tp] * size_of(c.precision.dtype);
  int64_t rows = c.model.cross_entropy_chunk_rows.value_or(all);
  if (!c.model.cross_entropy_chunk_rows && !c.overlap.defer_embedding_wgrad_compute && all * row_bytes > kWhole)
    while (rows > 1 && rows * row_bytes > kChunk) rows = (rows + 1) / 2;
  return rows < all ? rows : 0;
}

ModelSpec model_spec_of(const ModelConfig& c) {
  ModelSpec spec{.num_layers = c.num_layers,
                 .hidden = c.hidden_size,
                 .ffn = ffn_of(c),
                 .seq = c.seq_length,
                 .vocab = c.vocab_size.value_or(0),
                 .attention = {.heads = c.num_attention_heads,
                               .kv_heads = c.num_query_groups.value_or(c.num_attention_heads),
                               .head_width = c.kv_channels.value_or(c.hidden_size / c.num_attention_heads)},
                 .norm = c.normalization,
                 .norm_epsilon = c.layernorm_epsilon,
                 .activation = c.swiglu ? Activation::swiglu : Activation::gelu,
                 .positions = c.position_embedding_type,
                 .biases = c.add_bias_linear,
                 .qkv_bias = c.add_bias_linear || c.add_qkv_bias,
                 .qk_norm = c.qk_layernorm,
                 .tied_embeddings = !c.untie_embeddings_and_output_weights,
                 .training = {.hidden_dropout = static_cast<float>(c.hidden_dropout),
                              .attention_dropout = static_cast<float>(c.attention_dropout),
                              .init_std = static_cast<float>(c.init_method_std),
                              .scale_output_layer_init = c.scale_output_layer_init}};
  if (spec.positions != Positions::rope) return spec;
  spec.rotary.width = static_cast<int64_t>(static_cast<double>(spec.attention.head_width) * c.rotary_percent);
  spec.rotary.base = c.rotary_base;
  if (!c.use_rope_scaling) return spec;
  spec.rotary.factor = c.rope_scaling_factor;
  spec.rotary.low = c.rope_scaling_low_freq_factor;
  spec.rotary.high = c.rope_scaling_high_freq_factor;
  spec.rotary.original_length = static_cast<double>(c.rope_scaling_original_max_position_embeddings);
  return spec;
}

std::vector<const Field*> keys_of_another_model(const Config& config, const Config& other) {
  std::vector<const Field*> keys;
  for (const Field& field : fields()) {
    if (field.section() != "model" || check_field(field, other)) continue;  // a required key that `other` lacks
    Config changed = config, from = other;
    field.copy(field.at(from), field.at(changed));
    if (!model_spec_of(changed.model).same_model(model_spec_of(config.model))) keys.push_back(&field);
  }
  return keys;
}

}  // namespace trivet
