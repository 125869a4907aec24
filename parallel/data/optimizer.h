// The optimizer's part of a step: the gradient norm over the whole model, clipping, and an update of the fp32 weights
// in the shards that the rank owns: all parameters, or its part of each bucket (ZeRO).
//
// The norm's sum of squares is exact (op::SumOfSquares): it has the same bits however the parameters are partitioned,
// so clipping adds no layout dependence. It takes one pass over the shards and one or two small all-reduces, on
// the device. It counts only the first copy of each parameter (Param::first_copy).
#pragma once

#include <string_view>
#include <vector>

#include "parallel/comm/comm.h"
#include "parallel/data/flat_buffer.h"

namespace trivet {

class Ops;

// The scalars of one update.
struct UpdateStep {
  double learning_rate = 0;
  double decoupled_lr = 0;  // for parameters with ParamSpec::decoupled_lr, if the optimizer distinguishes them
  double weight_decay = 0;  // for parameters with ParamSpec::weight_decay
  int64_t step = 0;         // number of this update, from 1; skipped ones do not count
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;

  // After the weights are initialised: sets the main weights from the model's weights, and the other state to zero.
  void reset(Ops& ops, Stream& stream);
  // After the main weights are loaded: sets the model's weights in the shards from them.
  void publish(Ops& ops, Stream& stream);

  // norm = sqrt of the sum of squares of the model's gradients (over its tensor and pipeline ranks, and the data-
  // parallel ranks that share them), before clipping; grad_scale as in op::ClipScale. REQUIRES: the gradients are those
  // of the global batch. max_norm 0: no clipping. watched_norm() is NaN on all ranks of the model if an element of
  // `watched` (fp32; null: none) or of a gradient that the norm does not count (other copies of a replicated parameter)
  // is not finite.
  void compute_norm(Ops& ops, Communicator& model, Communicator& data, float max_norm, Tensor watched, Stream& stream);
  // missing: [1] fp32, how many of the labels (`labels`, each of weight 1 / labels) do not count. Rescales `numbers`
  // and, through grad_scale, gradients to means over the rest (op::CountLabels). REQUIRES: compute_norm of this step.
  void count_labels(Ops& ops, Tensor missing, int64_t labels, float max_norm, Tensor numbers, Stream& stream);
  // One update with the gradients scaled by grad_scale; a no-op if `accepted` ([1] fp32, on the device) is 0.
  virtual void step(Ops& ops, Tensor accepted, const UpdateStep& how, Stream& stream) = 0;

  Tensor norm() const { return norm_; }                  // [1] fp32; NaN if a gradient is not finite
  Tensor watched_norm() const { return watched_norm_; }  // [1] fp32

  // State per weight, besides the weight itself.
  struct State {
    std::string_view name;   // in checkpoints, as in Megatron: "exp_avg"
    std::string_view words;  // human-readable: "first moment"
    Tensor owned;            // [owned_numel] fp32, each shard at its OwnedShard::local
  };
  virtual std::vector<State> states() const = 0;
  // The weights that the optimizer updates; in an fp32 run, the model's own.
  bool has_main_weights() const { return static_cast<bool>(main_weights_); }
  Tensor main_weights(const OwnedShard& shard) const {
    return main_weights_ ? part(main_weights_, shard) : shard.weight;
  }
  static Tensor part(Tensor owned, const OwnedShard& shard) { return owned.slice(shard.local, shard.weight.numel()); }

 protected:
  // If the model's weights are bf16, fp32 main weights are allocated in `arena`.
  Optimizer(FlatBuffer& flat, Arena& arena);

  FlatBuffer& flat_;
  Tensor main_weights_;  // [owned_numel] fp32; null in an fp32 run
  Tensor grad_scale_;    // [1] fp32

 private:
  Tensor all_bins_;  // [2 * kExactSumBins] int64: one all-reduce for both
  Tensor bins_, watched_bins_;
  Tensor norm_, watched_norm_, ignored_;
  std::vector<Tensor> counted_, checked_;  // gradients in the norm; those only checked to be finite
};

}  // namespace trivet
