#include "tools/study/bucket_model.h"

#include <algorithm>

#include "engine/train/rank_state.h"
#include "kernels/base/device.h"
#include "parallel/comm/link.h"

namespace trivet {

std::optional<double> modelled_exposed(const Config& config, const Layout& layout, int64_t bucket_size,
                                       double compute_seconds) {
  const Sharding sharding = config.parallel.data_parallel_sharding_strategy;
  const Link link = links_of(config.comm).at("data");
  const int ranks = layout.mesh.world();
  if (ranks == 1 || layout.mesh.size(kGradientAxes) != ranks || streams_grads(sharding) || link.none()) return {};
  Config sized = config;
  sized.parallel.bucket_size = bucket_size;
  const auto device = create_planning_device();
  const RankState rank(sized, layout, {}, *device);

  const std::vector<FlatBucket>& buckets = rank.flat.buckets;  // in the order of the backward pass
  const bool sharded = sharding != Sharding::no_shard;
  const auto units = static_cast<size_t>(config.model.num_layers) + 2;  // embedding, blocks, head
  const double unit_share = 1 / static_cast<double>(units - 1);
  const double of_micro_batch = compute_seconds / static_cast<double>(layout.micro_batches);

  double port = 0;  // free from then on
  const auto complete = [&](CommCall call, int64_t bytes, double ready, bool overlaps) {
    const WireTime time = wire_time(link, wire_cost(call, bytes, ranks));
    const bool one_at_a_time = !overlaps || config.overlap.collectives_in_flight == 1;
    port = std::max(port, ready) + 1e-9 * static_cast<double>(one_at_a_time ? time.total() : time.busy_ns);
    return port + (one_at_a_time ? 0 : 1e-9 * static_cast<double>(time.latency_ns));
  };

  const double backward = of_micro_batch * 2 / 3;
  double seconds = 0;
  for (const FlatBucket& bucket : buckets) {
    const double left = unit_share * std::max(0, bucket.units.front() - 1);  // of the pass, when the bucket is full
    const bool overlaps = config.overlap.overlap_grad_reduce;
    seconds = complete(sharded ? CommCall::reduce_scatter : CommCall::all_reduce, bucket.numel() * size_of(DType::f32),
                       overlaps ? backward * (1 - left) : backward, overlaps) -
              backward;
  }
  port = 0;
  std::vector<double> gathered(units, 0);  // when the unit's weights are there
  for (size_t i = buckets.size(); sharded && i-- > 0;) {
    const bool overlaps = config.overlap.overlap_param_gather;
    const double end =
        complete(CommCall::all_gather, buckets[i].numel() * size_of(config.precision.dtype), 0, overlaps);
    for (const int unit : buckets[i].units) gathered[static_cast<size_t>(overlaps ? unit : 0)] = end;
  }
  double now = 0;
  for (size_t unit = 0; unit < units; ++unit) {
    seconds += std::max(0., gathered[unit] - now);
    now = std::max(now, gathered[unit]) + (unit == 0 ? 0 : unit_share * of_micro_batch / 3);
  }
  port = 0;
  return seconds + (sharded ? 2 : 1) * complete(CommCall::all_reduce, 0, 0, false);
}

}  // namespace trivet
