// The optimizer of a rank: gradient norm over the whole model, clipping, AdamW (Loshchilov, Hutter 2019) on fp32
// weights and moments that mirror the flat buffer.
//
// The norm is an exact sum of squares (Ops::sum_of_squares), so it has the same bits however the parameters are cut
// over ranks, and clipping cannot make equal layouts differ. Replicated parameters are counted on tensor rank 0 alone.
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

  // norm = sqrt of the sum of squares of all gradients of the model (its tensor and pipeline ranks), before clipping;
  // grad_scale as Ops::clip_scale makes it. REQUIRES: grads are those of the global batch. max_norm 0: no clipping.
  void compute_norm(Ops& ops, Communicator& tensor, Communicator& model, float max_norm, Stream& stream);
  // One step with the gradients scaled by grad_scale. `how.weight_decay` goes to the parameters that want it.
  void step(Ops& ops, const AdamW& how, Stream& stream);

  Tensor norm() const { return norm_; }              // [1] fp32; NaN where a gradient is not finite
  Tensor grad_scale() const { return grad_scale_; }  // [1] fp32

 private:
  FlatBuffer& flat_;
  Tensor main_weights_;  // [numel] fp32: flat_.weights itself in an fp32 run
  Tensor m_, v_;         // [numel] fp32
  Tensor bins_;          // [kExactSumBins] int64
  Tensor norm_, grad_scale_;
};

}  // namespace trivet
