#include "tools/plan/candidates.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <utility>

#include "engine/config/fields.h"
#include "tools/plan/switches.h"

namespace trivet {
namespace {

// Marks the varied keys as levels of a study, so that settings without effect in a layout are dropped.
void mark_as_levels(LoadedConfig& loaded) {
  const auto mark = [&](std::string_view key) { loaded.origins[std::string(key)] = {Origin::level, "--search"}; };
  for (const char* key :
       {"parallel.tensor_model_parallel_size", "parallel.pipeline_model_parallel_size", "parallel.sequence_parallel",
        "parallel.decoder_first_pipeline_num_layers", "parallel.decoder_last_pipeline_num_layers",
        "parallel.account_for_embedding_in_pipeline_split", "parallel.account_for_loss_in_pipeline_split",
        "parallel.pipeline_schedule", "parallel.virtual_pipeline_model_parallel_size", "batch.micro_batch_size",
        "model.recompute_granularity", "model.recompute_modules", "model.recompute_method",
        "model.recompute_num_layers", "parallel.data_parallel_sharding_strategy", "parallel.bucket_size"})
    mark(key);
  for (const Field& field : fields())
    if (field.section() == "overlap") mark(field.name);
}

std::vector<int64_t> divisors_of(int64_t n) {
  std::vector<int64_t> divisors;
  for (int64_t i = 1; i <= n; ++i)
    if (n % i == 0) divisors.push_back(i);
  return divisors;
}

std::vector<int> tensor_sizes(const Config& run, int ranks) {
  const int of_run = run.parallel.tensor_model_parallel_size;
  std::vector<int> sizes;
  for (int t = 1; t <= ranks; t *= 2)
    if (ranks % t == 0 && run.model.num_attention_heads % t == 0) sizes.push_back(t);
  if (ranks % of_run == 0 && std::ranges::count(sizes, of_run) == 0) sizes.push_back(of_run);
  return sizes;
}

struct ScheduleChoice {
  std::string kind;
  std::optional<int64_t> v;
};

// units: the layers to split over the stages, including embedding and head if they count as layers.
std::vector<ScheduleChoice> schedules_for(const Config& run, int p, int64_t units) {
  if (p == 1) return {{"1f1b", std::nullopt}};  // without a pipeline all schedules are equal
  std::vector<ScheduleChoice> choices;
  for (const ScheduleKind& kind : schedule_kinds()) {
    if (kind.name == "gpipe" && run.parallel.pipeline_schedule != "gpipe") continue;
    if (kind.chunks != Chunks::several) choices.push_back({std::string(kind.name), std::nullopt});
    else
      for (const int64_t v : divisors_of(units / p))
        if (v > 1) choices.push_back({std::string(kind.name), v});
  }
  return choices;
}

}  // namespace

std::vector<LayoutShape> list_shapes(const Config& run, int world) {
  if (!run.batch.global_batch_size)
    throw ConfigError(
        "batch.global_batch_size: is auto, but a search keeps the number of samples per step; expected a number");
  const int ranks = world / run.parallel.context_parallel_size;  // cp is not varied
  std::vector<LayoutShape> shapes;
  const auto add_of_mesh = [&](LayoutShape shape, int64_t units) {
    const int d = ranks / (shape.t * shape.p);
    if (*run.batch.global_batch_size % d != 0) return;
    for (const auto& [kind, v] : schedules_for(run, shape.p, units))
      for (const int64_t size : divisors_of(*run.batch.global_batch_size / d)) {
        shape.schedule = kind, shape.v = v, shape.micro_batch = size;
        shapes.push_back(shape);
      }
  };
  for (const int t : tensor_sizes(run, ranks))
    for (const int64_t p : divisors_of(ranks / t))
      for (const bool ends_count : {false, true}) {
        const int64_t units = run.model.num_layers + (ends_count ? 2 : 0);
        if (units % p != 0 || (ends_count && p == 1)) continue;
        for (const bool sequence_parallel : {false, true}) {
          if (sequence_parallel && t == 1) continue;
          add_of_mesh(
              {.t = t, .p = static_cast<int>(p), .sequence_parallel = sequence_parallel, .ends_count = ends_count},
              units);
        }
      }
  return shapes;
}

std::vector<Recomputing> list_recomputings(int64_t largest) {
  std::vector<Recomputing> all{{}};
  constexpr std::array kModules = {RecomputeModule::core_attn, RecomputeModule::layernorm, RecomputeModule::mlp};
  for (unsigned subset = 1; subset < 1u << kModules.size(); ++subset) {
    Recomputing& selective = all.emplace_back(Recomputing{.granularity = RecomputeGranularity::selective});
    selective.modules.clear();
    for (size_t i = 0; i < kModules.size(); ++i)
      if (subset >> i & 1u) selective.modules.push_back(kModules[i]);
  }
  const auto full = [&](RecomputeMethod method, int64_t layers) {
    all.push_back({.granularity = RecomputeGranularity::full, .method = method, .layers = layers});
  };
  constexpr int64_t kBlocks = 8;  // about this many layer counts are listed
  const int64_t step = (largest + kBlocks - 1) / kBlocks;
  for (int64_t layers = step; layers < largest; layers += step) full(RecomputeMethod::block, layers);
  for (int64_t layers = 1; layers <= largest; layers *= 2) full(RecomputeMethod::uniform, layers);
  return all;
}

std::vector<Sharding> list_shardings(int d) {
  if (d == 1) return {Sharding::no_shard};
  return {Sharding::no_shard, Sharding::optim, Sharding::optim_grads, Sharding::optim_grads_params};
}

LoadedConfig with_layout(const LoadedConfig& run, int ranks, const LayoutShape& shape, const Recomputing& recomputing,
                         Sharding sharding) {
  LoadedConfig loaded = run;
  loaded.left_to_planner.clear();
  mark_as_levels(loaded);
  Config& config = loaded.config;
  ParallelConfig& c = config.parallel;
  c.tensor_model_parallel_size = shape.t, c.pipeline_model_parallel_size = shape.p;
  c.sequence_parallel = shape.sequence_parallel;
  c.decoder_first_pipeline_num_layers = c.decoder_last_pipeline_num_layers = std::nullopt;
  c.account_for_embedding_in_pipeline_split = c.account_for_loss_in_pipeline_split = shape.ends_count;
  c.microbatch_group_size_per_vp_stage.reset();
  c.pipeline_schedule = shape.schedule;
  c.virtual_pipeline_model_parallel_size = shape.v;
  config.batch.micro_batch_size = shape.micro_batch;
  config.model.recompute_granularity = recomputing.granularity;
  config.model.recompute_modules = recomputing.modules;
  config.model.recompute_method = recomputing.method;
  config.model.recompute_num_layers = recomputing.layers;
  c.data_parallel_sharding_strategy = sharding;
  const bool data = shape.t * shape.p < ranks;
  config.overlap = {};
  config.overlap.overlap_grad_reduce = data;
  config.overlap.overlap_param_gather = data && sharding != Sharding::no_shard;
  config.precision.fp8_param_gather &= data && sharding != Sharding::no_shard;
  if (shape.sequence_parallel) config.overlap.tp_comm_overlap = TensorOverlap::bulk;
  c.bucket_size.reset();
  return loaded;
}

std::optional<ResolvedCandidate> resolve_candidate(LoadedConfig asked, const RunFacts& facts) try {
  LoadedConfig resolved = asked;
  Layout layout = resolve(resolved, facts);
  for (const Field& field : fields()) {  // resets those that resolve() dropped
    const auto origin = resolved.origins.find(field.name);
    const bool derived = origin != resolved.origins.end() && origin->second.kind == Origin::derived;
    if (derived && is_default(field, resolved.config)) set_default(field, asked.config);
  }
  return ResolvedCandidate{std::move(asked), std::move(resolved.config), std::move(layout)};
} catch (const ConfigError&) {
  return std::nullopt;
}

std::vector<LoadedConfig> neighbours_of(const ResolvedCandidate& run, std::string_view key) {
  std::vector<LoadedConfig> all;
  for (const auto& [name, sets] : switches_of(run.config, run.layout)) {
    if (sets.size() > 1 || !sets.front().starts_with(fmt::format("{}=", key))) continue;
    Config changed = parse_sets(sets);
    const Field& field = *find_field(key);
    field.copy(field.at(changed), field.at(all.emplace_back(run.open).config));
  }
  return all;
}

}  // namespace trivet
