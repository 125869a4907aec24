#include "tools/plan/bound.h"

#include <algorithm>
#include <numeric>
#include <string_view>

#include "engine/config/fields.h"
#include "engine/config/tool_section.h"
#include "engine/train/rank_state.h"
#include "tools/plan/costs.h"

namespace trivet {
namespace {

constexpr size_t index_of(OpKind kind) { return static_cast<size_t>(kind); }
constexpr bool is_gradient(OpKind kind) { return kind == OpKind::backward || kind == OpKind::backward_input; }

// ---- the work of a pipeline rank

using Counts = std::vector<std::array<int64_t, 4>>;  // ops, by [chunk][OpKind]

struct RankWork {
  RankWork(const Schedule& schedule, int rank);

  Counts all;
  Counts until_last_gradient;  // ops up to the last gradient of a stage's input
  std::vector<int> stages;     // [chunk]
  std::vector<int> slots;      // [chunk]
  int first_stage = 0;         // stage of its first op
  int last_gradient_stage = 0;
};

RankWork::RankWork(const Schedule& schedule, int rank)
    : all(static_cast<size_t>(schedule.v)), until_last_gradient(all), stages(all.size()) {
  const Program& program = schedule.programs[static_cast<size_t>(rank)];
  const auto counted = [](std::span<const Op> ops, Counts& counts) {
    for (const Op& op : ops) ++counts[static_cast<size_t>(op.chunk)][index_of(op.kind)];
  };
  const auto behind = std::find_if(program.rbegin(), program.rend(), [](const Op& op) { return is_gradient(op.kind); });
  counted(program, all);
  counted({program.begin(), behind.base()}, until_last_gradient);
  for (size_t chunk = 0; chunk < stages.size(); ++chunk)
    stages[chunk] = schedule.stage_of(rank, static_cast<int>(chunk));
  slots = plan_slots(program, schedule.v, SlotPool::per_chunk).slots;
  first_stage = stages[static_cast<size_t>(program.front().chunk)];
  last_gradient_stage = stages[static_cast<size_t>(behind->chunk)];
}

// ---- the cost of that work

// The number of a stage's layers that are fully recomputed.
int64_t recomputed_layers(const Recomputing& r, int64_t layers) {
  if (r.granularity != RecomputeGranularity::full) return 0;
  return r.method == RecomputeMethod::block ? std::min(r.layers, layers) : layers;
}

// ends: the costs of embedding and head. plain, recomputed: those of layers without and with full recomputation.
std::vector<PartCost> costs_of_stages(const Layout& layout, const Recomputing& how, const LayoutStageCosts& ends,
                                      const LayoutStageCosts& plain, const LayoutStageCosts& recomputed) {
  std::vector<PartCost> stages;
  const std::vector<int64_t>& layers = layout.layers_of_stage;
  for (size_t s = 0; s < layers.size(); ++s) {
    PartCost& stage = stages.emplace_back(plain.each);
    const int64_t again = recomputed_layers(how, layers[s]);
    stage.add(plain.layer, layers[s] - again);
    PartCost layer = recomputed.layer;
    // A group of recomputed layers saves only one input.
    if (how.method == RecomputeMethod::uniform) layer.slot_bytes /= std::max<int64_t>(how.layers, 1);
    stage.add(layer, again);
    if (s == 0) stage.add(ends.embedding, 1);
    if (s + 1 == layers.size()) stage.add(ends.head, 1);
  }
  return stages;
}

// ns per micro-batch on a pipeline rank's port for the collectives of its layers' gradients and weights.
int64_t streamed_ns(const SystemCosts& costs, const Layout& layout, const RankWork& rank, int pp, DType dtype,
                    Sharding sharding, int64_t elements_of_layer) {
  TapeGroups::Group group;
  group.world_ranks = group_members({{Axis::pp, pp}}, layout.mesh, kGradientAxes);
  if (group.world_ranks.size() == 1 || !streams_grads(sharding)) return 0;
  const auto price = [&](CommCall call, DType type) {
    return costs.call_cost({.kind = call, .bytes = size_of(type) * elements_of_layer}, group).ns;
  };
  int64_t sums = 0, gathers = 0;
  for (const int stage : rank.stages) {
    const int64_t layers = layout.layers_of_stage[static_cast<size_t>(stage)];
    sums += layers;
    // The backward pass may reuse the last weights that the forward pass gathered.
    if (sharding == Sharding::optim_grads_params)
      gathers += layers + std::max<int64_t>(layers - FlatBuffer::kStreamed, 0);
  }
  return sums * price(CommCall::reduce_scatter, DType::f32) + gathers * price(CommCall::all_gather, dtype);
}

int64_t state_bytes(DType dtype, DType gathered, Sharding sharding, int64_t elements, int64_t d) {
  const int64_t of_optimizer = dtype == DType::f32 ? 8 : 12;
  return elements * size_of(gathered) / (sharding == Sharding::optim_grads_params ? d : 1) +
         elements * 4 / (streams_grads(sharding) ? d : 1) +
         elements * of_optimizer / (sharding == Sharding::no_shard ? 1 : d);
}

int64_t passes_ns(const RankWork& rank, const Counts& counts, const std::vector<PartCost>& stages) {
  int64_t ns = 0;
  for (size_t chunk = 0; chunk < counts.size(); ++chunk)
    for (size_t kind = 0; kind < counts[chunk].size(); ++kind)
      ns += counts[chunk][kind] * stages[static_cast<size_t>(rank.stages[chunk])].compute[kind];
  return ns;
}

// [stage]: ns of a micro-batch's forward (or input-gradient) passes in all preceding stages.
std::vector<int64_t> before_stages(const std::vector<PartCost>& stages, bool forward) {
  std::vector<int64_t> before{0};
  for (const PartCost& stage : stages) {
    const auto of = [&](OpKind kind) { return stage.compute[index_of(kind)]; };
    const int64_t half = of(OpKind::backward_input), whole = of(OpKind::backward);
    before.push_back(before.back() + (forward ? of(OpKind::forward) : half > 0 ? std::min(half, whole) : whole));
  }
  return before;
}

}  // namespace

void PartCost::add(const PartCost& other, int64_t times) {
  for (size_t i = 0; i < compute.size(); ++i) compute[i] += times * other.compute[i];
  parameters += times * other.parameters;
  optimizer_bytes += times * other.optimizer_bytes, slot_bytes += times * other.slot_bytes;
}

// ---- probes

namespace {

// Adds the compute stream's work in the second of two recorded steps, because the first also fills tables.
void add_passes(const Tape& tape, const TapeGroups& groups, const SystemCosts& costs, PartCost& stage) {
  std::vector<std::string_view> phases;
  const auto mark = std::ranges::find(tape.records, TapeRecord::mark, &TapeRecord::kind);
  for (const TapeRecord& record : std::span(mark, tape.records.end())) {
    if (record.kind == TapeRecord::begin_phase) phases.emplace_back(tape.works[record.what].name);
    if (record.kind == TapeRecord::end_phase) phases.pop_back();
    if (record.stream != 0) continue;
    int64_t ns = 0;
    if (record.kind == TapeRecord::work) {
      const TapeWork& work = tape.works[record.what];
      ns = costs.work_ns(work, record.in_graph);
      if (phases.empty() && work.category == Category::optimizer) stage.optimizer_bytes += work.bytes;
    } else if (record.kind == TapeRecord::call) {
      const TapeCall& call = tape.calls[record.what];
      ns = costs.call_cost(call, groups[tape.groups[static_cast<size_t>(call.group)]]).ns;
    }
    for (const OpKind kind : {OpKind::forward, OpKind::backward, OpKind::backward_input, OpKind::backward_weight})
      if (!phases.empty() && phases.front() == letter_of(kind)) stage.compute[index_of(kind)] += ns;
  }
}

}  // namespace

Bounds::Bounds(const LoadedConfig& run, const System& system)
    : run_(run), system_(system), costs_(system, plan_of(run.config)) {
  check_is_priced(run.config, system);
  const ToolSection* const director = directing_section(run.config);
  if (!director) return;
  for (const Field& field : fields())
    if (field.section() == director->name) set_default(field, run_.config);
  run_.config.train.eval_interval = 1;  // no longer derived from the rules
}

// Records one stage of a three-stage pipeline: the middle stage has `middle_layers` layers, the outer two one each.
PartCost Bounds::record_stage(Fp8 fp8, const LayoutShape& shape, const Recomputing& how, bool halves,
                              int64_t middle_layers, int pp, int64_t& scratch_bytes) const {
  const int ranks = 3 * shape.t * run_.config.parallel.context_parallel_size;
  const auto run_of = [&](int64_t micro_batches) {
    const LayoutShape three{.t = shape.t,
                            .p = 3,
                            .sequence_parallel = shape.sequence_parallel,
                            .schedule = halves ? "zb-h1" : "1f1b",
                            .micro_batch = shape.micro_batch};
    LoadedConfig loaded = with_layout(run_, ranks, three, how, Sharding::no_shard);
    Config& config = loaded.config;
    config.model.num_layers = middle_layers + 2;
    config.precision.fp8 = fp8, config.precision.first_last_layers_bf16 = false;
    if (middle_layers > 1)
      config.parallel.decoder_first_pipeline_num_layers = config.parallel.decoder_last_pipeline_num_layers = 1;
    config.batch.global_batch_size = shape.micro_batch * micro_batches;
    Layout layout = resolve(loaded, {.world_size = ranks, .dataset_vocab_size = loaded.config.model.vocab_size});
    return ResolvedCandidate{{}, std::move(loaded.config), std::move(layout)};
  };
  const auto bytes_of = [](const MemoryPlan& plan, std::string_view name) {
    const auto item = std::ranges::find(plan.items, name, &MemoryItem::name);
    return item == plan.items.end() ? 0 : item->bytes;
  };
  const ResolvedCandidate one = run_of(1);
  const MeshPosition at{{Axis::pp, pp}};
  const std::unique_ptr<Device> device = create_planning_device();
  const RankState state(one.config, one.layout, at, *device);
  const MemoryPlan memory = state.memory();
  PartCost stage;
  for (const Param& param : state.params.all()) stage.parameters += param.shape.numel();
  if (pp == 1) {  // the middle stage has one slot per micro-batch, and the least scratch memory
    scratch_bytes = bytes_of(memory, "scratch");
    const ResolvedCandidate two = run_of(2);
    stage.slot_bytes =
        bytes_of(plan_memory(two.config, two.layout, at), "activations") - bytes_of(memory, "activations");
  }
  const auto add_step = [&](const ResolvedCandidate& run, PartCost& to) {
    TapeGroups groups;
    const Tape tape = record_tape(run.config, run.layout, rank_of(at, run.layout.mesh), groups, {.steps = 2});
    add_passes(tape, groups, costs_, to);
  };
  add_step(one, stage);
  if (fp8 == Fp8::none) return stage;
  // The first micro-batch quantises the weights for all of them, so use the second's forward pass.
  PartCost both;
  add_step(run_of(2), both);
  int64_t& forward = stage.compute[index_of(OpKind::forward)];
  forward = both.compute[index_of(OpKind::forward)] - forward;
  return stage;
}

LayoutStageCosts Bounds::probe(const LayoutShape& shape, const Recomputing& how, bool halves) const {
  const PrecisionConfig& precision = run_.config.precision;
  LayoutStageCosts costs = probe_in(precision.fp8, shape, how, halves);
  if (!precision.first_last_layers_bf16) return costs;
  // Ignores which stages use bf16 layers: each pass of a layer is priced at the cheaper of the two.
  const LayoutStageCosts bf16 = probe_in(Fp8::none, shape, how, halves);
  for (size_t kind = 0; kind < costs.layer.compute.size(); ++kind)
    costs.layer.compute[kind] = std::min(costs.layer.compute[kind], bf16.layer.compute[kind]);
  return costs;
}

// halves: also records backward passes split into input and weight gradients.
LayoutStageCosts Bounds::probe_in(Fp8 fp8, const LayoutShape& shape, const Recomputing& how, bool halves) const {
  LayoutStageCosts costs;
  const auto record = [&](int64_t middle_layers, int pp) {
    PartCost stage = record_stage(fp8, shape, how, false, middle_layers, pp, costs.scratch_bytes);
    if (!halves) return stage;
    const PartCost halved = record_stage(fp8, shape, how, true, middle_layers, pp, costs.scratch_bytes);
    for (const OpKind half : {OpKind::backward_input, OpKind::backward_weight})
      stage.compute[index_of(half)] = halved.compute[index_of(half)];
    return stage;
  };
  const PartCost middle = record(1, 1);
  costs.layer = record(2, 1), costs.layer.add(middle, -1);
  costs.each = middle, costs.each.add(costs.layer, -1);
  if (how == Recomputing{}) {
    costs.embedding = record(1, 0), costs.embedding.add(middle, -1);
    costs.head = record(1, 2), costs.head.add(middle, -1);
    // A rank may hold both the embedding and the head, which then share one table.
    if (!run_.config.model.untie_embeddings_and_output_weights) costs.head.parameters = costs.head.optimizer_bytes = 0;
  }
  // Boundary buffers also grow with the micro-batches, but are not slots.
  costs.each.slot_bytes = costs.embedding.slot_bytes = costs.head.slot_bytes = 0;
  return costs;
}

const LayoutStageCosts& Bounds::stage_costs(const LayoutShape& shape, const Recomputing& how, bool halves) {
  const Key key{shape.t, shape.sequence_parallel, shape.micro_batch, how.granularity, how.modules, halves};
  {
    const std::lock_guard lock(mutex_);
    if (const auto known = probed_.find(key); known != probed_.end()) return *known->second;
  }
  auto probed = std::make_unique<LayoutStageCosts>(probe(shape, how, halves));
  const std::lock_guard lock(mutex_);
  return *probed_.try_emplace(key, std::move(probed)).first->second;
}

std::vector<std::vector<LayoutBound>> Bounds::of(const LayoutShape& shape, const ResolvedCandidate& legal,
                                                 const std::vector<Recomputing>& recomputings,
                                                 const std::vector<Sharding>& shardings) {
  const Layout& layout = legal.layout;
  const int p = layout.schedule.p, d = layout.mesh.size(kGradientAxes);
  const DType dtype = legal.config.precision.dtype;
  // A lower bound, because some weights of a layer, and some whole layers, stay in the model's type.
  const DType gathered = run_.config.precision.fp8_param_gather ? DType::e4m3 : dtype;
  std::vector<RankWork> ranks;
  for (int rank = 0; rank < p; ++rank) ranks.emplace_back(layout.schedule, rank);
  const auto halved = [](const Op& op) { return op.kind == OpKind::backward_weight; };
  const bool halves = std::ranges::any_of(layout.schedule.programs.front(), halved);
  const LayoutStageCosts& none = stage_costs(shape, {}, halves);
  const std::vector<PartCost> bare = costs_of_stages(layout, {}, none, none, none);
  std::vector<std::vector<int64_t>> streamed(shardings.size());  // [sharding][rank]
  for (size_t i = 0; i < shardings.size(); ++i)
    for (int rank = 0; rank < p; ++rank)
      streamed[i].push_back(streamed_ns(costs_, layout, ranks[static_cast<size_t>(rank)], rank, gathered, shardings[i],
                                        none.layer.parameters));
  const Recomputing each_layer{
      .granularity = RecomputeGranularity::full, .method = RecomputeMethod::uniform, .layers = 1};
  std::vector<std::vector<LayoutBound>> bounds;
  for (const Recomputing& how : recomputings) {
    std::vector<LayoutBound>& by_sharding = bounds.emplace_back(shardings.size());
    const bool full = how.granularity == RecomputeGranularity::full;
    const LayoutStageCosts& plain = full ? none : stage_costs(shape, how, halves);
    const LayoutStageCosts& again = full ? stage_costs(shape, each_layer, halves) : none;
    const std::vector<PartCost> stages = costs_of_stages(layout, how, none, plain, again);
    const std::vector<int64_t> forward = before_stages(stages, true), backward = before_stages(stages, false);
    const auto sum_of_stages = [&](const RankWork& rank) {
      PartCost sum;
      for (const int stage : rank.stages) sum.add(stages[static_cast<size_t>(stage)], 1);
      return sum;
    };
    const auto first = static_cast<size_t>(layout.schedule.rank_of(0));
    const int64_t optimizer_bytes = sum_of_stages(ranks[first]).optimizer_bytes;
    int64_t longest = 0;  // ns of the busiest rank's passes so far
    for (size_t r = 0; r < ranks.size(); ++r) {
      const RankWork& rank = ranks[r];
      const PartCost sum = sum_of_stages(rank);
      int64_t activations = 0;
      for (size_t chunk = 0; chunk < rank.stages.size(); ++chunk)
        activations += rank.slots[chunk] * stages[static_cast<size_t>(rank.stages[chunk])].slot_bytes;
      const int64_t passes = passes_ns(rank, rank.all, stages);
      const int64_t chain = forward[static_cast<size_t>(rank.first_stage)] +
                            std::max(passes, passes_ns(rank, rank.until_last_gradient, stages) +
                                                 backward[static_cast<size_t>(rank.last_gradient_stage)]);
      const bool is_longest = passes >= longest;
      longest = std::max(longest, passes);
      for (size_t i = 0; i < shardings.size(); ++i) {
        LayoutBound& bound = by_sharding[i];
        const auto bytes = static_cast<double>(optimizer_bytes / (shardings[i] == Sharding::no_shard ? 1 : d));
        const double optimizer = memory_seconds(system_, bytes) - memory_seconds(system_, 0);
        bound.seconds = std::max({bound.seconds, optimizer + 1e-9 * static_cast<double>(chain),
                                  1e-9 * static_cast<double>(layout.micro_batches * streamed[i][r])});
        bound.memory_bytes =
            std::max(bound.memory_bytes,
                     state_bytes(dtype, gathered, shardings[i], sum.parameters, d) + activations + plain.scratch_bytes);
        if (is_longest)
          bound.recompute_share =
              1 - static_cast<double>(std::min(passes, passes_ns(rank, rank.all, bare))) / static_cast<double>(passes);
      }
    }
  }
  return bounds;
}

}  // namespace trivet
