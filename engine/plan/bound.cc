#include "engine/plan/bound.h"

#include <algorithm>
#include <numeric>
#include <string_view>

#include "engine/plan/costs.h"
#include "engine/train/rank_state.h"

namespace trivet {
namespace {

constexpr size_t index_of(OpKind kind) { return static_cast<size_t>(kind); }
constexpr bool is_gradient(OpKind kind) { return kind == OpKind::backward || kind == OpKind::backward_input; }
constexpr bool is_last(OpKind kind) { return kind == OpKind::backward || kind == OpKind::backward_weight; }

// ---- what a pipeline rank does

using Counts = std::vector<std::array<int64_t, 4>>;  // ops, by [chunk][OpKind]

struct RankWork {
  explicit RankWork(const Schedule& schedule, int rank);

  Counts all;
  Counts before_gathered;      // until the pass that waits for the last gather of a weight has ended
  Counts until_last_gradient;  // until the last gradient of a stage's input is known
  Counts from_first_sum;       // from the pass on whose gradients are the first to be summed over replicas
  int first_stage = 0;         // of its first op
  int last_gradient_stage = 0;
  std::vector<int> slots;  // [chunk]
};

RankWork::RankWork(const Schedule& schedule, int rank) {
  const Program& program = schedule.programs[static_cast<size_t>(rank)];
  const auto chunks = static_cast<size_t>(schedule.v);
  std::vector<size_t> first_forward(chunks, program.size()), last_backward(chunks, 0);
  size_t last_gradient = 0;
  for (size_t i = 0; i < program.size(); ++i) {
    const auto chunk = static_cast<size_t>(program[i].chunk);
    if (program[i].kind == OpKind::forward) first_forward[chunk] = std::min(first_forward[chunk], i);
    if (is_last(program[i].kind)) last_backward[chunk] = i;
    if (is_gradient(program[i].kind)) last_gradient = i;
  }
  const size_t gathered = std::ranges::max(first_forward), first_sum = std::ranges::min(last_backward);
  for (Counts* counts : {&all, &before_gathered, &until_last_gradient, &from_first_sum}) counts->resize(chunks);
  for (size_t i = 0; i < program.size(); ++i) {
    const auto chunk = static_cast<size_t>(program[i].chunk);
    const size_t kind = index_of(program[i].kind);
    ++all[chunk][kind];
    if (i <= gathered) ++before_gathered[chunk][kind];
    if (i <= last_gradient) ++until_last_gradient[chunk][kind];
    if (i >= first_sum) ++from_first_sum[chunk][kind];
  }
  first_stage = schedule.stage_of(rank, program.front().chunk);
  last_gradient_stage = schedule.stage_of(rank, program[last_gradient].chunk);
  slots = plan_slots(program, schedule.v, SlotPool::per_chunk).slots;
}

// ---- what it costs

// Layers of a stage that are recomputed as a whole.
int64_t recomputed_layers(const Recomputing& r, int64_t layers) {
  if (r.granularity != RecomputeGranularity::full) return 0;
  return r.method == RecomputeMethod::block ? std::min(r.layers, layers) : layers;
}

// plain, recomputed: of layers that are, in a full recomputation, not and are recomputed.
std::vector<PartCost> costs_of_stages(const Layout& layout, const Recomputing& how, const StageCosts& plain,
                                      const StageCosts& recomputed) {
  std::vector<PartCost> stages;
  const std::vector<int64_t>& layers = layout.layers_of_stage;
  for (size_t s = 0; s < layers.size(); ++s) {
    PartCost& stage = stages.emplace_back(plain.each);
    const int64_t again = recomputed_layers(how, layers[s]);
    stage.add(plain.layer, layers[s] - again);
    PartCost layer = recomputed.layer;
    // The layers of a group share one input.
    if (how.method == RecomputeMethod::uniform) layer.slot_bytes /= std::max<int64_t>(how.layers, 1);
    stage.add(layer, again);
    if (s == 0) stage.add(plain.embedding, 1);
    if (s + 1 == layers.size()) stage.add(plain.head, 1);
  }
  return stages;
}

// The collectives of a rank's gradients and weights in a step: ns.
struct DataCosts {
  int64_t sum = 0, gather = 0;  // once a step, at its end and at its beginning
  int64_t streamed = 0;         // with the passes
};

class DataParallelPrices {
 public:
  DataParallelPrices(const SystemCosts& costs, const Layout& layout, int pp, DType dtype)
      : costs_(costs), dtype_(dtype), layout_(layout) {
    group_.world_ranks = group_members({{Axis::pp, pp}}, layout.mesh, kGradientAxes);
  }
  // elements: of the rank's parameters, and of those of each layer; layers: of each chunk.
  DataCosts of(Sharding sharding, int64_t elements, int64_t of_layer, const std::vector<int64_t>& layers) const {
    DataCosts data;
    if (group_.world_ranks.size() == 1) return data;
    const int64_t element = size_of(dtype_);
    if (sharding == Sharding::no_shard) data.sum = price(CommCall::all_reduce, 4 * elements);
    if (sharding == Sharding::optim) data.sum = price(CommCall::reduce_scatter, 4 * elements);
    if (sharding == Sharding::optim || sharding == Sharding::optim_grads)
      data.gather = price(CommCall::all_gather, element * elements);
    if (!streams_grads(sharding)) return data;
    const int64_t sum = price(CommCall::reduce_scatter, 4 * of_layer);
    const int64_t gather =
        sharding == Sharding::optim_grads_params ? price(CommCall::all_gather, element * of_layer) : 0;
    for (const int64_t n : layers)  // two buffers: what a forward pass has gathered last, its backward pass has
      data.streamed += layout_.micro_batches *
                       (n * sum + (n + std::max<int64_t>(n - FlatBuffer::kStreamed, 0)) * gather);
    return data;
  }

 private:
  int64_t price(CommCall call, int64_t bytes) const {
    return costs_.call_cost({.kind = call, .bytes = bytes}, group_).ns;
  }
  const SystemCosts& costs_;
  const DType dtype_;
  const Layout& layout_;
  TapeGroups::Group group_;
};

int64_t state_bytes(DType dtype, Sharding sharding, int64_t elements, int64_t d) {
  const int64_t of_optimizer = dtype == DType::f32 ? 8 : 12;
  return elements * size_of(dtype) / (sharding == Sharding::optim_grads_params ? d : 1) +
         elements * 4 / (streams_grads(sharding) ? d : 1) +
         elements * of_optimizer / (sharding == Sharding::no_shard ? 1 : d);
}

// The chains of one layout.
class Chains {
 public:
  // shared: what the first and the last stage hold once where one rank has both.
  Chains(const Layout& layout, const std::vector<RankWork>& ranks, std::vector<PartCost> stages, const PartCost& shared,
         int64_t layer_parameters)
      : layout_(layout),
        ranks_(ranks),
        stages_(std::move(stages)),
        shared_(shared),
        layer_parameters_(layer_parameters),
        forward_(stages_.size() + 1),
        backward_(stages_.size() + 1) {
    for (size_t s = 0; s < stages_.size(); ++s) {
      const auto ns = [&](OpKind kind) { return stages_[s].compute[index_of(kind)]; };
      const int64_t half = ns(OpKind::backward_input), whole = ns(OpKind::backward);
      forward_[s + 1] = forward_[s] + ns(OpKind::forward);
      backward_[s + 1] = backward_[s] + (half > 0 ? std::min(half, whole) : whole);
    }
  }

  int64_t passes(int rank, const Counts& counts) const {
    int64_t ns = 0;
    for (size_t chunk = 0; chunk < counts.size(); ++chunk)
      for (size_t kind = 0; kind < counts[chunk].size(); ++kind)
        ns += counts[chunk][kind] * stage(rank, chunk).compute[kind];
    return ns;
  }
  // All stages of the rank, a pass of each.
  PartCost sum(int rank) const {
    PartCost sum;
    for (size_t chunk = 0; chunk < static_cast<size_t>(layout_.schedule.v); ++chunk) sum.add(stage(rank, chunk), 1);
    const int last = layout_.schedule.stages() - 1;
    if (layout_.schedule.rank_of(0) == rank && layout_.schedule.rank_of(last) == rank) sum.add(shared_, -1);
    return sum;
  }
  int64_t layer_parameters() const { return layer_parameters_; }
  int64_t activations(int rank) const {
    int64_t bytes = 0;
    const std::vector<int>& slots = ranks_[static_cast<size_t>(rank)].slots;
    for (size_t chunk = 0; chunk < slots.size(); ++chunk) bytes += slots[chunk] * stage(rank, chunk).slot_bytes;
    return bytes;
  }
  // optimizer: of the first rank and of this one.
  int64_t longest(int rank, const DataCosts& data, int64_t first_optimizer, int64_t own_optimizer) const {
    const RankWork& work = ranks_[static_cast<size_t>(rank)];
    const int64_t all = passes(rank, work.all);
    const int64_t to_the_end = std::max(
        {all, passes(rank, work.until_last_gradient) + backward_[static_cast<size_t>(work.last_gradient_stage)],
         all - passes(rank, work.from_first_sum) + data.sum});
    const int64_t through_first = first_optimizer + forward_[static_cast<size_t>(work.first_stage)] + to_the_end;
    const int64_t through_gathers =
        own_optimizer + data.gather + to_the_end - passes(rank, work.before_gathered);
    return std::max({through_first, through_gathers, data.streamed, layout_.micro_batches * sum(rank).host});
  }

 private:
  const PartCost& stage(int rank, size_t chunk) const {
    return stages_[static_cast<size_t>(layout_.schedule.stage_of(rank, static_cast<int>(chunk)))];
  }
  const Layout& layout_;
  const std::vector<RankWork>& ranks_;
  const std::vector<PartCost> stages_;
  const PartCost shared_;
  const int64_t layer_parameters_;
  std::vector<int64_t> forward_, backward_;  // [stage]: of a micro-batch in the stages before
};

}  // namespace

void PartCost::add(const PartCost& other, int64_t times) {
  for (size_t i = 0; i < compute.size(); ++i) compute[i] += times * other.compute[i];
  host += times * other.host, parameters += times * other.parameters;
  optimizer_bytes += times * other.optimizer_bytes, slot_bytes += times * other.slot_bytes;
}

// ---- probes

namespace {

// Adds what the last of two recorded steps of one micro-batch has on the compute stream. The first fills tables.
void add_passes(const Tape& tape, const TapeGroups& groups, const SystemCosts& costs, PartCost& stage) {
  std::vector<std::string_view> phases;
  const auto mark = std::ranges::find(tape.records, TapeRecord::mark, &TapeRecord::kind);
  for (const TapeRecord& record : std::span(mark, tape.records.end())) {
    if (record.kind == TapeRecord::begin_phase) phases.emplace_back(tape.works[record.what].name);
    if (record.kind == TapeRecord::end_phase) phases.pop_back();
    if (!phases.empty() && !record.in_graph) stage.host += costs.host_ns(record);
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

// The first, middle and last of three stages. Those at the ends have one layer.
std::array<PartCost, 3> Bounds::record_stages(const LayoutShape& shape, const Recomputing& how, bool halves,
                                              int64_t middle_layers, int64_t& scratch_bytes) const {
  const int ranks = 3 * shape.t;
  const auto run_of = [&](int64_t micro_batches) {
    const LayoutShape three{.t = shape.t,
                            .p = 3,
                            .sequence_parallel = shape.sequence_parallel,
                            .schedule = halves ? "zb-h1" : "1f1b",
                            .micro_batch = shape.micro_batch};
    SearchAxes vary = vary_;
    vary.mesh = vary.schedule = vary.chunks = vary.micro_batch = vary.recompute = vary.sharding = true;
    LoadedConfig loaded = with_layout(run_, ranks, three, how, Sharding::no_shard, vary);
    Config& config = loaded.config;
    config.model.num_layers = middle_layers + 2;
    if (middle_layers > 1)
      config.parallel.decoder_first_pipeline_num_layers = config.parallel.decoder_last_pipeline_num_layers = 1;
    config.batch.global_batch_size = shape.micro_batch * micro_batches;
    Layout layout = resolve(loaded, {.world_size = ranks, .dataset_vocab_size = loaded.config.model.vocab_size});
    return LegalRun{{}, std::move(loaded.config), std::move(layout)};
  };
  const auto bytes_of = [](const MemoryPlan& plan, std::string_view name) {
    const auto item = std::ranges::find(plan.items, name, &MemoryItem::name);
    return item == plan.items.end() ? 0 : item->bytes;
  };
  const LegalRun one = run_of(1), two = run_of(2);
  std::array<PartCost, 3> stages;
  for (int pp = 0; pp < 3; ++pp) {
    const MeshPosition at{{Axis::pp, pp}};
    PartCost& stage = stages[static_cast<size_t>(pp)];
    const std::unique_ptr<Device> device = create_planning_device();
    const RankState state(one.config, one.layout, at, *device);
    for (const Param& param : state.params.all()) stage.parameters += param.shape.numel();
    const MemoryPlan memory = state.memory();
    scratch_bytes = bytes_of(memory, "scratch");
    stage.slot_bytes =
        bytes_of(plan_memory(two.config, two.layout, at), "activations") - bytes_of(memory, "activations");
    TapeGroups groups;
    const Tape tape = record_tape(one.config, one.layout, rank_of(at, one.layout.mesh), groups, {.steps = 2});
    add_passes(tape, groups, costs_, stage);
  }
  return stages;
}

// halves: with those of backward passes, beside the whole ones.
StageCosts Bounds::probe(const LayoutShape& shape, const Recomputing& how, bool halves) const {
  StageCosts costs;
  const auto record = [&](bool halved, int64_t layers) {
    return record_stages(shape, how, halved, layers, costs.scratch_bytes);
  };
  auto one = record(false, 1);
  PartCost two = record(false, 2)[1];
  if (halves) {
    const auto halves_of_one = record(true, 1);
    for (const OpKind half : {OpKind::backward_input, OpKind::backward_weight}) {
      for (size_t i = 0; i < one.size(); ++i) one[i].compute[index_of(half)] = halves_of_one[i].compute[index_of(half)];
      two.compute[index_of(half)] = record(true, 2)[1].compute[index_of(half)];
    }
  }
  const auto& [first, middle, last] = one;
  costs.layer = two, costs.each = middle, costs.embedding = first, costs.head = last;
  costs.layer.add(middle, -1), costs.each.add(costs.layer, -1);
  costs.embedding.add(middle, -1), costs.head.add(middle, -1);
  // Boundary buffers, which are no slots, depend on micro-batches, too.
  costs.each.slot_bytes = costs.embedding.slot_bytes = costs.head.slot_bytes = 0;
  return costs;
}

const StageCosts& Bounds::stage_costs(const LayoutShape& shape, const Recomputing& how, bool halves) {
  const Key key{shape.t, shape.sequence_parallel, shape.micro_batch, how.granularity, how.modules, halves};
  {
    const std::lock_guard lock(mutex_);
    if (const auto known = probed_.find(key); known != probed_.end()) return *known->second;
  }
  auto probed = std::make_unique<StageCosts>(probe(shape, how, halves));
  const std::lock_guard lock(mutex_);
  return *probed_.try_emplace(key, std::move(probed)).first->second;
}

std::vector<std::vector<LayoutBound>> Bounds::of(const LayoutShape& shape, const LegalRun& legal,
                                                 const std::vector<Recomputing>& recomputings,
                                                 const std::vector<Sharding>& shardings) {
  const Layout& layout = legal.layout;
  const Config& config = legal.config;
  const int p = layout.schedule.p, d = layout.mesh.size(kGradientAxes);
  const DType dtype = config.precision.dtype;
  std::vector<RankWork> ranks;
  std::vector<DataParallelPrices> data_prices;
  for (int rank = 0; rank < p; ++rank) {
    ranks.emplace_back(layout.schedule, rank);
    data_prices.emplace_back(costs_, layout, rank, dtype);
  }
  const auto halved = [](const std::array<int64_t, 4>& counts) {
    return counts[index_of(OpKind::backward_weight)] > 0;
  };
  const bool halves = std::ranges::any_of(ranks, [&](const RankWork& rank) { return std::ranges::any_of(rank.all, halved); });
  const auto optimizer_ns = [&](const PartCost& rank, Sharding sharding) {
    const double bytes = static_cast<double>(rank.optimizer_bytes) / (sharding == Sharding::no_shard ? 1 : d);
    return static_cast<int64_t>((memory_seconds(system_, bytes) - memory_seconds(system_, 0)) * 1e9);
  };
  const auto chains_of = [&](const Recomputing& how, int64_t& scratch_bytes) {
    const bool full = how.granularity == RecomputeGranularity::full;
    const Recomputing each_layer{
        .granularity = RecomputeGranularity::full, .method = RecomputeMethod::uniform, .layers = 1};
    const StageCosts& plain = stage_costs(shape, full ? Recomputing{} : how, halves);
    const StageCosts& again = full ? stage_costs(shape, each_layer, halves) : plain;
    scratch_bytes = plain.scratch_bytes;
    PartCost shared;
    if (!config.model.untie_embeddings_and_output_weights) {
      shared.parameters = std::min(plain.embedding.parameters, plain.head.parameters);
      shared.optimizer_bytes = std::min(plain.embedding.optimizer_bytes, plain.head.optimizer_bytes);
    }
    return Chains(layout, ranks, costs_of_stages(layout, how, plain, again), shared, plain.layer.parameters);
  };
  int64_t scratch_bytes = 0;
  const Chains without = chains_of({}, scratch_bytes);
  std::vector<std::vector<LayoutBound>> bounds;
  for (const Recomputing& how : recomputings) {
    const Chains chains = chains_of(how, scratch_bytes);
    std::vector<LayoutBound>& by_sharding = bounds.emplace_back(shardings.size());
    for (size_t i = 0; i < shardings.size(); ++i) {
      const Sharding sharding = shardings[i];
      LayoutBound& bound = by_sharding[i];
      const int64_t first_optimizer = optimizer_ns(chains.sum(layout.schedule.rank_of(0)), sharding);
      for (int rank = 0; rank < p; ++rank) {
        const PartCost sum = chains.sum(rank);
        std::vector<int64_t> layers;
        for (int chunk = 0; chunk < layout.schedule.v; ++chunk)
          layers.push_back(layout.layers_of_stage[static_cast<size_t>(layout.schedule.stage_of(rank, chunk))]);
        const DataCosts data =
            data_prices[static_cast<size_t>(rank)].of(sharding, sum.parameters, chains.layer_parameters(), layers);
        const int64_t ns = chains.longest(rank, data, first_optimizer, optimizer_ns(sum, sharding));
        const RankWork& work = ranks[static_cast<size_t>(rank)];
        bound.seconds = std::max(bound.seconds, 1e-9 * static_cast<double>(ns));
        bound.memory_bytes = std::max(bound.memory_bytes, state_bytes(dtype, sharding, sum.parameters, d) +
                                                              chains.activations(rank) + scratch_bytes);
        const double passes = 1e-9 * static_cast<double>(chains.passes(rank, work.all));
        if (passes < bound.pass_seconds) continue;
        bound.pass_seconds = passes;
        bound.recompute_seconds = passes - 1e-9 * static_cast<double>(without.passes(rank, work.all));
      }
    }
  }
  return bounds;
}

}  // namespace trivet
