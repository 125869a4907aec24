// FP8 operands of the linear layers' GEMMs, with current scaling: each scale is a power of two derived from the largest
// magnitude of its own elements, so there is no history and no state. HYBRID (Micikevicius et al. 2022): weights and
// activations in E4M3, gradients in E5M2.
//
// tensorwise (Transformer Engine's Float8CurrentScaling): the largest magnitude is taken over the whole tensor, across
// the ranks that hold parts of it, so that equal values give equal codes under every layout. Each micro-batch has its
// own scale.
//
// blockwise (DeepSeek-V3 2024; Transformer Engine's Float8BlockScaling): an activation or gradient uses a scale per 128
// elements along the dimension that its GEMM sums over, a weight one per 128 x 128 block. So a tensor that two GEMMs
// sum over different dimensions is quantised for each: dy along columns for dx, x and dy along tokens for the weight's
// gradient. Blocks begin at the rank's own first element: no maximum is reduced across ranks, and if parts are
// multiples of 128 long, codes do not depend on the layout. Along columns, positions do not affect each other's codes.
#pragma once

#include "parallel/context.h"
#include "parallel/param.h"
#include "parallel/tensor/fp8_mode.h"

namespace trivet {

// A tensor as a GEMM reads it. scale: fp32, multiplies its elements; null: they are not quantised.
// Blockwise scales cover all positions, even if `values` holds only this rank's.
template <Place kPlace>
struct Operand {
  Placed<kPlace> values;
  Tensor scale;

  Operand() = default;
  Operand(const Placed<kPlace>& as_it_is) : values(as_it_is) {}
  Operand(const Placed<kPlace>& codes, const Tensor& with_scale) : values(codes), scale(with_scale) {}

  // The scales of some positions of an activation or gradient, whose blocks are along columns.
  Tensor scale_of(int64_t first, int64_t rows) const {
    return ScaleBlocks::given(scale) ? scale.slice(first, rows) : scale;
  }
};

// Prepares a layer's operands. Its functions are collective over the tensor and context groups.
class Operands {
 public:
  explicit Operands(const Fp8Mode& mode) : mode_(mode) {}
  bool quantised() const { return mode_.format != Fp8::none; }
  bool by_blocks() const { return quantised() && mode_.recipe == Fp8Recipe::blockwise; }
  // True if the forward and weight-gradient GEMMs read the same codes of x, which are then saved in place of x.
  bool saves_codes() const { return quantised() && of_weight_grad() == *this; }
  // The operands of the weight-gradient GEMM; equal to *this if a gradient is quantised once for both GEMMs.
  Operands of_weight_grad() const {
    Operands of = mode_.weight_grads || !quantised() ? *this : Operands({});
    of.sums_tokens_ = of.by_blocks();
    return of;
  }
  bool operator==(const Operands&) const = default;

  // Returns x [s*, b, n], an activation or (below) a gradient, as it is or as FP8 values and their scale; they are in
  // `frame` unless x was already quantised.
  template <Place kPlace>
  Operand<kPlace> activation(Context& ctx, const Operand<kPlace>& x, Scratch::Frame& frame) const {
    return x.scale ? x : quantise(ctx, x.values, op::Quantize::activation, frame);
  }
  // Calls write(x) to write an activation: x is `saved` or, if `saved` holds codes, memory in `frame` of type `dtype`,
  // which is then quantised into `saved` if the context quantises.
  template <Place kPlace, class Write>
  static Operand<kPlace> save(Context& ctx, const Operand<kPlace>& saved, DType dtype, Scratch::Frame& frame,
                              Write&& write) {
    const Placed<kPlace> x = saved.scale ? Placed<kPlace>(frame.tensor(dtype, saved.values.shape)) : saved.values;
    write(x);
    if (!saved.scale || !ctx.quantises) return x;
    quantise(ctx, x, op::Quantize::activation, is_part(ctx, kPlace), true, saved.values, saved.scale);
    return saved;
  }
  template <Place kPlace>
  Operand<kPlace> gradient(Context& ctx, Placed<kPlace> dy, Scratch::Frame& frame) const {
    return quantise(ctx, dy, op::Quantize::gradient, frame);
  }
  // Quantised once per step for all micro-batches if the parameter has memory for that; otherwise in `frame`.
  Operand<Place::whole> weight(Context& ctx, Param& weight, Scratch::Frame& frame) const;

 private:
  using Role = op::Quantize::Role;

  template <Place kPlace>
  Operand<kPlace> quantise(Context& ctx, Placed<kPlace> x, Role role, Scratch::Frame& frame) const {
    if (!quantised() || !ctx.quantises) return {x, {}};
    const bool wide = role == op::Quantize::gradient && mode_.format == Fp8::hybrid;
    const Tensor values = frame.tensor(wide ? DType::e5m2 : DType::e4m3, x.shape);
    if (by_blocks())
      return {Placed<kPlace>(values), quantise_blocks(ctx, x, role, kPlace == Place::residual, values, frame)};
    const Tensor scale = frame.tensor(DType::f32, {1});
    quantise(ctx, x, role, is_part(ctx, kPlace), true, values, scale);
    return {Placed<kPlace>(values), scale};
  }
  // True if a tensor rank holds only some of its columns or positions.
  static bool is_part(const Context& ctx, Place place) {
    return place == Place::hidden || ctx.tensor.sequence_parallel();
  }
  // Returns the scales, for all positions.
  Tensor quantise_blocks(Context& ctx, const Tensor& x, Role role, bool of_residual, const Tensor& values,
                         Scratch::Frame& frame) const;
  // over_tensor, over_context: x is one rank's part of a tensor partitioned over that group.
  static void quantise(Context& ctx, const Tensor& x, Role role, bool over_tensor, bool over_context,
                       const Tensor& values, const Tensor& scale);

  Fp8Mode mode_;
  bool sums_tokens_ = false;  // blocks run along tokens
};

}  // namespace trivet
