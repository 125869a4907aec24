#include "tools/plan/bound.h"

#include <algorithm>
#include <numeric>
#include <string_view>

#include "engine/train/rank_state.h"
#include "tools/plan/costs.h"

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

// ends: whose embedding and head count. plain, recomputed: the layers that are not recomputed as a whole, and that are.
std::vector<PartCost> costs_of_stages(const Layout& layout, const Recomputing& how, const LayoutStageCosts& ends,
                                      const LayoutStageCosts& plain, const LayoutStageCosts& recomputed) {
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
    if (s == 0) stage.add(ends.embedding, 1);
    if (s + 1 == layers.size()) stage.add(ends.head, 1);
  }
  return stages;
}

// The collectives of a rank's gradients and weights: ns.
struct DataCosts {
  int64_t sum = 0, gather = 0;              // of all of them, once a step: at its end, at its beginning
  int64_t layer_sum = 0, layer_gather = 0;  // of each layer in each pass, where they are streamed
};

// Of a rank with so many elements, of which each layer has `of_layer`.
DataCosts data_costs(const SystemCosts& costs, const Layout& layout, int pp, DType dtype, Sharding sharding,
                     int64_t elements, int64_t of_layer) {
  DataCosts data;
  TapeGroups::Group group;
  group.world_ranks = group_members({{Axis::pp, pp}}, layout.mesh, kGradientAxes);
  if (group.world_ranks.size() == 1) return data;
  const auto price = [&](CommCall call, int64_t bytes) {
    return costs.call_cost({.kind = call, .bytes = bytes}, group).ns;
  };
  const int64_t grad = size_of(DType::f32), weight = size_of(dtype);
  if (sharding == Sharding::no_shard) data.sum = price(CommCall::all_reduce, grad * elements);
  if (sharding == Sharding::optim) data.sum = price(CommCall::reduce_scatter, grad * elements);
  if (streams_grads(sharding)) data.layer_sum = price(CommCall::reduce_scatter, grad * of_layer);
  if (sharding == Sharding::optim_grads_params) data.layer_gather = price(CommCall::all_gather, weight * of_layer);
  else if (sharding != Sharding::no_shard) data.gather = price(CommCall::all_gather, weight * elements);
  return data;
}

int64_t state_bytes(DType dtype, Sharding sharding, int64_t elements, int64_t d) {
  const int64_t of_optimizer = dtype == DType::f32 ? 8 : 12;
  return elements * size_of(dtype) / (sharding == Sharding::optim_grads_params ? d : 1) +
         elements * 4 / (streams_grads(sharding) ? d : 1) +
         elements * of_optimizer / (sharding == Sharding::no_shard ? 1 : d);
}

// The chains of one layout.
class Chains {
 public:
  // shared: what the first and the last stage hold once where one rank has both. data: [rank]
  Chains(const Layout& layout, const std::vector<RankWork>& ranks, std::vector<PartCost> stages, const PartCost& shared,
         std::vector<DataCosts> data)
      : layout_(layout),
        ranks_(ranks),
        stages_(std::move(stages)),
        shared_(shared),
        data_(std::move(data)),
        forward_(stages_.size() + 1),
        backward_(stages_.size() + 1) {
    for (size_t s = 0; s < stages_.size(); ++s) {
      auto& compute = stages_[s].compute;
      // A layer waits for the one two before it to leave a buffer.
      const int64_t behind = behind_buffers(layout.layers_of_stage[s]);
      const DataCosts& wire = data_[static_cast<size_t>(layout.schedule.rank_of(static_cast<int>(s)))];
      int64_t& forward = compute[index_of(OpKind::forward)];
      int64_t& backward = compute[index_of(OpKind::backward)];
      forward = std::max(forward, behind * wire.layer_gather);
      backward = std::max(backward, behind * (wire.layer_sum + wire.layer_gather));
      const int64_t half = compute[index_of(OpKind::backward_input)];
      forward_[s + 1] = forward_[s] + forward;
      backward_[s + 1] = backward_[s] + (half > 0 ? std::min(half, backward) : backward);
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
  int64_t activations(int rank) const {
    int64_t bytes = 0;
    const std::vector<int>& slots = ranks_[static_cast<size_t>(rank)].slots;
    for (size_t chunk = 0; chunk < slots.size(); ++chunk) bytes += slots[chunk] * stage(rank, chunk).slot_bytes;
    return bytes;
  }
  // optimizer: of the first rank and of this one.
  int64_t longest(int rank, int64_t first_optimizer, int64_t own_optimizer) const {
    const RankWork& work = ranks_[static_cast<size_t>(rank)];
    const DataCosts& data = data_[static_cast<size_t>(rank)];
    const int64_t all = passes(rank, work.all);
    const int64_t to_the_end = std::max(
        {all, passes(rank, work.until_last_gradient) + backward_[static_cast<size_t>(work.last_gradient_stage)],
         all - passes(rank, work.from_first_sum) + data.sum});
    const int64_t through_first = first_optimizer + forward_[static_cast<size_t>(work.first_stage)] + to_the_end;
    const int64_t through_gathers = own_optimizer + data.gather + to_the_end - passes(rank, work.before_gathered);
    return std::max({through_first, through_gathers, layout_.micro_batches * streamed(rank, data),
                     layout_.micro_batches * sum(rank).host});
  }

 private:
  static int64_t behind_buffers(int64_t layers) { return std::max<int64_t>(layers - FlatBuffer::kStreamed, 0); }
  // On the rank's port, for a micro-batch. What a forward pass has gathered last, its backward pass may still have.
  int64_t streamed(int rank, const DataCosts& data) const {
    int64_t ns = 0;
    for (int chunk = 0; chunk < layout_.schedule.v; ++chunk) {
      const int64_t layers = layout_.layers_of_stage[static_cast<size_t>(layout_.schedule.stage_of(rank, chunk))];
      ns += layers * data.layer_sum + (layers + behind_buffers(layers)) * data.layer_gather;
    }
    return ns;
  }
  const PartCost& stage(int rank, size_t chunk) const {
    return stages_[static_cast<size_t>(layout_.schedule.stage_of(rank, static_cast<int>(chunk)))];
  }
  const Layout& layout_;
  const std::vector<RankWork>& ranks_;
  std::vector<PartCost> stages_;
  const PartCost shared_;
  const std::vector<DataCosts> data_;
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

// One of three stages, of which the middle one has so many layers, and those at the ends have one.
PartCost Bounds::record_stage(const LayoutShape& shape, const Recomputing& how, bool halves, int64_t middle_layers,
                              int pp, int64_t& scratch_bytes) const {
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
    Layout layout =
        resolve(loaded, {.world_size = ranks, .dataset_vocab_size = loaded.config.model.vocab_size, .planned = true});
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
  scratch_bytes = bytes_of(memory, "scratch");
  if (pp == 1) {  // which has as many slots as micro-batches
    const ResolvedCandidate two = run_of(2);
    stage.slot_bytes =
        bytes_of(plan_memory(two.config, two.layout, at), "activations") - bytes_of(memory, "activations");
  }
  TapeGroups groups;
  const Tape tape = record_tape(one.config, one.layout, rank_of(at, one.layout.mesh), groups, {.steps = 2});
  add_passes(tape, groups, costs_, stage);
  return stage;
}

// halves: with those of backward passes, beside the whole ones.
LayoutStageCosts Bounds::probe(const LayoutShape& shape, const Recomputing& how, bool halves) const {
  LayoutStageCosts costs;
  const auto record = [&](int64_t middle_layers, int pp) {
    PartCost stage = record_stage(shape, how, false, middle_layers, pp, costs.scratch_bytes);
    if (!halves) return stage;
    const PartCost halved = record_stage(shape, how, true, middle_layers, pp, costs.scratch_bytes);
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
  }
  // Boundary buffers, which are no slots, depend on micro-batches, too.
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
  const Config& config = legal.config;
  const int p = layout.schedule.p, d = layout.mesh.size(kGradientAxes);
  const DType dtype = config.precision.dtype;
  std::vector<RankWork> ranks;
  for (int rank = 0; rank < p; ++rank) ranks.emplace_back(layout.schedule, rank);
  const auto halved = [](const std::array<int64_t, 4>& counts) {
    return counts[index_of(OpKind::backward_weight)] > 0;
  };
  const bool halves =
      std::ranges::any_of(ranks, [&](const RankWork& rank) { return std::ranges::any_of(rank.all, halved); });
  const auto optimizer_ns = [&](const PartCost& rank, Sharding sharding) {
    const double bytes = static_cast<double>(rank.optimizer_bytes) / (sharding == Sharding::no_shard ? 1 : d);
    return static_cast<int64_t>((memory_seconds(system_, bytes) - memory_seconds(system_, 0)) * 1e9);
  };
  const LayoutStageCosts& none = stage_costs(shape, {}, halves);
  PartCost shared;
  if (!config.model.untie_embeddings_and_output_weights) {
    shared.parameters = std::min(none.embedding.parameters, none.head.parameters);
    shared.optimizer_bytes = std::min(none.embedding.optimizer_bytes, none.head.optimizer_bytes);
  }
  const Chains bare(layout, ranks, costs_of_stages(layout, {}, none, none, none), shared,
                    std::vector<DataCosts>(ranks.size()));
  std::vector<std::vector<DataCosts>> data(shardings.size());  // [sharding][rank]
  for (size_t i = 0; i < shardings.size(); ++i)
    for (int rank = 0; rank < p; ++rank)
      data[i].push_back(
          data_costs(costs_, layout, rank, dtype, shardings[i], bare.sum(rank).parameters, none.layer.parameters));
  const Recomputing each_layer{
      .granularity = RecomputeGranularity::full, .method = RecomputeMethod::uniform, .layers = 1};
  std::vector<std::vector<LayoutBound>> bounds;
  for (const Recomputing& how : recomputings) {
    std::vector<LayoutBound>& by_sharding = bounds.emplace_back(shardings.size());
    const bool full = how.granularity == RecomputeGranularity::full;
    const LayoutStageCosts& plain = full ? none : stage_costs(shape, how, halves);
    const LayoutStageCosts& again = full ? stage_costs(shape, each_layer, halves) : none;
    for (size_t i = 0; i < shardings.size(); ++i) {
      const Chains chains(layout, ranks, costs_of_stages(layout, how, none, plain, again), shared, data[i]);
      LayoutBound& bound = by_sharding[i];
      const int64_t first_optimizer = optimizer_ns(chains.sum(layout.schedule.rank_of(0)), shardings[i]);
      for (int rank = 0; rank < p; ++rank) {
        const PartCost sum = chains.sum(rank);
        const int64_t ns = chains.longest(rank, first_optimizer, optimizer_ns(sum, shardings[i]));
        bound.seconds = std::max(bound.seconds, 1e-9 * static_cast<double>(ns));
        bound.memory_bytes = std::max(bound.memory_bytes, state_bytes(dtype, shardings[i], sum.parameters, d) +
                                                              chains.activations(rank) + plain.scratch_bytes);
        const Counts& all = ranks[static_cast<size_t>(rank)].all;
        const double passes = 1e-9 * static_cast<double>(chains.passes(rank, all));
        if (passes < bound.pass_seconds) continue;
        bound.pass_seconds = passes;
        bound.recompute_seconds = std::max(0.0, passes - 1e-9 * static_cast<double>(bare.passes(rank, all)));
      }
    }
  }
  return bounds;
}

}  // namespace trivet
