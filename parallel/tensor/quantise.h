// Operands of the linear layers' GEMMs in FP8 by per-tensor current scaling (Transformer Engine's
// Float8CurrentScaling): a tensor's scale is a power of two that follows from its own largest magnitude, so there is no
// history and no state. HYBRID (Micikevicius et al. 2022): weights and activations in E4M3, gradients in E5M2.
//
// The largest magnitude is that of the whole tensor, over the ranks that hold parts of it: under every layout the same
// elements have the same codes, where they have the same values. Only a micro-batch has a scale of its own.
#pragma once

#include "parallel/context.h"
#include "parallel/param.h"
#include "parallel/tensor/fp8_mode.h"

namespace trivet {

// A tensor as a GEMM takes it. scale: [1] fp32, what its elements are multiplied with; null: they are not quantised.
template <Place kPlace>
struct Operand {
  Placed<kPlace> values;
  Tensor scale;
};

// Prepares a layer's operands. Its functions are collective over the tensor and context groups.
class Operands {
 public:
  explicit Operands(const Fp8Mode& mode) : mode_(mode) {}
  bool quantised() const { return mode_.format != Fp8::none; }
  // The operands of the GEMM that computes the weight's gradient.
  Operands of_weight_grad() const { return mode_.weight_grads ? *this : Operands({}); }

  // x [s*, b, n], an activation or its gradient: itself, or its FP8 values and their scale, in `frame`.
  template <Place kPlace>
  Operand<kPlace> activation(Context& ctx, Placed<kPlace> x, Scratch::Frame& frame) const {
    return quantise(ctx, x, DType::e4m3, frame);
  }
  template <Place kPlace>
  Operand<kPlace> gradient(Context& ctx, Placed<kPlace> dy, Scratch::Frame& frame) const {
    return quantise(ctx, dy, mode_.format == Fp8::hybrid ? DType::e5m2 : DType::e4m3, frame);
  }
  // Quantised once for all micro-batches of a step, if it has memory for that; else in `frame`.
  Operand<Place::whole> weight(Context& ctx, Param& weight, Scratch::Frame& frame) const;

 private:
  template <Place kPlace>
  Operand<kPlace> quantise(Context& ctx, Placed<kPlace> x, DType format, Scratch::Frame& frame) const {
    if (!quantised() || !ctx.quantises) return {x, {}};
    constexpr bool kOfColumns = kPlace == Place::hidden;
    static_assert(kOfColumns || kPlace == Place::residual, "what linear layers take");
    const Tensor values = frame.tensor(format, x.shape), scale = frame.tensor(DType::f32, {1});
    quantise(ctx, x, kOfColumns || ctx.tensor.sequence_parallel(), true, values, scale);
    return {Placed<kPlace>(values), scale};
  }
  // over_tensor, over_context: x is a part of what the ranks of the group have.
  static void quantise(Context& ctx, const Tensor& x, bool over_tensor, bool over_context, const Tensor& values,
                       const Tensor& scale);

  Fp8Mode mode_;
};

}  // namespace trivet
