#include "tools/plan/candidates.h"

#include <algorithm>
#include <utility>

#include "engine/config/fields.h"

namespace trivet {
namespace {

// The run's values of the keys that are varied count as levels of a study: what has no effect beside them is left out.
void mark_as_levels(LoadedConfig& loaded, const SearchAxes& vary) {
  const auto mark = [&](bool varied, std::initializer_list<const char*> keys) {
    for (const char* key : keys)
      if (varied) loaded.origins[key] = {Origin::level, "--search"};
  };
  mark(vary.mesh,
       {"parallel.tensor_model_parallel_size", "parallel.pipeline_model_parallel_size", "parallel.sequence_parallel",
        "parallel.decoder_first_pipeline_num_layers", "parallel.decoder_last_pipeline_num_layers",
        "parallel.account_for_embedding_in_pipeline_split", "parallel.account_for_loss_in_pipeline_split"});
  mark(vary.schedule, {"parallel.pipeline_schedule"});
  mark(vary.chunks, {"parallel.virtual_pipeline_model_parallel_size"});
  mark(vary.micro_batch, {"batch.micro_batch_size"});
  mark(vary.recompute, {"model.recompute_granularity", "model.recompute_modules", "model.recompute_method",
                        "model.recompute_num_layers"});
  mark(vary.sharding, {"parallel.data_parallel_sharding_strategy"});
  if (!vary.switches) return;
  for (const Field& field : fields())
    if (field.section() == "overlap" || field.name == "parallel.bucket_size")
      loaded.origins[std::string(field.name)] = {Origin::level, "--search"};
}

std::vector<int64_t> divisors_of(int64_t n) {
  std::vector<int64_t> divisors;
  for (int64_t i = 1; i <= n; ++i)
    if (n % i == 0) divisors.push_back(i);
  return divisors;
}

std::vector<int> tensor_sizes(const Config& run, int ranks, const SearchAxes& vary) {
  const int of_run = run.parallel.tensor_model_parallel_size;
  if (!vary.mesh) return {of_run};
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

// stage_layers: what is split over the stages.
std::vector<ScheduleChoice> schedules_for(const Config& run, int p, int64_t units, const SearchAxes& vary) {
  const ParallelConfig& own = run.parallel;
  std::vector<ScheduleChoice> choices;
  const auto add = [&](const ScheduleKind& kind) {
    const std::string name(kind.name);
    const bool same = name == own.pipeline_schedule;
    if (!vary.chunks && (same || kind.chunks == Chunks::several))
      return choices.push_back({name, own.virtual_pipeline_model_parallel_size});
    if (kind.chunks != Chunks::several) return choices.push_back({name, std::nullopt});
    for (const int64_t v : divisors_of(units / p))
      if (v > 1) choices.push_back({name, v});
  };
  const std::span<const ScheduleKind> kinds = schedule_kinds();
  const auto kind_of = [&](std::string_view name) { return std::ranges::find(kinds, name, &ScheduleKind::name); };
  if (!vary.schedule) {
    if (const auto own_kind = kind_of(own.pipeline_schedule); own_kind != kinds.end()) add(*own_kind);
    else choices.push_back({own.pipeline_schedule, own.virtual_pipeline_model_parallel_size});  // a file
  } else if (p == 1) {
    choices.push_back({"1f1b", std::nullopt});  // without a pipeline all are alike
  } else {
    for (const ScheduleKind& kind : kinds)
      if (kind.name != "gpipe" || own.pipeline_schedule == "gpipe") add(kind);
  }
  return choices;
}

}  // namespace

std::vector<LayoutShape> list_shapes(const Config& run, int ranks, const SearchAxes& vary) {
  if (!run.batch.global_batch_size && (vary.mesh || vary.micro_batch))
    throw ConfigError(
        "batch.global_batch_size: is auto, but a search of layouts keeps the samples of a step; expected a number");
  const ParallelConfig& own = run.parallel;
  std::vector<LayoutShape> shapes;
  const auto add_of_mesh = [&](const LayoutShape& mesh) {
    const int d = ranks / (mesh.t * mesh.p);
    const int64_t batch = run.batch.global_batch_size.value_or(0);
    const int64_t units = run.model.num_layers + (mesh.ends_count ? 2 : 0);
    std::vector<int64_t> sizes{run.batch.micro_batch_size};
    if (vary.micro_batch) sizes = batch % d == 0 ? divisors_of(batch / d) : std::vector<int64_t>{};
    for (const auto& [kind, v] : schedules_for(run, mesh.p, units, vary))
      for (const int64_t size : sizes) {
        LayoutShape& shape = shapes.emplace_back(mesh);
        shape.schedule = kind, shape.v = v, shape.micro_batch = size;
      }
  };
  for (const int t : tensor_sizes(run, ranks, vary))
    for (const int64_t p : vary.mesh ? divisors_of(ranks / t) : std::vector<int64_t>{own.pipeline_model_parallel_size})
      for (const bool ends_count : {false, true}) {
        const bool splits = (run.model.num_layers + (ends_count ? 2 : 0)) % p == 0;
        if (vary.mesh ? !splits || (ends_count && p == 1) : ends_count || ranks % (t * p) != 0) continue;
        LayoutShape mesh{.t = t, .p = static_cast<int>(p), .ends_count = ends_count};
        for (const bool sequence_parallel : {false, true}) {
          if (vary.mesh ? sequence_parallel && t == 1 : sequence_parallel != own.sequence_parallel) continue;
          mesh.sequence_parallel = sequence_parallel;
          add_of_mesh(mesh);
        }
      }
  return shapes;
}

std::vector<Recomputing> list_recomputings(const Config& run, int64_t largest, const SearchAxes& vary) {
  const ModelConfig& m = run.model;
  if (!vary.recompute)
    return {{m.recompute_granularity, m.recompute_modules, m.recompute_method, m.recompute_num_layers}};
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
  constexpr int64_t kBlocks = 8;  // about so many numbers of layers
  const int64_t step = (largest + kBlocks - 1) / kBlocks;
  for (int64_t layers = step; layers < largest; layers += step) full(RecomputeMethod::block, layers);
  for (int64_t layers = 1; layers <= largest; layers *= 2) full(RecomputeMethod::uniform, layers);
  return all;
}

std::vector<Sharding> list_shardings(const Config& run, int d, const SearchAxes& vary) {
  if (!vary.sharding) return {run.parallel.data_parallel_sharding_strategy};
  if (d == 1) return {Sharding::no_shard};
  return {Sharding::no_shard, Sharding::optim, Sharding::optim_grads, Sharding::optim_grads_params};
}

LoadedConfig with_layout(const LoadedConfig& run, int ranks, const LayoutShape& shape, const Recomputing& recomputing,
                         Sharding sharding, const SearchAxes& vary) {
  LoadedConfig loaded = run;
  mark_as_levels(loaded, vary);
  Config& config = loaded.config;
  ParallelConfig& c = config.parallel;
  c.tensor_model_parallel_size = shape.t, c.pipeline_model_parallel_size = shape.p;
  c.sequence_parallel = shape.sequence_parallel;
  if (vary.mesh) {
    c.decoder_first_pipeline_num_layers = c.decoder_last_pipeline_num_layers = std::nullopt;
    c.account_for_embedding_in_pipeline_split = c.account_for_loss_in_pipeline_split = shape.ends_count;
  }
  if (vary.mesh || vary.schedule || vary.chunks || vary.micro_batch) c.microbatch_group_size_per_vp_stage.reset();
  c.pipeline_schedule = shape.schedule;
  c.virtual_pipeline_model_parallel_size = shape.v;
  config.batch.micro_batch_size = shape.micro_batch;
  config.model.recompute_granularity = recomputing.granularity;
  config.model.recompute_modules = recomputing.modules;
  config.model.recompute_method = recomputing.method;
  config.model.recompute_num_layers = recomputing.layers;
  c.data_parallel_sharding_strategy = sharding;
  if (!vary.switches) return loaded;
  const bool data = shape.t * shape.p < ranks;
  config.overlap = {};
  config.overlap.overlap_grad_reduce = data;
  config.overlap.overlap_param_gather = data && sharding != Sharding::no_shard;
  if (shape.sequence_parallel) config.overlap.tp_comm_overlap = TensorOverlap::bulk;
  c.bucket_size.reset();
  return loaded;
}

std::optional<ResolvedCandidate> resolve_candidate(LoadedConfig asked, const RunFacts& facts) try {
  LoadedConfig resolved = asked;
  Layout layout = resolve(resolved, facts);
  for (const Field& field : fields()) {  // what resolve() left out
    const auto origin = resolved.origins.find(field.name);
    if (origin == resolved.origins.end() || origin->second.kind != Origin::derived) continue;
    Config by_default;
    if (format_field(field, resolved.config) == format_field(field, by_default))
      field.copy(field.at(by_default), field.at(asked.config));
  }
  return ResolvedCandidate{std::move(asked), std::move(resolved.config), std::move(layout)};
} catch (const ConfigError&) {
  return std::nullopt;
}

std::vector<LoadedConfig> neighbours_of(const ResolvedCandidate& run) {
  std::vector<LoadedConfig> all;
  const auto changed = [&](auto&& change) {
    LoadedConfig& next = all.emplace_back(run.open);
    change(next.config);
  };
  const auto flipped = [&](bool OverlapConfig::*which) {
    changed([&](Config& c) { c.overlap.*which = !(c.overlap.*which); });
  };
  const OverlapConfig& now = run.config.overlap;
  for (const TensorOverlap mode :
       {TensorOverlap::none, TensorOverlap::bulk, TensorOverlap::ring, TensorOverlap::pipeline})
    if (mode != now.tp_comm_overlap) changed([&](Config& c) { c.overlap.tp_comm_overlap = mode; });
  for (bool OverlapConfig::*which :
       {&OverlapConfig::defer_embedding_wgrad_compute, &OverlapConfig::align_grad_reduce,
        &OverlapConfig::align_param_gather, &OverlapConfig::overlap_grad_reduce, &OverlapConfig::overlap_param_gather})
    flipped(which);
  for (const int count : {1, 2, 4})
    if (count != now.collectives_in_flight) changed([&](Config& c) { c.overlap.collectives_in_flight = count; });
  const int64_t bucket = *run.config.parallel.bucket_size;
  for (const int64_t size : {bucket / 4, bucket * 4})
    if (size > 0) changed([&](Config& c) { c.parallel.bucket_size = size; });
  return all;
}

}  // namespace trivet
