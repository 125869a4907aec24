#include "engine/train/non_finite.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <fmt/format.h>

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

}  // namespace trivet
