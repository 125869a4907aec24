#include "parallel/data/param_gather.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "kernels/ops.h"

namespace trivet {

ParamGather::ParamGather(FlatBuffer& flat, Ops& ops, const CommStreamSite& on, const Options& options)
    : flat_(flat),
      ops_(ops),
      compute_(on.compute),
      data_(on.group),
      options_(options),
      streamed_(flat.streams_weights() ? FlatBuffer::kStreamed : 0, -1),
      not_begun_(flat.buckets.size()),
      in_flight_(flat.buckets.size()),
      comm_streams_(on, comm_of("data"), "weights", options.comm_streams) {
  if (options_.registered) comm_streams_.register_buffers(*options_.registered);
  for (size_t i = 0; i < flat_.buckets.size(); ++i) gathered_.push_back(on.device.create_event());
}

void ParamGather::gather(size_t bucket, Tensor whole, Event& gathered) {
  const ScopedLabel label(compute_, flat_.label_of(bucket, compute_.label()));
  const FlatBucket& from = flat_.buckets[bucket];
  comm_streams_.run(gathered, [&](Communicator& data, Stream& stream) {
    data.all_gather(from.quantised ? from.own_codes : from.own_weights, whole, stream);
  });
}

void ParamGather::quantise() {
  if (flat_.quantised.empty()) return;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const QuantisedShard& shard : flat_.quantised) {
    if (options_.poison) ops_.run(op::Fill{shard.param->fp8_scale, nan}, compute_);
    ops_.run(op::Amax{shard.weight, shard.amax}, compute_);
  }
  data_.all_reduce(flat_.amaxes, Reduce::max, compute_);
  if (options_.tensor) options_.tensor->all_reduce(flat_.amaxes, Reduce::max, compute_);
  for (const QuantisedShard& shard : flat_.quantised) {
    SpanLabel in = compute_.label();
    in.first_unit = in.last_unit = shard.param->unit;
    const ScopedLabel label(compute_, in);
    ops_.run(op::Quantize{shard.weight, shard.amax, shard.codes, shard.param->fp8_scale}, compute_);
  }
}

void ParamGather::updated() {
  flat_.weights_changed();
  if (!flat_.shards_optimizer()) return;
  finish();
  std::ranges::fill(streamed_, -1);
  forward_passes_ = 0;
  quantise();
  for (size_t i = 0; i < flat_.buckets.size(); ++i) {
    const FlatBucket& bucket = flat_.buckets[i];
    not_begun_[i] = static_cast<bool>(bucket.weights);
    if (bucket.weights && options_.poison) {
      const int64_t before = bucket.own_begin - bucket.begin, behind = before + bucket.own_weights.numel();
      const float nan = std::numeric_limits<float>::quiet_NaN();
      ops_.run(op::Fill{bucket.weights.slice(0, before), nan}, compute_);
      ops_.run(op::Fill{bucket.weights.slice(behind, bucket.numel() - behind), nan}, compute_);
    }
  }
  if (options_.forward_chunks.empty())
    for (const int stage : flat_.stage_of_unit) start_stage(stage);
  else start_stage(0);
}

void ParamGather::start_stage(int stage) {
  // Backwards through the layout: the order of the forward pass.
  for (size_t i = flat_.buckets.size(); i-- > 0;) {
    const FlatBucket& bucket = flat_.buckets[i];
    if (!not_begun_[i] || flat_.stage_of_unit[static_cast<size_t>(bucket.units.front())] != stage) continue;
    gather(i, bucket.weights, *gathered_[i]);
    not_begun_[i] = false;
    in_flight_[i] = true;
  }
}

// Megatron's rule: when pass k + ahead is the first of a chunk, the next chunk's weights are due; the first chunk's are
// due immediately.
void ParamGather::begin_forward_pass() {
  if (options_.forward_chunks.empty()) return;
  start_stage(0);
  const std::vector<int>& chunks = options_.forward_chunks;
  const size_t due = std::min(forward_passes_ + static_cast<size_t>(options_.ahead), chunks.size() - 1);
  const int last = *std::max_element(chunks.begin(), chunks.begin() + static_cast<std::ptrdiff_t>(due) + 1);
  for (int stage = 1; stage <= last + 1; ++stage) start_stage(stage);
  ++forward_passes_;
}

void ParamGather::finish() {
  for (const int stage : flat_.stage_of_unit) start_stage(stage);
  for (size_t i = 0; i < in_flight_.size(); ++i) {
    if (in_flight_[i]) compute_.wait(*gathered_[i]);
    in_flight_[i] = false;
  }
  wait_for_prefetches();
}

// A later stage whose last recomputed group has one layer prefetches the next unit, which is never used.
void ParamGather::wait_for_prefetches() {
  for (const int unit : streamed_)
    if (unit >= 0)
      for (const size_t i : flat_.streamed_of_unit[static_cast<size_t>(unit)]) compute_.wait(*gathered_[i]);
}

// Starts gathering the unit's weights, unless a buffer already holds them; returns the buffer.
size_t ParamGather::gather_streamed(int unit) {
  for (size_t i = 0; i < streamed_.size(); ++i)
    if (streamed_[i] == unit) return i;
  const size_t taken = (current_ + 1) % streamed_.size();
  if (const int before = std::exchange(streamed_[taken], unit); before >= 0)
    for (const size_t i : flat_.streamed_of_unit[static_cast<size_t>(before)]) {
      compute_.wait(*gathered_[i]);  // a prefetch that was not used
      flat_.point_weights(i, {});
    }
  for (const size_t i : flat_.streamed_of_unit[static_cast<size_t>(unit)]) {
    const Tensor whole = flat_.streamed_weights_of(taken, flat_.buckets[i]);
    if (options_.poison) ops_.run(op::Fill{whole, std::numeric_limits<float>::quiet_NaN()}, compute_);
    gather(i, whole, *gathered_[i]);
  }
  return taken;
}

void ParamGather::use(int unit, int next) {
  for (const size_t i : flat_.buckets_of_unit[static_cast<size_t>(unit)])
    if (not_begun_[i]) start_stage(flat_.stage_of_unit[static_cast<size_t>(flat_.buckets[i].units.front())]);
  for (const size_t i : flat_.buckets_of_unit[static_cast<size_t>(unit)]) {
    if (in_flight_[i]) compute_.wait(*gathered_[i]);
    in_flight_[i] = false;
  }
  if (streamed_.empty()) return;
  if (const auto& buckets = flat_.streamed_of_unit[static_cast<size_t>(unit)]; !buckets.empty()) {
    current_ = gather_streamed(unit);
    for (const size_t i : buckets) {
      compute_.wait(*gathered_[i]);
      flat_.point_weights(i, flat_.streamed_weights_of(current_, flat_.buckets[i]));
    }
  }
  if (!comm_streams_.beside_compute() || next < 0 || next >= static_cast<int>(flat_.stage_of_unit.size())) return;
  if (flat_.stage_of_unit[static_cast<size_t>(next)] != flat_.stage_of_unit[static_cast<size_t>(unit)]) return;
  if (!flat_.streamed_of_unit[static_cast<size_t>(next)].empty()) gather_streamed(next);
}

}  // namespace trivet
