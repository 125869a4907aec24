// FlatBuffer: the memory of all parameters of a rank. Weights in the model's dtype and fp32 gradients have the same
// layout, so that a range of elements holds the same weights in both, in the optimizer's moments, and in the
// collectives, without packing or copying.
//
// Parameters are in backward order (the reverse of their declaration), aligned to 64 elements, so that gradients become
// final from the front of the layout to its end, bucket by bucket. A bucket is a multiple of lcm(d, 128) elements long;
// every rank of the data-parallel (and context) group owns an equal, contiguous part of each, unless nothing is
// sharded. The gaps are zero.
//
// Bytes stored per rank, by sharding strategy (ZeRO: Rajbhandari et al. 2020; d data-parallel ranks, n
// parameters, bf16 model):
//
//                       weights   gradients   main weights, moments
//   no_shard             2 n        4 n           12 n
//   optim       (1)      2 n        4 n           12 n / d
//   optim_grads (2)      2 n        4 n / d       12 n / d      + two units' gradients
//   … _params    (3)     2 n / d    4 n / d       12 n / d      + two units' gradients and weights
//
// Under the last two a bucket is a unit (ParamUnit), whose full weights or gradients are streamed: they exist only
// while the unit runs. A weight that two stages may share (tied embeddings) is used by two units and is never streamed.
//
// With FlatOptions::gathers_fp8, weights that GEMMs read in FP8 have their own buckets, next to the others.
// Whole weights are E4M3 codes; a rank also holds its own part in bf16, which the optimizer writes. That is n + 2 n / d
// bytes under optim and optim_grads (otherwise 2 n, plus n for codes), and 3 n / d under optim_grads_params.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <span>
#include <vector>

#include "kernels/base/arena.h"
#include "parallel/param.h"

namespace trivet {

class Ops;

enum class Sharding { no_shard, optim, optim_grads, optim_grads_params };
constexpr bool streams_grads(Sharding sharding) { return sharding >= Sharding::optim_grads; }

struct FlatSegment {
  Param* param = nullptr;
  int64_t offset = 0;  // in elements
};

struct FlatBucket {
  int64_t begin = 0, end = 0;                 // in elements
  size_t first_segment = 0, end_segment = 0;  // in FlatBuffer::segments
  std::vector<int> units{};                   // the units that use its weights, ascending; one entry each
  bool resident = false;                      // never streamed, under any strategy
  bool quantised = false;                     // its weights are gathered in FP8
  int64_t streamed_at = 0;                    // offset in its unit's gradient buffer, in elements
  Tensor weights{};                           // model dtype, or E4M3 codes; null if they are streamed
  Tensor grads{};                             // fp32; null if they are streamed
  Tensor own_weights{};                       // model dtype; this rank's part: a slice of `weights`, or separate memory
  Tensor own_codes{};                         // if quantised: the same, as codes
  Tensor own_grads{};                         // this rank's part of the reduced gradients; likewise
  int64_t own_begin = 0;                      // where this rank's part begins in the layout, in elements
  int64_t numel() const { return end - begin; }
};

// A part of a parameter that this rank owns and updates.
struct OwnedShard {
  Param* param = nullptr;
  int64_t first = 0;  // index in the parameter (in this tensor rank's part of it)
  int64_t local = 0;  // index in the rank's owned elements: moments and main weights
  Tensor weight;      // [n] model dtype
  Tensor grad;        // [n] fp32
};

// This rank's part of a weight that is gathered in FP8; no elements if it owns none.
struct QuantisedShard {
  Param* param = nullptr;
  Tensor weight;  // [n] model dtype
  Tensor codes;   // [n] E4M3
  Tensor amax;    // [1] fp32, in FlatBuffer::amaxes
};

struct FlatOptions {
  DType dtype = DType::f32;
  int64_t bucket_size = 0;  // elements; unused by the strategies whose buckets are units
  Sharding sharding = Sharding::no_shard;
  int rank = 0, ranks = 1;   // in the group over kGradientAxes
  bool trains = true;        // else weights only: no gradients, no owned shards
  bool gathers_fp8 = false;  // gather in FP8 the weights that GEMMs read in FP8. REQUIRES: trains; sharded
};

struct FlatBuffer {
  static constexpr int64_t kAlignment = 64;  // elements
  static constexpr int kStreamed = 2;        // units: one in use by compute, one in flight

  // Lays out the parameters, allocates the memory (contents undefined), including streaming buffers, and points every
  // parameter's weight and grad into it unless they are streamed. A bucket closes with the parameter that brings it to
  // bucket_size elements, at a stage's end, and before and after a weight that two stages may share, so that both own
  // the same parts of it; a streamed bucket closes at each unit's end.
  FlatBuffer(ParamList& params, const FlatOptions& options, Arena& weight_arena, Arena& gradient_arena);

  bool shards_optimizer() const { return options.sharding != Sharding::no_shard; }
  bool streams_grads() const { return trivet::streams_grads(options.sharding); }
  bool streams_weights() const { return options.sharding == Sharding::optim_grads_params; }
  // Calls write(param) for all parameters, bucket by bucket, with their full weights zeroed; stores this rank's part.
  void initialize(const std::function<void(const Param&)>& write, Ops& ops, Stream& stream) const;
  // Prepares the gradients that are not streamed for a step's sums: nearly all will be overwritten on first use
  // (Param::take_overwrite); the rest are zeroed.
  void clear_grads(Ops& ops, Stream& stream) const;
  // The same for a bucket's gradients in `whole` [bucket's numel].
  void clear_grads(size_t bucket, Tensor whole, Ops& ops, Stream& stream) const;
  // Points the bucket's parameters into `whole` [bucket's numel or more], or to null.
  void point_weights(size_t bucket, Tensor whole) const {
    point(bucket, whole, buckets[bucket].quantised ? &Param::fp8 : &Param::weight);
  }
  void point_grads(size_t bucket, Tensor whole) const { point(bucket, whole, &Param::grad); }
  // To be called after writing weights: their quantised copies are stale, unless the copies are gathered.
  void weights_changed() const {
    for (const FlatSegment& segment : segments) segment.param->fp8_is_current = options.gathers_fp8;
  }
  // The label of work on that bucket: `in`, with the bucket and its units filled in.
  SpanLabel label_of(size_t bucket, SpanLabel in) const {
    const std::vector<int>& units = buckets[bucket].units;
    if (!units.empty()) in.first_unit = units.front(), in.last_unit = units.back();
    in.bucket = static_cast<int>(bucket);
    return in;
  }
  std::span<const FlatSegment> segments_of(const FlatBucket& bucket) const {
    return std::span(segments).subspan(bucket.first_segment, bucket.end_segment - bucket.first_segment);
  }

  FlatOptions options;
  std::vector<FlatSegment> segments;      // backward order; those gathered in FP8 follow the others of their range
  std::vector<FlatBucket> buckets;        // cover [0, numel)
  std::vector<OwnedShard> owned;          // in layout order
  std::vector<QuantisedShard> quantised;  // one shard per weight that is gathered in FP8
  Tensor amaxes;                          // [quantised.size()] fp32: the largest magnitudes of these weights
  std::vector<std::vector<size_t>> buckets_of_unit;
  std::vector<std::vector<size_t>> streamed_of_unit;  // buckets whose gradients are streamed
  std::vector<int> stage_of_unit;
  int64_t numel = 0;                                  // elements in the layout
  int64_t owned_numel = 0;                            // elements in this rank's parts: numel, or numel / ranks
  Tensor stored_weights, stored_codes, stored_grads;  // the memory of all buckets, concatenated
  // Buffers for the streamed buckets of a unit; empty if none are streamed.
  struct StreamedGrads {
    Tensor whole;  // [largest] fp32
    Tensor part;   // [largest / ranks] this rank's part of the sum
  };
  std::vector<StreamedGrads> streamed_grads;            // [kStreamed]
  std::vector<std::array<Tensor, 2>> streamed_weights;  // [kStreamed]: [largest] model dtype; [largest] E4M3, or null
  // The bucket's part of streamed_weights[buffer].
  Tensor streamed_weights_of(size_t buffer, const FlatBucket& bucket) const {
    return streamed_weights[buffer][bucket.quantised].slice(0, bucket.numel());
  }
  StreamedGrads streamed_grads_of(size_t buffer, const FlatBucket& bucket) const {
    const auto& [whole, part] = streamed_grads[buffer];
    return {whole.slice(bucket.streamed_at, bucket.numel()),
            part.slice(bucket.streamed_at / options.ranks, bucket.numel() / options.ranks)};
  }
  // Owned gradients that are partial on further axes (Param::summed_over), keyed by these axes.
  struct PartialGrads {
    std::vector<const OwnedShard*> shards;
    Tensor staged;  // [their total numel] fp32: concatenated for the sum; null: one shard, summed in place
  };
  std::map<AxisSet, PartialGrads> partial_grads;

 private:
  void lay_out(ParamList& params);
  void point(size_t bucket, Tensor whole, Tensor Param::*which) const;
  void allocate(Arena& weight_arena, Arena& gradient_arena);
  void allocate_streamed(Arena& weight_arena, Arena& gradient_arena);
  void collect_cleared(size_t bucket, Tensor whole, std::vector<Tensor>& cleared) const;
};

}  // namespace trivet
