#include "engine/train/diagnosis.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <xxhash.h>

#include "base/statistics.h"

namespace trivet {
namespace {

// As op::FindNonFinite writes it.
struct Found {
  int64_t first, nans, infinities, bits, bits_before;
  static float number(int64_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits)); }
};
static_assert(sizeof(Found) == kNonFiniteNumbers * sizeof(int64_t));

// "" where all gradients of this rank are finite.
std::string describe_gradients(const Rank& rank, int world_rank) {
  const RankState& state = rank.state;
  std::vector<Found> found(state.flat.buckets.size());
  rank.device.copy_to_host(state.non_finite, found.data(), *rank.compute);
  rank.compute->synchronize();
  const auto bad = std::find_if(found.begin(), found.end(), [](const Found& bucket) { return bucket.first >= 0; });
  if (bad == found.end()) return "";
  Found all{};
  for (const Found& bucket : found)
    if (bucket.first >= 0) all.nans += bucket.nans, all.infinities += bucket.infinities;

  const FlatBucket& bucket = state.flat.buckets[static_cast<size_t>(bad - found.begin())];
  const int64_t at = bucket.own_begin + bad->first;
  const auto segments = state.flat.segments_of(bucket);
  const auto behind =
      std::find_if(segments.begin(), segments.end(), [&](const FlatSegment& segment) { return segment.offset > at; });
  const FlatSegment& segment = *(behind - 1);
  return fmt::format(
      "gradients of {} on rank {} (pipeline rank {}) are not finite; the first, at element {} of {}, is {}{}; of all "
      "of this rank, {} are not ({} NaN, {} infinite)",
      segment.param->spec.name, world_rank, rank.mesh.at[Axis::pp], at - segment.offset, segment.param->shape.numel(),
      Found::number(bad->bits),
      bad->first > 0 ? fmt::format(", the one before it {:.6g}", Found::number(bad->bits_before)) : "",
      all.nans + all.infinities, all.nans, all.infinities);
}

}  // namespace

void search_non_finite(Rank& rank) {
  int64_t i = 0;
  for (const FlatBucket& bucket : rank.state.flat.buckets)
    rank.ops.run(op::FindNonFinite{.x = bucket.own_grads,
                                   .accepted = rank.state.step_number(RankState::kAccepted),
                                   .found = rank.state.non_finite.slice(i++, 1).view({kNonFiniteNumbers})},
                 *rank.compute);
}

NonFinite find_non_finite(const Rank& rank, float own_loss, HostWorld& host) {
  NonFinite found;
  const auto [loss_rank, loss] = host.first_text(std::isfinite(own_loss) ? "" : "the loss is not finite");
  if (loss_rank >= 0) {
    found.rank = loss_rank;
    found.what = fmt::format("the loss of rank {} is not finite, ", loss_rank);
  }
  const auto [first, text] = host.first_text(describe_gradients(rank, host.rank()));
  found.what += first < 0 ? "all gradients are finite" : text;
  if (found.rank < 0) found.rank = first;
  return found;
}

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
