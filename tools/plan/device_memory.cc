#include "tools/plan/device_memory.h"

#include <algorithm>
#include <cmath>

#include "base/host.h"
#include "base/parallel_for.h"
#include "engine/train/rank_state.h"
#include "parallel/pipeline/check.h"
#include "tools/plan/section.h"

namespace trivet {
namespace {

constexpr double kGiB = 1 << 30;

// The ranks that may need the most memory: every pipeline position, and on the other axes the first and the last, which
// hold the largest and the smallest shard of an uneven split.
std::vector<MeshPosition> positions_of(const MeshShape& mesh) {
  std::vector<MeshPosition> positions{{}};
  for (const AxisInfo& row : kAxes) {
    const size_t before = positions.size();
    for (int at = 1; at < mesh[row.axis]; ++at) {
      if (row.axis != Axis::pp && at < mesh[row.axis] - 1) continue;
      for (size_t i = 0; i < before; ++i) {
        positions.push_back(positions[i]);
        positions.back()[row.axis] = at;
      }
    }
  }
  return positions;
}

// Scores of unfused attention for all micro-batches in flight: 16-bit softmax and dropout outputs, and a dropout mask
// (Korthikanti et al. 2022, section 4.1). Layers that recompute attention hold scores for one layer at a time.
int64_t score_bytes(const Config& config, const Layout& layout, int pp) {
  const ModelConfig& m = config.model;
  const int64_t of_layer = 5 * m.num_attention_heads / layout.mesh[Axis::tp] * config.batch.micro_batch_size *
                           m.seq_length * (m.seq_length / layout.mesh[Axis::cp]);
  const bool full = m.recompute_granularity == RecomputeGranularity::full;
  const bool core = m.recompute_granularity == RecomputeGranularity::selective &&
                    std::ranges::count(m.recompute_modules, RecomputeModule::core_attn) > 0;
  const Schedule& schedule = layout.schedule;
  const SlotPlan plan = plan_slots(schedule.programs[static_cast<size_t>(pp)], schedule.v, SlotPool::per_chunk);
  int64_t layers = 0;
  for (int chunk = 0; chunk < schedule.v; ++chunk) {
    const int64_t all = layout.layers_of_stage[static_cast<size_t>(schedule.stage_of(pp, chunk))];
    const bool uniform = m.recompute_method == RecomputeMethod::uniform;
    const int64_t recomputed = core || (full && uniform) ? all : full ? std::min(all, m.recompute_num_layers) : 0;
    layers += (all - recomputed) * plan.slots[static_cast<size_t>(chunk)];
    if (recomputed > 0 && layers == 0) layers = 1;
  }
  return of_layer * layers;
}

}  // namespace

int communicators_of(const Config& config, const Layout& layout, int pp) {
  const int t = layout.mesh[Axis::tp], c = layout.mesh[Axis::cp], p = layout.mesh[Axis::pp],
            d = layout.mesh.size(kGradientAxes);
  int count = 0;
  for (const int ranks : {layout.mesh.world(), t, c, d, p, layout.mesh.size(kModelAxes)}) count += ranks > 1 ? 1 : 0;
  for (const auto& [channel, traffic] : traffic_of(layout.schedule))
    count += channel.from == pp || channel.to == pp ? 1 : 0;
  const Schedule& schedule = layout.schedule;
  const int first = schedule.rank_of(0), last = schedule.rank_of(schedule.stages() - 1);
  if (!config.model.untie_embeddings_and_output_weights && first != last && (pp == first || pp == last)) ++count;
  // Communication streams use their own communicators.
  if (t > 1 && gpt_shape_of(config, layout, {}).overlaps_tensor_comm()) ++count;
  if (c > 1)
    count +=
        (config.overlap.overlap_cp_comm ? 1 : 0) + (config.parallel.cp_comm_type == CpCommType::all_gather ? 1 : 0);
  if (d > 1)
    for (const bool overlaps : {config.overlap.overlap_grad_reduce, config.overlap.overlap_param_gather})
      count += overlaps ? config.overlap.collectives_in_flight : 0;
  return count;
}

std::vector<MemoryItem> memory_of_worst_rank(const Config& config, const Layout& layout, const System& system) {
  const std::vector<MeshPosition> positions = positions_of(layout.mesh);
  std::vector<std::vector<MemoryItem>> items_of(positions.size());
  parallel_for(positions.size(), static_cast<size_t>(usable_cores()), [&](size_t i) {
    const int pp = positions[i][Axis::pp];
    std::vector<MemoryItem>& items = items_of[i];
    for (const MemoryItem& item : plan_memory(config, layout, positions[i]).items)
      if (!item.on_host) items.push_back(item);
    if (!plan_of(config).fused_attention) items.push_back({"attention scores", score_bytes(config, layout, pp)});
    const auto reserve = [&](const char* name, double gib) {
      if (gib > 0) items.push_back({name, std::llround(gib * kGiB)});
    };
    reserve("device context", system.context_gib);
    reserve("communicators", system.communicator_gib * communicators_of(config, layout, pp));
    reserve("workspaces", system.workspace_gib);
  });
  return std::ranges::max(items_of, {}, sum_of);
}

int64_t sum_of(const std::vector<MemoryItem>& items) {
  int64_t sum = 0;
  for (const MemoryItem& item : items) sum += item.bytes;
  return sum;
}

int64_t device_bytes(const System& system, int ranks) {
  return std::llround(system.memory_gib * kGiB / (system.kind() == SystemKind::cpu ? ranks : 1));
}

}  // namespace trivet
