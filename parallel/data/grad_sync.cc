#include "parallel/data/grad_sync.h"

#include <limits>
#include <utility>

#include "kernels/ops.h"

namespace trivet {

GradSync::GradSync(FlatBuffer& flat, Ops& ops, const CommStreamSite& on, const Options& options)
    : flat_(flat),
      ops_(ops),
      compute_(on.compute),
      options_(options),
      pending_(flat.buckets.size()),
      comm_streams_(on, comm_of("data"), "gradients", options.comm_streams) {
  if (options_.registered) comm_streams_.register_buffers(*options_.registered);
  for (size_t i = 0; i < flat_.buckets.size(); ++i) reduced_.push_back(on.device.create_event());
  for (size_t i = 0; i < flat_.streamed_grads.size(); ++i)
    streamed_.push_back({.reduced = {on.device.create_event(), on.device.create_event()}});
}

void GradSync::begin_step() {
  if (options_.poison) ops_.run(op::Fill{flat_.stored_grads, std::numeric_limits<float>::quiet_NaN()}, compute_);
  flat_.clear_grads(ops_, compute_);
  if (options_.non_finite) ops_.run(op::Clear{{options_.non_finite}}, compute_);
  // 1.
  for (size_t i = 0; i < pending_.size(); ++i)
    pending_[i] = static_cast<int64_t>(flat_.buckets[i].units.size()) * options_.micro_batches;
  backward_passes_ = 0;
}

// part = this rank's part of the sum over the data-parallel group: all of it without sharding.
void GradSync::reduce(size_t bucket, Tensor whole, Tensor part, Event& reduced) {
  const ScopedLabel label(compute_, flat_.label_of(bucket, compute_.label()));
  if (options_.non_finite) {
    const Tensor found = options_.non_finite.slice(static_cast<int64_t>(bucket), 1).view({kNonFiniteNumbers});
    ops_.run(op::FindNonFinite{.x = whole, .found = found}, compute_);
  }
  comm_streams_.run(reduced, [&](Communicator& data, Stream& stream) {
    if (flat_.shards_optimizer()) data.reduce_scatter(whole, part, options_.op, stream);
    else data.all_reduce(whole, options_.op, stream);
  });
}

void GradSync::start(size_t bucket) {
  reduce(bucket, flat_.buckets[bucket].grads, flat_.buckets[bucket].own_grads, *reduced_[bucket]);
  pending_[bucket] = -1;
}

void GradSync::before_backward(int unit) {
  const std::vector<size_t>& streamed = flat_.streamed_of_unit[static_cast<size_t>(unit)];
  if (streamed.empty()) return;
  const size_t taken = next_streamed_++ % streamed_.size();
  accumulate(taken);
  streamed_[taken].unit = unit;
  for (const size_t i : streamed) {
    const Tensor grads = flat_.streamed_grads_of(taken, flat_.buckets[i]).whole;
    if (options_.poison) ops_.run(op::Fill{grads, std::numeric_limits<float>::quiet_NaN()}, compute_);
    flat_.clear_grads(i, grads, ops_, compute_);
    flat_.point_grads(i, grads);
  }
}

void GradSync::after_backward(int unit) {
  // 2. Buckets that are not streamed.
  for (const size_t i : flat_.buckets_of_unit[static_cast<size_t>(unit)]) {
    if (!flat_.buckets[i].grads || --pending_[i] > 0 || !comm_streams_.beside_compute()) continue;
    if (options_.delay) delayed_.push_back({i, backward_passes_ + *options_.delay});
    else start(i);
  }
  // ZeRO-2 and -3: reduces the unit's gradients of this micro-batch; the sum is added to the rank's own part later.
  for (size_t at = 0; at < streamed_.size(); ++at) {
    Streamed& buffer = streamed_[at];
    // The other buffer may hold the previous micro-batch's gradients of the same unit, still in flight.
    if (buffer.unit != unit || buffer.in_flight) continue;
    for (const size_t i : flat_.streamed_of_unit[static_cast<size_t>(unit)]) {
      const auto [whole, part] = flat_.streamed_grads_of(at, flat_.buckets[i]);
      reduce(i, whole, part, *buffer.reduced[flat_.buckets[i].quantised]);
    }
    buffer.in_flight = true;
  }
}

void GradSync::end_backward_pass() {
  ++backward_passes_;
  for (; !delayed_.empty() && delayed_.front().second < backward_passes_; delayed_.pop_front())
    start(delayed_.front().first);
}

void GradSync::accumulate(size_t streamed) {
  Streamed& buffer = streamed_[streamed];
  const int unit = std::exchange(buffer.unit, -1);
  if (!std::exchange(buffer.in_flight, false)) return;
  for (const size_t i : flat_.streamed_of_unit[static_cast<size_t>(unit)]) {
    const FlatBucket& bucket = flat_.buckets[i];
    compute_.wait(*buffer.reduced[bucket.quantised]);
    ops_.run(op::Add{bucket.own_grads, flat_.streamed_grads_of(streamed, bucket).part, bucket.own_grads}, compute_);
  }
}

void GradSync::finish(const SumGroups& groups) {
  delayed_.clear();
  // 3. Buckets first, then streamed gradients, whose reductions have already begun: adds their sums.
  for (size_t i = 0; i < flat_.buckets.size(); ++i)
    if (flat_.buckets[i].grads && pending_[i] >= 0) start(i);
  for (size_t i = 0; i < flat_.buckets.size(); ++i)
    if (flat_.buckets[i].grads) compute_.wait(*reduced_[i]);
  // The older buffer first: if a rank has a single unit, both buffers hold its gradients, which are added in the order
  // of the micro-batches.
  for (size_t i = 0; i < streamed_.size(); ++i) accumulate(next_streamed_++ % streamed_.size());
  // 4.
  for (const auto& [axes, partial] : flat_.partial_grads) {
    const auto group = groups.find(axes);
    check(group != groups.end(), partial.shards.front()->param->spec.name + ": no group sums its gradient");
    if (group->second) sum_partial(partial, *group->second);
  }
}

// Uses a single all-reduce, as these gradients are many and small.
void GradSync::sum_partial(const FlatBuffer::PartialGrads& partial, Communicator& group) {
  if (!partial.staged) return group.all_reduce(partial.shards.front()->grad, Reduce::sum, compute_);
  const auto for_each_part = [&](auto&& visit) {
    int64_t offset = 0;
    for (const OwnedShard* shard : partial.shards) {
      visit(shard->grad, partial.staged.slice(offset, shard->grad.numel()));
      offset += shard->grad.numel();
    }
  };
  for_each_part([&](Tensor grad, Tensor staged) { ops_.run(op::Convert{grad, staged}, compute_); });
  group.all_reduce(partial.staged, Reduce::sum, compute_);
  for_each_part([&](Tensor grad, Tensor staged) { ops_.run(op::Convert{staged, grad}, compute_); });
}

}  // namespace trivet
