// The optimizer of a rank: gradient norm over the whole model, clipping, AdamW (Loshchilov, Hutter 2019) on fp32
// weights and moments of the shards that the rank owns: all parameters, or its part of each bucket (ZeRO).
//
// The norm is an exact sum of squares (op::SumOfSquares): it has the same bits however the parameters are partitioned,
// so clipping cannot make equal layouts differ. It takes one pass over the shards and one or two small all-reduces, on
// the device. It counts the first copy of each parameter (Param::first_copy).
#pragma once

#include "kernels/ops.h"
#include "parallel/comm/comm.h"
#include "parallel/data/flat_buffer.h"

namespace trivet {

class Adam {
 public:
  // Moments, and fp32 main weights where the model's are bf16, come from `arena`. decoupled: parameters with
  // ParamSpec::decoupled_lr have a learning rate of their own.
  Adam(FlatBuffer& flat, Arena& arena, bool decoupled = false);

  // After the weights were initialised: main weights from the model's weights, moments to zero.
  void reset(Ops& ops, Stream& stream);
  // After the main weights were loaded: the model's weights of the shards from them.
  void publish(Ops& ops, Stream& stream);

  // norm = sqrt of the sum of squares of all gradients of the model (over its tensor and pipeline ranks, and the data-
  // parallel ranks that share them), before clipping; grad_scale as in op::ClipScale. REQUIRES: grads are those of the
  // global batch. max_norm 0: no clipping. watched_norm() is NaN on all ranks of the model where an element of
  // `watched` (fp32; null: none) or of a gradient that norm does not count (other copies of a replicated parameter) is
  // not finite.
  void compute_norm(Ops& ops, Communicator& model, Communicator& data, float max_norm, Tensor watched, Stream& stream);
  // One step with the gradients scaled by grad_scale; a no-op where `accepted` ([1] fp32, on the device) is 0.
  // `how.weight_decay` applies to parameters with ParamSpec::weight_decay.
  void step(Ops& ops, Tensor accepted, AdamW how, Stream& stream, float decoupled_lr = 0);

  // [n] fp32 of an owned shard, as checkpointed. In an fp32 run main weights are the model's.
  Tensor main_weights(const OwnedShard& shard) const {
    return main_weights_ ? part(main_weights_, shard) : shard.weight;
  }
  Tensor first_moment(const OwnedShard& shard) const { return part(m_, shard); }
  Tensor second_moment(const OwnedShard& shard) const { return part(v_, shard); }

  Tensor norm() const { return norm_; }                  // [1] fp32; NaN where a gradient is not finite
  Tensor watched_norm() const { return watched_norm_; }  // [1] fp32
  // State of all owned shards, each at its OwnedShard::local; main_weights are null in an fp32 run.
  Tensor main_weights() const { return main_weights_; }
  Tensor first_moments() const { return m_; }
  Tensor second_moments() const { return v_; }

 private:
  static Tensor part(Tensor owned, const OwnedShard& shard) { return owned.slice(shard.local, shard.weight.numel()); }

  FlatBuffer& flat_;
  Tensor main_weights_;  // [owned_numel] fp32; null in an fp32 run
  Tensor m_, v_;         // [owned_numel] fp32
  Tensor all_bins_;      // [2 * kExactSumBins] int64: one all-reduce for both
  Tensor bins_, watched_bins_;
  Tensor norm_, grad_scale_, watched_norm_, ignored_;
  List<AdamWShard> shards_, decoupled_;
  std::vector<Tensor> counted_, checked_;  // gradients: in the norm; checked to be finite only
};

}  // namespace trivet
