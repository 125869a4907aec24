#include "engine/train/diagnosis.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <set>
#include <xxhash.h>

#include "base/statistics.h"

namespace trivet {
namespace {

// The result of op::FindNonFinite.
struct Found {
  int64_t mark, nans, infinities;
};
static_assert(sizeof(Found) == kNonFiniteNumbers * sizeof(int64_t));

std::string place_text(const FlatSegment& segment, int64_t at, bool infinite) {
  return fmt::format("at element {} of {}, is {}", at - segment.offset, segment.param->shape.numel(),
                     infinite ? "infinite" : "NaN");
}

const FlatSegment& segment_at(const RankState& state, const FlatBucket& bucket, int64_t at) {
  const auto segments = state.flat.segments_of(bucket);
  return *(std::ranges::upper_bound(segments, at, {}, &FlatSegment::offset) - 1);
}

// This rank's gradients in one search.
struct BadGradients {
  int64_t order = RankNumbers::kNone;  // as in RankNumbers
  const FlatSegment* first = nullptr;
  int64_t at = 0;  // index in the flat layout, in elements
  Found found{};   // mark of the first; counts of all NaNs and infinities of the rank
};

BadGradients bad_gradients(const Rank& rank, RankState::NonFiniteSearch search) {
  const RankState& state = rank.state;
  std::vector<Found> buckets(state.flat.buckets.size());
  rank.device.copy_to_host(state.non_finite_of(search), buckets.data(), *rank.compute);
  rank.compute->synchronize();
  BadGradients bad;
  for (size_t i = 0; i < buckets.size(); ++i) {
    const Found& found = buckets[i];
    bad.found.nans += found.nans, bad.found.infinities += found.infinities;
    if (found.mark == 0) continue;
    const FlatBucket& bucket = state.flat.buckets[i];
    const int64_t begin = search == RankState::kReducedSearch ? bucket.own_begin : bucket.begin;
    const int64_t at = begin + element_of_mark(found.mark);
    const FlatSegment& segment = segment_at(state, bucket, at);
    // The backward pass begins with the last stage, and there with the last unit, as each bucket does.
    const int chunk = state.params.units()[static_cast<size_t>(segment.param->unit)].stage;
    const int64_t stages_after = rank.schedule.stages() - 1 - rank.schedule.stage_of(rank.mesh.at[Axis::pp], chunk);
    const int64_t units_after = static_cast<int64_t>(state.params.units().size()) - segment.param->unit;
    const int64_t order = (stages_after << 48) + (units_after << 24) + (&segment - state.flat.segments.data());
    if (order >= bad.order) continue;
    bad.order = order, bad.first = &segment, bad.at = at, bad.found.mark = found.mark;
  }
  return bad;
}

// Describes the first non-finite weight that this rank owns; "": all are finite.
std::string bad_weight(const Rank& rank) {
  const RankState& state = rank.state;
  std::vector<std::byte> copy;
  for (const FlatBucket& bucket : state.flat.buckets) {
    const Tensor weights = bucket.own_weights;
    copy.resize(static_cast<size_t>(weights.bytes()));
    rank.device.copy_to_host(weights, copy.data(), *rank.compute);
    rank.compute->synchronize();
    const auto number = [&](int64_t i) {
      if (weights.dtype == DType::f32) return reinterpret_cast<const float*>(copy.data())[i];
      return static_cast<float>(reinterpret_cast<const bf16*>(copy.data())[i]);
    };
    for (int64_t i = 0; i < weights.numel(); ++i) {
      if (std::isfinite(number(i))) continue;
      const int64_t at = bucket.own_begin + i;
      const FlatSegment& segment = segment_at(state, bucket, at);
      return fmt::format("{} was not finite even before the step: the first such value, {}", segment.param->spec.name,
                         place_text(segment, at, std::isinf(number(i))));
    }
  }
  return "";
}

std::string describe_gradients(const Rank& rank, int world_rank, const BadGradients& bad, const char* when) {
  const auto& [mark, nans, infinities] = bad.found;
  return fmt::format(
      "gradients of {} on rank {} (pipeline rank {}) are not finite{}; the first, {}; of all on this rank, {} are not "
      "({} NaN, {} infinite)",
      bad.first->param->spec.name, world_rank, rank.mesh.at[Axis::pp], when,
      place_text(*bad.first, bad.at, infinite_of_mark(mark)), nans + infinities, nans, infinities);
}

// Cases that the ranks cannot tell apart.
std::string doubts_of(const NonFiniteSource& source) {
  std::string text;
  const auto& [kind, ranks, replica, replicas] = source;
  if (kind == NonFiniteSource::loss)
    text = replica.size() > 1 ? fmt::format(
                                    "; it arose in the forward pass of its replica (ranks {}), on an unknown rank and "
                                    "in an unknown tensor",
                                    fmt::join(replica, ", "))
                              : "; it arose in its forward pass, in an unknown tensor";
  else if (ranks.size() > 1)
    text =
        fmt::format("; ranks {} have such values, and which of them had the first is unknown", fmt::join(ranks, ", "));
  if (replicas > 1)
    text += fmt::format("; {} data-parallel replicas have such values, and which of them had the first is unknown",
                        replicas);
  return text;
}

}  // namespace

NonFiniteSource find_source(const std::vector<RankNumbers>& ranks) {
  NonFiniteSource source;
  const auto ranks_where = [&](auto&& is) {
    std::vector<int> found;
    for (size_t rank = 0; rank < ranks.size(); ++rank)
      if (is(ranks[rank])) found.push_back(static_cast<int>(rank));
    return found;
  };
  const auto as = [&](NonFiniteSource::Kind kind, std::vector<int> found) {
    if (!found.empty()) source.kind = kind, source.ranks = std::move(found);
    return source.kind != NonFiniteSource::none;
  };
  if (as(NonFiniteSource::weight, ranks_where([](const RankNumbers& r) { return r.weight != 0; }))) return source;
  std::set<int64_t> replicas;
  for (const RankNumbers& r : ranks)
    if (r.loss != 0 || r.local_grad != RankNumbers::kNone) replicas.insert(r.replica);
  if (replicas.empty()) {
    const int64_t first = std::ranges::min(ranks, {}, &RankNumbers::grad).grad;
    if (first != RankNumbers::kNone)
      as(NonFiniteSource::grad, ranks_where([&](const RankNumbers& r) { return r.grad == first; }));
    return source;
  }
  const int64_t replica = *replicas.begin();
  source.replicas = static_cast<int>(replicas.size());
  source.replica = ranks_where([&](const RankNumbers& r) { return r.replica == replica; });
  // A non-finite loss makes all gradients non-finite.
  if (as(NonFiniteSource::loss, ranks_where([&](const RankNumbers& r) { return r.replica == replica && r.loss != 0; })))
    return source;
  int64_t first = RankNumbers::kNone;
  for (const int rank : source.replica) first = std::min(first, ranks[static_cast<size_t>(rank)].local_grad);
  as(NonFiniteSource::local_grad,
     ranks_where([&](const RankNumbers& r) { return r.replica == replica && r.local_grad == first; }));
  return source;
}

void search_non_finite(Rank& rank) {
  const RankState& state = rank.state;
  Stream& compute = *rank.compute;
  // The host has read the previous step's copy; the next step's search of local gradients may start immediately.
  rank.ops.run(
      op::Convert{state.non_finite_of(RankState::kLocalSearch), state.non_finite_of(RankState::kReportedSearch)},
      compute);
  const Tensor reduced = state.non_finite_of(RankState::kReducedSearch);
  rank.ops.run(op::Clear{{reduced}}, compute);
  int64_t i = 0;
  for (const FlatBucket& bucket : state.flat.buckets)
    rank.ops.run(op::FindNonFinite{.x = bucket.own_grads,
                                   .accepted = state.step_number(RankState::kAccepted),
                                   .found = reduced.slice(i++, 1).view({kNonFiniteNumbers})},
                 compute);
}

NonFinite find_non_finite(const Rank& rank, float own_loss, HostWorld& host) {
  const bool sums = rank.sums_gradients();
  const BadGradients reduced = bad_gradients(rank, RankState::kReducedSearch);
  const BadGradients local = sums ? bad_gradients(rank, RankState::kReportedSearch) : reduced;
  const std::string weight = bad_weight(rank);
  const NonFiniteSource source = find_source(host.gather(RankNumbers{.replica = rank.state.flat.options.rank,
                                                                     .weight = !weight.empty(),
                                                                     .loss = !std::isfinite(own_loss),
                                                                     .local_grad = local.order,
                                                                     .grad = reduced.order}));
  if (source.kind == NonFiniteSource::none) return {.what = "all gradients and weights are finite"};
  const int first = source.ranks.front();
  const auto describe = [&]() -> std::string {
    switch (source.kind) {
      case NonFiniteSource::weight: return fmt::format("on rank {} the weight {}", first, weight);
      case NonFiniteSource::loss: return fmt::format("the loss of rank {} is not finite", first);
      case NonFiniteSource::local_grad:
        return describe_gradients(rank, first, local, sums ? " before their sum over ranks" : "");
      case NonFiniteSource::grad:
        return describe_gradients(rank, first, reduced, " after their sum over ranks, and were finite before it");
      case NonFiniteSource::none: break;
    }
    return "";
  };
  const auto& candidates = source.kind == NonFiniteSource::loss ? source.replica : source.ranks;
  return {.rank = candidates.size() == 1 && source.replicas <= 1 ? first : -1,
          .in_weights = source.kind == NonFiniteSource::weight,
          .what = host.first_text(host.rank() == first ? describe() : "").text + doubts_of(source)};
}

ReplicaMismatch compare_replicas(const Rank& rank, HostWorld& data, const std::vector<int>& world_ranks) {
  if (data.size() == 1) return {};
  const FlatBuffer& flat = rank.state.flat;
  const Optimizer& optimizer = *rank.state.optimizer;
  std::vector<std::string> names;
  std::vector<int64_t> mine;
  std::vector<std::byte> copy;
  const auto add = [&](const std::string& kind, const Param& param, Tensor tensor) {
    copy.resize(static_cast<size_t>(tensor.bytes()));
    rank.device.copy_to_host(tensor, copy.data(), *rank.compute);
    rank.compute->synchronize();
    names.push_back(kind + " " + param.spec.name);
    mine.push_back(static_cast<int64_t>(XXH3_64bits(copy.data(), copy.size())));
  };
  for (const FlatBucket& bucket : flat.buckets)
    if (bucket.weights)
      for (const FlatSegment& segment : flat.segments_of(bucket))
        add("the weight", *segment.param, bucket.quantised ? segment.param->fp8 : segment.param->weight);
  if (!flat.shards_optimizer())
    for (const OwnedShard& shard : flat.owned) {
      if (optimizer.has_main_weights()) add("the main weight", *shard.param, optimizer.main_weights(shard));
      for (const Optimizer::State& state : optimizer.states())
        add(fmt::format("the {} of", state.words), *shard.param, Optimizer::part(state.owned, shard));
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
      return {0, fmt::format("{} is not the same on ranks {}, and no majority of them agrees", names[tensor],
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
