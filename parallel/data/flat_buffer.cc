#include "parallel/data/flat_buffer.h"

#include <algorithm>
#include <numeric>

#include "kernels/ops.h"

namespace trivet {
namespace {

// A view of the segment, with its shape, in `flat`, which begins at element `begin` of the layout; null if `flat` is.
Tensor view_of(Tensor flat, int64_t begin, const FlatSegment& segment) {
  if (!flat) return {};
  return flat.slice(segment.offset - begin, segment.param->shape.numel()).view(segment.param->shape);
}

}  // namespace

FlatBuffer::FlatBuffer(ParamList& params, const FlatOptions& given, Arena& weight_arena, Arena& gradient_arena)
    : options(given), buckets_of_unit(params.units().size()), streamed_of_unit(params.units().size()) {
  for (const ParamUnit& unit : params.units()) stage_of_unit.push_back(unit.stage);
  lay_out(params);                                  // 1. parameters, last to first, into buckets
  allocate(weight_arena, gradient_arena);           // 2. their memory: all of a bucket, or this rank's part
  allocate_streamed(weight_arena, gradient_arena);  // 3. two units' whole gradients and weights, if streamed
}

void FlatBuffer::lay_out(ParamList& params) {
  const int64_t unit_of_length = std::lcm(int64_t{options.ranks}, int64_t{128});
  const auto shared = [](const Param& param) { return param.summed_over.has(Axis::pp); };
  const auto stage = [&](const Param& param) { return params.units()[static_cast<size_t>(param.unit)].stage; };
  const auto aligned = [](const Param& param) {
    return (param.shape.numel() + kAlignment - 1) / kAlignment * kAlignment;
  };
  std::vector<Param*> open;  // in the open bucket, or in two: those that are gathered in FP8 follow the others
  int64_t elements = 0;      // in `open`
  const auto close = [&] {
    const int64_t begin = numel;
    for (const bool quantised : {false, true}) {
      FlatBucket bucket{
          .begin = numel, .first_segment = segments.size(), .quantised = quantised, .streamed_at = numel - begin};
      for (Param* const param : open) {
        if ((options.gathers_fp8 && param->spec.quantised) != quantised) continue;
        segments.push_back({param, numel});
        numel += aligned(*param);
        bucket.resident = shared(*param);
        bucket.units.push_back(param->unit);
        for (size_t unit = 0; bucket.resident && unit < params.units().size(); ++unit)
          if (params.units()[unit].shared_use == param) bucket.units.push_back(static_cast<int>(unit));
      }
      bucket.end_segment = segments.size();
      if (bucket.first_segment == bucket.end_segment) continue;
      bucket.end = numel = (numel + unit_of_length - 1) / unit_of_length * unit_of_length;
      std::sort(bucket.units.begin(), bucket.units.end());
      bucket.units.erase(std::unique(bucket.units.begin(), bucket.units.end()), bucket.units.end());
      for (const int unit : bucket.units) {
        buckets_of_unit[static_cast<size_t>(unit)].push_back(buckets.size());
        if (streams_grads() && !bucket.resident) streamed_of_unit[static_cast<size_t>(unit)].push_back(buckets.size());
      }
      buckets.push_back(bucket);
    }
    open.clear();
    elements = 0;
  };
  // Backward order. A bucket closes when it is large enough, or, if it is streamed, at a unit's end.
  const Param* last = nullptr;
  for (auto at = params.all().rbegin(); at != params.all().rend(); ++at) {
    Param& param = *at;
    if (last && (shared(param) || shared(*last) || stage(param) != stage(*last) ||
                 (streams_grads() && param.unit != last->unit)))
      close();
    open.push_back(&param);
    elements += aligned(param);
    if (!streams_grads() && elements >= options.bucket_size) close();
    last = &param;
  }
  close();
}

void FlatBuffer::allocate(Arena& weight_arena, Arena& gradient_arena) {
  const auto part = [&](int64_t elements) { return shards_optimizer() ? elements / options.ranks : elements; };
  int64_t weights = 0, codes = 0, grads = 0;
  for (const FlatBucket& bucket : buckets) {
    const int64_t gathered = streams_weights() && !bucket.resident ? part(bucket.numel()) : bucket.numel();
    weights += bucket.quantised ? part(bucket.numel()) : gathered;
    if (bucket.quantised) codes += gathered;
    grads += streams_grads() && !bucket.resident ? part(bucket.numel()) : bucket.numel();
  }
  stored_weights = weight_arena.allocate(options.dtype, {weights});
  if (codes > 0) stored_codes = weight_arena.allocate(DType::e4m3, {codes});
  if (options.trains) stored_grads = gradient_arena.allocate(DType::f32, {grads});

  int64_t next_weight = 0, next_code = 0, next_grad = 0;
  for (size_t i = 0; i < buckets.size(); ++i) {
    FlatBucket& bucket = buckets[i];
    const int64_t own = part(bucket.numel()), before = shards_optimizer() ? own * options.rank : 0;
    const auto take = [&](bool streamed, Tensor from, int64_t& next, Tensor& whole, Tensor& mine) {
      const int64_t length = streamed ? own : bucket.numel();
      const Tensor memory = from.slice(next, length);
      next += length;
      if (!streamed) whole = memory;
      mine = streamed ? memory : memory.slice(before, own);
    };
    const bool streamed = streams_weights() && !bucket.resident;
    take(streamed || bucket.quantised, stored_weights, next_weight, bucket.weights, bucket.own_weights);
    if (bucket.quantised) take(streamed, stored_codes, next_code, bucket.weights, bucket.own_codes);
    if (bucket.weights) point_weights(i, bucket.weights);
    for (const FlatSegment& segment : segments_of(bucket)) {
      Param& param = *segment.param;
      if (!param.spec.quantised || (streamed && !bucket.quantised)) continue;
      param.fp8_is_current = bucket.quantised;
      if (!bucket.quantised) param.fp8 = weight_arena.allocate(DType::e4m3, param.shape);
      param.fp8_scale = weight_arena.allocate(DType::f32, param.fp8_scale_shape());
    }
    if (!options.trains) continue;
    take(streams_grads() && !bucket.resident, stored_grads, next_grad, bucket.grads, bucket.own_grads);
    bucket.own_begin = bucket.begin + before;
    if (bucket.grads) point_grads(i, bucket.grads);

    for (const FlatSegment& segment : segments_of(bucket)) {
      const int64_t begin = std::max(segment.offset, bucket.own_begin);
      const int64_t end = std::min(segment.offset + segment.param->shape.numel(), bucket.own_begin + own);
      const auto shard_of = [&](Tensor part) {
        return begin < end ? part.slice(begin - bucket.own_begin, end - begin) : part.slice(0, 0);
      };
      const Tensor weight = shard_of(bucket.own_weights);
      if (bucket.quantised) quantised.push_back({segment.param, weight, shard_of(bucket.own_codes), {}});
      if (begin >= end) continue;
      owned.push_back({.param = segment.param,
                       .first = begin - segment.offset,
                       .local = owned_numel + begin - bucket.own_begin,
                       .weight = weight,
                       .grad = shard_of(bucket.own_grads)});
    }
    owned_numel += own;
  }
  if (quantised.empty()) return;
  amaxes = weight_arena.allocate(DType::f32, {static_cast<int64_t>(quantised.size())});
  for (size_t i = 0; i < quantised.size(); ++i) quantised[i].amax = amaxes.slice(static_cast<int64_t>(i), 1);
}

void FlatBuffer::allocate_streamed(Arena& weight_arena, Arena& gradient_arena) {
  int64_t largest = 0, plain = 0, quantised_ones = 0;  // largest numbers of streamed elements in a unit
  for (const FlatBucket& bucket : buckets) {
    if (bucket.resident) continue;
    largest = std::max(largest, bucket.streamed_at + bucket.numel());
    int64_t& of_kind = bucket.quantised ? quantised_ones : plain;
    of_kind = std::max(of_kind, bucket.numel());
  }
  for (int i = 0; i < kStreamed; ++i) {
    if (streams_weights())
      streamed_weights.push_back(
          {weight_arena.allocate(options.dtype, {plain}),
           quantised_ones > 0 ? weight_arena.allocate(DType::e4m3, {quantised_ones}) : Tensor{}});
    if (streams_grads())
      streamed_grads.push_back({.whole = gradient_arena.allocate(DType::f32, {largest}),
                                .part = gradient_arena.allocate(DType::f32, {largest / options.ranks})});
  }
  for (const OwnedShard& shard : owned)
    if (const AxisSet axes = shard.param->summed_over; axes != AxisSet{}) partial_grads[axes].shards.push_back(&shard);
  for (auto& [axes, partial] : partial_grads) {
    int64_t elements = 0;
    for (const OwnedShard* shard : partial.shards) elements += shard->grad.numel();
    if (partial.shards.size() > 1) partial.staged = gradient_arena.allocate(DType::f32, {elements});
  }
}

void FlatBuffer::initialize(const std::function<void(const Param&)>& write, Ops& ops, Stream& stream) const {
  for (size_t i = 0; i < buckets.size(); ++i) {
    const FlatBucket& bucket = buckets[i];
    // Weights that are stored only in FP8 are initialised in gradient memory, which has room for them.
    const Tensor whole =
        bucket.quantised
            ? Tensor{(bucket.grads ? bucket.grads : streamed_grads[0].whole).data, options.dtype, {bucket.numel()}}
        : bucket.weights ? bucket.weights
                         : streamed_weights_of(0, bucket);
    ops.run(op::Fill{whole, 0}, stream);
    point(i, whole, &Param::weight);
    for (const FlatSegment& segment : segments_of(bucket)) write(*segment.param);
    if (whole.data == bucket.weights.data) continue;
    ops.run(op::Convert{whole.slice(bucket.own_begin - bucket.begin, bucket.own_weights.numel()), bucket.own_weights},
            stream);
    point(i, {}, &Param::weight);
  }
}

void FlatBuffer::clear_grads(Ops& ops, Stream& stream) const {
  std::vector<Tensor> cleared;
  for (size_t i = 0; i < buckets.size(); ++i)
    if (buckets[i].grads) collect_cleared(i, buckets[i].grads, cleared);
    else cleared.push_back(buckets[i].own_grads);
  ops.run(op::Clear{cleared}, stream);
}

void FlatBuffer::clear_grads(size_t bucket, Tensor whole, Ops& ops, Stream& stream) const {
  std::vector<Tensor> cleared;
  collect_cleared(bucket, whole, cleared);
  ops.run(op::Clear{cleared}, stream);
}

// Collects all ranges, gaps included, except the gradients that will be overwritten on first use.
void FlatBuffer::collect_cleared(size_t bucket, Tensor whole, std::vector<Tensor>& cleared) const {
  int64_t done = 0;
  const auto clear_to = [&](int64_t end) {
    if (end > done) cleared.push_back(whole.slice(done, end - done));
  };
  for (const FlatSegment& segment : segments_of(buckets[bucket])) {
    Param& param = *segment.param;
    if (!param.spec.overwrite_on_first_use) continue;
    param.overwrite = true;
    const int64_t at = segment.offset - buckets[bucket].begin;
    clear_to(at);
    done = at + param.shape.numel();
  }
  clear_to(buckets[bucket].numel());
}

void FlatBuffer::point(size_t bucket, Tensor whole, Tensor Param::*which) const {
  for (const FlatSegment& segment : segments_of(buckets[bucket]))
    segment.param->*which = view_of(whole, buckets[bucket].begin, segment);
}

}  // namespace trivet
