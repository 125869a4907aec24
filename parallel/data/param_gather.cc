#include "parallel/data/param_gather.h"

#include <limits>

namespace trivet {

ParamGather::ParamGather(FlatBuffer& flat, Arena& arena) : flat_(flat) {
  if (!flat_.streams_weights()) return;
  for (int i = 0; i < FlatBuffer::kStreamed; ++i)
    streamed_.push_back({.whole = arena.allocate(flat_.options.dtype, {flat_.largest_streamed()}),
                         .free = nullptr,
                         .gathered = nullptr});
}

void ParamGather::connect(Ops& ops, Stream& compute, Device& device, Communicator& data, int lanes, bool poison,
                          Trace* trace) {
  ops_ = &ops;
  compute_ = &compute;
  data_ = &data;
  poison_ = poison;
  if (lanes > 0) lanes_ = std::make_unique<Lanes>(data, Category::comm_data, device, trace, "weights", lanes);
  for (size_t i = 0; i < flat_.buckets.size(); ++i) {
    updated_.push_back(device.create_event());
    gathered_.push_back(device.create_event());
  }
  for (Streamed& buffer : streamed_) {
    buffer.free = device.create_event();
    buffer.gathered = device.create_event();
  }
  under_way_.resize(flat_.buckets.size());
}

void ParamGather::gather(Tensor part, Tensor whole, Event& before, Event& gathered) {
  if (!lanes_) return data_->all_gather(part, whole, *compute_);
  Lane& lane = lanes_->next();
  compute_->record(before);
  lane.stream->wait(before);
  lane.group->all_gather(part, whole, *lane.stream);
  lane.stream->record(gathered);
}

void ParamGather::updated() {
  if (!flat_.shards_optimizer()) return;
  finish();
  for (Streamed& buffer : streamed_) buffer.bucket = -1;
  // Backwards through the layout: the order of the forward pass.
  for (size_t i = flat_.buckets.size(); i-- > 0;) {
    const FlatBucket& bucket = flat_.buckets[i];
    if (!bucket.weights) continue;
    if (poison_) {
      const int64_t before = bucket.own_begin - bucket.begin, behind = before + bucket.own_weights.numel();
      const float nan = std::numeric_limits<float>::quiet_NaN();
      ops_->fill(bucket.weights.slice(0, before), nan, *compute_);
      ops_->fill(bucket.weights.slice(behind, bucket.numel() - behind), nan, *compute_);
    }
    gather(bucket.own_weights, bucket.weights, *updated_[i], *gathered_[i]);
    under_way_[i] = lanes_ != nullptr;
  }
}

void ParamGather::finish() {
  for (size_t i = 0; i < under_way_.size(); ++i) {
    if (under_way_[i]) compute_->wait(*gathered_[i]);
    under_way_[i] = false;
  }
  for (Streamed& buffer : streamed_)
    if (lanes_) compute_->wait(*buffer.gathered);
}

int ParamGather::streamed_bucket(int unit) const {
  for (const size_t i : flat_.buckets_of_unit[static_cast<size_t>(unit)])
    if (!flat_.buckets[i].weights) return static_cast<int>(i);
  return -1;
}

// Starts gathering the bucket, unless a buffer has it already; returns the buffer.
size_t ParamGather::gather_streamed(int bucket_number) {
  for (size_t i = 0; i < streamed_.size(); ++i)
    if (streamed_[i].bucket == bucket_number) return i;
  const size_t taken = (current_ + 1) % streamed_.size();
  Streamed& buffer = streamed_[taken];
  if (lanes_) compute_->wait(*buffer.gathered);  // something that was gathered ahead and not used
  if (buffer.bucket >= 0) flat_.point_weights(static_cast<size_t>(buffer.bucket), {});
  buffer.bucket = bucket_number;
  const FlatBucket& bucket = flat_.buckets[static_cast<size_t>(bucket_number)];
  const Tensor whole = buffer.whole.slice(0, bucket.numel());
  if (poison_) ops_->fill(whole, std::numeric_limits<float>::quiet_NaN(), *compute_);
  gather(bucket.own_weights, whole, *buffer.free, *buffer.gathered);
  return taken;
}

void ParamGather::use(int unit, int next) {
  for (const size_t i : flat_.buckets_of_unit[static_cast<size_t>(unit)]) {
    if (under_way_[i]) compute_->wait(*gathered_[i]);
    under_way_[i] = false;
  }
  if (streamed_.empty()) return;
  if (const int bucket = streamed_bucket(unit); bucket >= 0) {
    current_ = gather_streamed(bucket);
    Streamed& buffer = streamed_[current_];
    if (lanes_) compute_->wait(*buffer.gathered);
    flat_.point_weights(static_cast<size_t>(bucket),
                        buffer.whole.slice(0, flat_.buckets[static_cast<size_t>(bucket)].numel()));
  }
  if (!lanes_ || next < 0 || next >= static_cast<int>(flat_.stage_of_unit.size())) return;
  const auto stage = [&](int u) { return flat_.stage_of_unit[static_cast<size_t>(u)]; };
  if (stage(next) != stage(unit)) return;
  if (const int bucket = streamed_bucket(next); bucket >= 0) gather_streamed(bucket);
}

}  // namespace trivet
