#include "parallel/tensor/quantise.h"

#include "parallel/tensor/sequence.h"

namespace trivet {

Tensor Operands::quantise_blocks(Context& ctx, const Tensor& x, Role role, bool of_residual, const Tensor& values,
                                 Scratch::Frame& frame) const {
  const Shape along_tokens{1, ScaleBlocks::count(x.rows()), x.cols()};
  const Shape along_columns{x.shape[0], x.shape[1], ScaleBlocks::count(x.cols())};
  const Tensor scale = frame.tensor(DType::f32, sums_tokens_ ? along_tokens : along_columns);
  ctx.run(op::Quantize{x, {}, values, scale, role});
  return of_residual ? gather_sequence(ctx, Residual(scale), frame) : scale;
}

void Operands::quantise(Context& ctx, const Tensor& x, Role role, bool over_tensor, bool over_context,
                        const Tensor& values, const Tensor& scale) {
  Scratch::Frame frame(ctx.scratch);
  const Tensor amax = frame.tensor(DType::f32, {1});
  ctx.run(op::Amax{x, amax});
  if (over_tensor && ctx.tensor.size() > 1) ctx.tensor.reduce(Partial(amax), Reduce::max, ctx.compute);
  if (over_context && ctx.sequence) ctx.sequence->all_reduce(amax, Reduce::max, ctx.compute);
  ctx.run(op::Quantize{x, amax, values, scale, role});
}

Operand<Place::whole> Operands::weight(Context& ctx, Param& weight, Scratch::Frame& frame) const {
  if (!quantised() || !ctx.quantises) return {Whole(weight.weight), {}};
  const bool keeps = static_cast<bool>(weight.fp8);
  const Tensor values = keeps ? weight.fp8 : frame.tensor(DType::e4m3, weight.shape);
  const Tensor scale = keeps ? weight.fp8_scale : frame.tensor(DType::f32, weight.fp8_scale_shape());
  if (!keeps || !weight.fp8_is_current) {
    if (by_blocks()) ctx.run(op::Quantize{weight.weight, {}, values, scale});
    else quantise(ctx, weight.weight, op::Quantize::weight, weight.partition_dim >= 0, false, values, scale);
  }
  weight.fp8_is_current = true;
  return {Whole(values), scale};
}

}  // namespace trivet
