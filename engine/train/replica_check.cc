#include "engine/train/replica_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <xxhash.h>

#include "base/statistics.h"

namespace trivet {

ReplicaMismatch compare_replicas(const Rank& rank, HostWorld& data, const std::vector<int>& world_ranks) {
  if (data.size() == 1) return {};
  const FlatBuffer& flat = rank.state.flat;
  const Adam& adam = *rank.state.adam;
  std::vector<std::string> names;
  std::vector<int64_t> mine;
  std::vector<std::byte> copy;
  const auto add = [&](const char* kind, const Param& param, Tensor tensor) {
    copy.resize(static_cast<size_t>(tensor.bytes()));
    rank.device.copy_to_host(tensor, copy.data(), *rank.compute);
    rank.compute->synchronize();
    names.push_back(std::string(kind) + " " + param.spec.name);
    mine.push_back(static_cast<int64_t>(XXH3_64bits(copy.data(), copy.size())));
  };
  for (const FlatBucket& bucket : flat.buckets)
    if (bucket.weights)
      for (const FlatSegment& segment : flat.segments_of(bucket))
        add("the weight", *segment.param, segment.param->weight);
  if (!flat.shards_optimizer())
    for (const OwnedShard& shard : flat.owned) {
      if (adam.main_weights()) add("the main weight", *shard.param, adam.main_weights(shard));
      add("the first moment of", *shard.param, adam.first_moment(shard));
      add("the second moment of", *shard.param, adam.second_moment(shard));
    }
  if (mine.empty()) return {};

  const auto count = static_cast<int64_t>(mine.size()), ranks = int64_t{data.size()};
  const std::vector<int64_t> all = data.gather(mine);
  for (size_t tensor = 0; tensor < mine.size(); ++tensor) {
    std::vector<int64_t> hashes;  // [rank]
    for (int64_t rank = 0; rank < ranks; ++rank) hashes.push_back(all[static_cast<size_t>(rank * count) + tensor]);
    const auto most = majority_of<int64_t>(hashes);
    if (most.votes == ranks) continue;
    if (2 * most.votes <= ranks)
      return {0, fmt::format("{} is not the same on ranks {}, of which no majority agrees", names[tensor],
                             fmt::join(world_ranks, ", "))};
    ReplicaMismatch mismatch;
    std::vector<int> odd;
    for (size_t rank = 0; rank < hashes.size(); ++rank)
      if (hashes[rank] != most.value) {
        if (mismatch.rank < 0) mismatch.rank = static_cast<int>(rank);
        odd.push_back(world_ranks[rank]);
      }
    mismatch.what = fmt::format("{} of rank {} differs from that of the other {} of ranks {}", names[tensor],
                                fmt::join(odd, ", "), most.votes, fmt::join(world_ranks, ", "));
    return mismatch;
  }
  return {};
}

}  // namespace trivet
