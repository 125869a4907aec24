// FlatBuffer: the memory of all parameters of a rank, laid out once. Weights in the model's dtype and fp32 gradients
// have the same layout, so that a range of elements means the same weights in both, in the optimizer's moments, and in
// the collectives: nothing is packed or copied.
//
// Parameters stand in backward order (the reverse of their declaration), each from a multiple of 64 elements on, so
// that gradients become final from the front of the layout to its end, bucket by bucket. A bucket is a multiple of
// lcm(d, 128) elements long; of each, every data-parallel rank owns an equal, contiguous part. The gaps are zero.
//
// What a rank keeps of weights, gradients and optimizer state is the sharding strategy's choice (ZeRO: Rajbhandari et
// al. 2020; d data-parallel ranks, n parameters, bf16 model):
//
//                       weights   gradients   main weights, moments
//   no_shard             2 n        4 n           12 n
//   optim       (1)      2 n        4 n           12 n / d
//   optim_grads (2)      2 n        4 n / d       12 n / d      + two units' gradients
//   optim_grads_params   2 n / d    4 n / d       12 n / d      + two units' gradients and weights
//
// Under the last two a bucket is a unit (ParamUnit), and what is not kept is streamed: it exists for the units at work.
// A weight that two stages may have (tied embeddings) is used by two units, and so is always kept whole.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <vector>

#include "kernels/base/arena.h"
#include "kernels/ops.h"
#include "parallel/param.h"

namespace trivet {

enum class Sharding { no_shard, optim, optim_grads, optim_grads_params };
// A bucket is then a unit of the model, and its gradients are there for the units at work.
constexpr bool streams_grads(Sharding sharding) { return sharding >= Sharding::optim_grads; }

struct FlatSegment {
  Param* param = nullptr;
  int64_t offset = 0;  // in elements
};

struct FlatBucket {
  int64_t begin = 0, end = 0;                 // in elements
  size_t first_segment = 0, end_segment = 0;  // of FlatBuffer::segments
  std::vector<int> units{};                   // that use its weights, ascending; one entry each
  bool kept = false;                          // whole, whatever the strategy
  Tensor weights;                             // all of it, model dtype; null where it is streamed
  Tensor grads;                               // all of it, fp32; null where it is streamed
  Tensor own_weights;                         // this rank's part: of `weights`, or memory of its own
  Tensor own_grads;       // this rank's part of the reduced gradients: of `grads`, or memory of its own
  int64_t own_begin = 0;  // of this rank's part, in elements of the layout
  int64_t numel() const { return end - begin; }
};

// A part of a parameter that this rank owns, and so updates.
struct OwnedShard {
  Param* param = nullptr;
  int64_t first = 0;  // element of the parameter (of this tensor rank's part of it)
  int64_t local = 0;  // where it stands in the rank's owned elements: in moments and main weights
  Tensor weight;      // [n] model dtype
  Tensor grad;        // [n] fp32
};

struct FlatOptions {
  DType dtype = DType::f32;
  int64_t bucket_size = 0;  // elements; not under the strategies whose buckets are units
  Sharding sharding = Sharding::no_shard;
  int rank = 0, ranks = 1;  // of the group over kGradientAxes
  bool trains = true;       // else there are weights only: no gradients, and nothing that is owned
};

struct FlatBuffer {
  static constexpr int64_t kAlignment = 64;  // elements
  static constexpr int kStreamed = 2;        // buckets at work: one that is computed on, and one that travels

  // Lays the parameters out, takes the memory, contents undefined, and points every parameter's weight and grad into it
  // where they are kept. A bucket closes with the parameter that brings it to bucket_size elements, with a stage, and
  // around a weight that two stages may have; or with a unit. What is streamed gets its buffers here, too.
  FlatBuffer(ParamList& params, const FlatOptions& options, Arena& weight_arena, Arena& gradient_arena);

  bool shards_optimizer() const { return options.sharding != Sharding::no_shard; }
  bool streams_grads() const { return trivet::streams_grads(options.sharding); }
  bool streams_weights() const { return options.sharding == Sharding::optim_grads_params; }
  // Calls write(param) for all parameters, one bucket at a time with whole weights to write to, zeroed; keeps what is
  // this rank's.
  void initialize(const std::function<void(const Param&)>& write, Ops& ops, Stream& stream) const;
  // Makes the gradients that are kept ready for a step's sums: 0, or to be overwritten by the first one to add
  // (Param::take_overwrite), which are nearly all.
  void clear_grads(Ops& ops, Stream& stream) const;
  // The same for a bucket's gradients in `whole` [bucket's numel], where its parameters are pointed to.
  void clear_grads(size_t bucket, Tensor whole, Ops& ops, Stream& stream) const;
  // Points the bucket's parameters into `whole` [bucket's numel or more]; null: nowhere.
  void point_weights(size_t bucket, Tensor whole) const;
  void point_grads(size_t bucket, Tensor whole) const;
  std::span<const FlatSegment> segments_of(const FlatBucket& bucket) const {
    return std::span(segments).subspan(bucket.first_segment, bucket.end_segment - bucket.first_segment);
  }

  FlatOptions options;
  std::vector<FlatSegment> segments;  // backward order
  std::vector<FlatBucket> buckets;    // cover [0, numel)
  std::vector<OwnedShard> owned;      // in the order of the layout
  std::vector<std::vector<size_t>> buckets_of_unit;
  std::vector<int> stage_of_unit;
  int64_t numel = 0;                // of the layout
  int64_t owned_numel = 0;          // of this rank's parts: numel, or numel / ranks
  Tensor kept_weights, kept_grads;  // the memory of all buckets, one behind the other
  // Where streamed buckets are while their units are at work; empty: none are streamed.
  struct StreamedGrads {
    Tensor whole;  // [largest] fp32
    Tensor part;   // [largest / ranks] this rank's part of the sum
  };
  std::vector<StreamedGrads> streamed_grads;  // [kStreamed]
  std::vector<Tensor> streamed_weights;       // [kStreamed], [largest] model dtype
  // Own gradients that are partial on further axes (Param::summed_over), by the set of them.
  struct PartialGrads {
    std::vector<const OwnedShard*> pieces;
    Tensor staged;  // [their elements] fp32, one behind the other while they are summed; null: one piece, in its place
  };
  std::map<AxisSet, PartialGrads> partial_grads;

 private:
  void lay_out(ParamList& params);
  void allocate(Arena& weight_arena, Arena& gradient_arena);
  void allocate_streamed(Arena& weight_arena, Arena& gradient_arena);
  void begin_grads(size_t bucket, Tensor whole, std::vector<Tensor>& cleared) const;
};

// The segment in its shape, in a tensor that begins at element `begin` of the layout; null in a null one.
Tensor view_of(Tensor flat, int64_t begin, const FlatSegment& segment);

}  // namespace trivet
