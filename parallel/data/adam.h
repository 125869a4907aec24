// The optimizer of a rank: gradient norm over the whole model, clipping, AdamW (Loshchilov, Hutter 2019) on fp32
// weights and moments of the pieces that the rank owns: all parameters, or its part of each bucket (ZeRO).
//
// The norm is an exact sum of squares (op::SumOfSquares), so it has the same bits however the parameters are cut
// over ranks, and clipping cannot make equal layouts differ. It is one pass over the pieces and one or two small
// all-reduces, and stays on the device. Of each parameter's copies the first is counted (Param::first_copy).
#pragma once

#include "kernels/ops.h"
#include "parallel/comm/comm.h"
#include "parallel/data/flat_buffer.h"

namespace trivet {

class Adam {
 public:
  // Moments, and fp32 main weights where the model's are bf16, come from `arena`.
  Adam(FlatBuffer& flat, Arena& arena);

  // Main weights from the model's weights, moments to zero: when the weights have been initialised.
  void reset(Ops& ops, Stream& stream);
  // The model's weights of the pieces from the main weights: when these have been loaded.
  void publish(Ops& ops, Stream& stream);

  // norm = sqrt of the sum of squares of all gradients of the model (its tensor and pipeline ranks, and the data-
  // parallel ranks that share them), before clipping; grad_scale as op::ClipScale makes it. REQUIRES: grads are those
  // of the global batch. max_norm 0: no clipping. watched (null: nothing): other numbers of this rank, fp32, that are
  // looked at on the way: watched_norm() is a NaN on all ranks of the model where one of them is not finite, or
  // a gradient that norm does not count: the further copies of a replicated parameter's.
  void compute_norm(Ops& ops, Communicator& model, Communicator& data, float max_norm, Tensor watched, Stream& stream);
  // One step with the gradients scaled by grad_scale, where `accepted` ([1] fp32, on the device) is not 0; else nothing
  // changes. `how.weight_decay` goes to the parameters that want it.
  void step(Ops& ops, Tensor accepted, const AdamW& how, Stream& stream);

  // [n] fp32 of an owned piece: what a checkpoint keeps. Main weights are the piece's own in an fp32 run.
  Tensor main_weights(const OwnedShard& piece) const {
    return main_weights_ ? part(main_weights_, piece) : piece.weight;
  }
  Tensor first_moment(const OwnedShard& piece) const { return part(m_, piece); }
  Tensor second_moment(const OwnedShard& piece) const { return part(v_, piece); }

  Tensor norm() const { return norm_; }                  // [1] fp32; NaN where a gradient is not finite
  Tensor watched_norm() const { return watched_norm_; }  // [1] fp32
  // Of this rank's pieces, where OwnedShard::local says; main_weights are null in an fp32 run.
  Tensor main_weights() const { return main_weights_; }
  Tensor first_moments() const { return m_; }
  Tensor second_moments() const { return v_; }
  Tensor grad_scale() const { return grad_scale_; }  // [1] fp32

 private:
  static Tensor part(Tensor owned, const OwnedShard& piece) { return owned.slice(piece.local, piece.weight.numel()); }

  FlatBuffer& flat_;
  Tensor main_weights_;  // [owned_numel] fp32; null in an fp32 run, where the model's are the main weights
  Tensor m_, v_;         // [owned_numel] fp32
  Tensor all_bins_;      // [2 * kExactSumBins] int64: one all-reduce for both
  Tensor bins_, watched_bins_;
  Tensor norm_, grad_scale_, watched_norm_, ignored_;
  List<AdamWShard> pieces_;                  // what this rank owns
  std::vector<Tensor> counted_, looked_at_;  // gradients: of the norm, and those that must only be finite
};

}  // namespace trivet
