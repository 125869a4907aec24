#include "engine/plan/device_memory.h"

#include <cmath>

#include "engine/train/rank_state.h"
#include "parallel/pipeline/check.h"

namespace trivet {
namespace {

constexpr double kGiB = 1 << 30;

// Of the ranks that can hold most: on the other axes the first and the last, whose parts of what is not divided evenly
// are the largest and the smallest.
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

}  // namespace

int communicators_of(const Config& config, const Layout& layout, int pp) {
  const int t = layout.mesh[Axis::tp], p = layout.mesh[Axis::pp], d = layout.mesh.size(kGradientAxes);
  int count = 0;
  for (const int ranks : {layout.mesh.world(), t, d, p, layout.mesh.size(kModelAxes)}) count += ranks > 1 ? 1 : 0;
  for (const auto& [channel, traffic] : traffic_of(layout.schedule))
    count += channel.from == pp || channel.to == pp ? 1 : 0;
  const Schedule& schedule = layout.schedule;
  const int first = schedule.rank_of(0), last = schedule.rank_of(schedule.stages() - 1);
  if (!config.model.untie_embeddings_and_output_weights && first != last && (pp == first || pp == last)) ++count;
  // The streams beside compute have communicators of their own.
  if (t > 1 && gpt_shape_of(config, layout, {}).overlaps_tensor_comm()) ++count;
  if (d > 1)
    for (const bool overlaps : {config.overlap.overlap_grad_reduce, config.overlap.overlap_param_gather})
      count += overlaps ? config.overlap.collectives_in_flight : 0;
  return count;
}

std::vector<MemoryItem> memory_of_worst_rank(const Config& config, const Layout& layout, const System& system) {
  std::vector<MemoryItem> worst;
  for (const MeshPosition& at : positions_of(layout.mesh)) {
    const int pp = at[Axis::pp];
    std::vector<MemoryItem> items;
    for (const MemoryItem& item : plan_memory(config, layout, at).items)
      if (!item.on_host) items.push_back(item);
    const auto reserve = [&](const char* name, double gib) { items.push_back({name, std::llround(gib * kGiB)}); };
    reserve("device context", system.context_gib);
    reserve("communicators", system.communicator_gib * communicators_of(config, layout, pp));
    reserve("workspaces", system.workspace_gib);
    if (worst.empty() || sum_of(items) > sum_of(worst)) worst = std::move(items);
  }
  return worst;
}

int64_t sum_of(const std::vector<MemoryItem>& items) {
  int64_t sum = 0;
  for (const MemoryItem& item : items) sum += item.bytes;
  return sum;
}

int64_t device_bytes(const System& system) { return std::llround(system.memory_gib * kGiB); }

}  // namespace trivet
