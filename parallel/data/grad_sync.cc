#include "parallel/data/grad_sync.h"

#include <limits>

namespace trivet {

GradSync::GradSync(FlatBuffer& flat, Arena& arena) : flat_(flat), arena_(arena) {
  int64_t elements = 0;
  for (const OwnedPiece& piece : flat_.owned) {
    if (!piece.param->spec.sum_over_tensor_group) continue;
    partial_.push_back(&piece);
    elements += piece.grad.numel();
  }
  if (elements > 0) staging_ = arena.allocate(DType::f32, {elements});
  for (size_t i = 0; i < flat_.buckets.size(); ++i)
    if (flat_.buckets[i].kept) shared_bucket_ = static_cast<int>(i);
  if (!flat_.streams_grads()) return;
  const int64_t largest = flat_.largest_streamed();
  for (int i = 0; i < FlatBuffer::kStreamed; ++i)
    streamed_.push_back({.whole = arena.allocate(DType::f32, {largest}),
                         .part = arena.allocate(DType::f32, {largest / flat_.options.ranks}),
                         .reduced = nullptr});
}

void GradSync::connect(Ops& ops, Stream& compute, Device& device, Communicator& data, const Options& options,
                       Trace* trace) {
  ops_ = &ops;
  compute_ = &compute;
  options_ = options;
  lanes_.emplace(data, Category::comm_data, device, compute, trace, "gradients", options.lanes);
  if (options.register_buffers) lanes_->register_buffers(arena_);
  for (size_t i = 0; i < flat_.buckets.size(); ++i) reduced_.push_back(device.create_event());
  for (Streamed& buffer : streamed_) buffer.reduced = device.create_event();
  pending_.resize(flat_.buckets.size());
}

void GradSync::begin_step() {
  if (options_.poison) ops_->fill(flat_.kept_grads, std::numeric_limits<float>::quiet_NaN(), *compute_);
  flat_.clear_grads(*ops_, *compute_);
  for (size_t i = 0; i < pending_.size(); ++i)
    pending_[i] = static_cast<int64_t>(flat_.buckets[i].units.size()) * options_.micro_batches;
  backward_passes_ = 0;
}

// part = this rank's part of the sum over the data-parallel group; without sharding that is the whole of it.
void GradSync::reduce(Tensor whole, Tensor part, Event& reduced) {
  lanes_->run(reduced, [&](Communicator& data, Stream& stream) {
    if (flat_.shards_optimizer()) data.reduce_scatter(whole, part, options_.op, stream);
    else data.all_reduce(whole, options_.op, stream);
  });
}

void GradSync::start(size_t bucket) {
  reduce(flat_.buckets[bucket].grads, flat_.buckets[bucket].own_grads, *reduced_[bucket]);
  pending_[bucket] = -1;
}

void GradSync::before_backward(int unit) {
  for (const size_t i : flat_.buckets_of_unit[static_cast<size_t>(unit)]) {
    const FlatBucket& bucket = flat_.buckets[i];
    if (bucket.grads) continue;
    Streamed& buffer = streamed_[next_streamed_++ % streamed_.size()];
    settle(buffer);
    buffer.bucket = static_cast<int>(i);
    const Tensor grads = buffer.whole.slice(0, bucket.numel());
    if (options_.poison) ops_->fill(grads, std::numeric_limits<float>::quiet_NaN(), *compute_);
    flat_.clear_grads(i, grads, *ops_, *compute_);
    flat_.point_grads(i, grads);
  }
}

void GradSync::after_backward(int unit) {
  for (const size_t i : flat_.buckets_of_unit[static_cast<size_t>(unit)]) {
    const FlatBucket& bucket = flat_.buckets[i];
    if (bucket.grads) {
      if (--pending_[i] > 0 || !lanes_->beside_compute()) continue;
      if (options_.delay) delayed_.push_back({i, backward_passes_ + *options_.delay});
      else start(i);
      continue;
    }
    for (Streamed& buffer : streamed_) {
      // The other buffer may hold the last micro-batch's gradients of the same bucket, still travelling.
      if (buffer.bucket != static_cast<int>(i) || buffer.travelling) continue;
      reduce(buffer.whole.slice(0, bucket.numel()), buffer.part.slice(0, bucket.own_grads.numel()), *buffer.reduced);
      buffer.travelling = true;
    }
  }
  const auto at = static_cast<size_t>(unit);
  const bool ends_pass = at == 0 || flat_.stage_of_unit[at - 1] != flat_.stage_of_unit[at];
  if (!ends_pass) return;
  ++backward_passes_;
  for (; !delayed_.empty() && delayed_.front().until < backward_passes_; delayed_.pop_front())
    start(delayed_.front().bucket);
}

void GradSync::settle(Streamed& buffer) {
  if (buffer.travelling) {
    const Tensor own = flat_.buckets[static_cast<size_t>(buffer.bucket)].own_grads;
    compute_->wait(*buffer.reduced);
    ops_->add(own, buffer.part.slice(0, own.numel()), own, *compute_);
  }
  buffer.travelling = false;
  buffer.bucket = -1;
}

void GradSync::finish(Communicator& tensor, Communicator* embedding) {
  delayed_.clear();
  for (size_t i = 0; i < flat_.buckets.size(); ++i)
    if (flat_.buckets[i].grads && pending_[i] >= 0) start(i);
  for (size_t i = 0; i < flat_.buckets.size(); ++i)
    if (flat_.buckets[i].grads) compute_->wait(*reduced_[i]);
  // The older first: of a rank with a single unit, both buffers hold its gradients, and micro-batches keep their order.
  for (size_t i = 0; i < streamed_.size(); ++i) settle(streamed_[next_streamed_++ % streamed_.size()]);
  if (!partial_.empty()) sum_partial(tensor);
  if (embedding) {
    check(shared_bucket_ >= 0, "this rank is in the embedding group without the shared embedding");
    embedding->all_reduce(flat_.buckets[static_cast<size_t>(shared_bucket_)].own_grads, Reduce::sum, *compute_);
  }
}

// One all-reduce for all of them: they are many and small.
void GradSync::sum_partial(Communicator& tensor) {
  const auto for_each_part = [&](auto&& visit) {
    int64_t offset = 0;
    for (const OwnedPiece* piece : partial_) {
      visit(piece->grad, staging_.slice(offset, piece->grad.numel()));
      offset += piece->grad.numel();
    }
  };
  for_each_part([&](Tensor grad, Tensor staged) { ops_->convert(grad, staged, *compute_); });
  tensor.all_reduce(staging_, Reduce::sum, *compute_);
  for_each_part([&](Tensor grad, Tensor staged) { ops_->convert(staged, grad, *compute_); });
}

}  // namespace trivet
