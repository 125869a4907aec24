#include "parallel/tensor/linear.h"

namespace trivet {

Tensor gather_sequence(Context& ctx, Tensor x, Scratch::Frame& frame) {
  if (!ctx.sequence_parallel) return x;
  Shape whole = x.shape;
  whole.dims[0] *= ctx.tensor.size();
  const Tensor gathered = frame.tensor(x.dtype, whole);
  ctx.tensor.all_gather(x, gathered, ctx.compute);
  return gathered;
}

// ---- column

ColumnParallelLinear::ColumnParallelLinear(ParamList& params, const std::string& name, int64_t in, int64_t out,
                                           Init init, bool decay_bias)
    : weight_(params.declare({.name = name + ".weight", .global_shape = {out, in}, .cut_dim = 0, .init = init})),
      bias_(params.declare({.name = name + ".bias", .global_shape = {out}, .cut_dim = 0, .weight_decay = decay_bias})) {
}

void ColumnParallelLinear::forward(Context& ctx, Tensor x, Tensor y) const {
  Scratch::Frame frame(ctx.scratch);
  ctx.ops.matmul(gather_sequence(ctx, x, frame), weight_.weight, y, {.transpose_b = true, .bias = bias_.weight},
                 ctx.compute);
}

void ColumnParallelLinear::backward(Context& ctx, Tensor x, Tensor dy, Tensor dx) const {
  backward_input(ctx, dy, dx);
  ctx.weight_grads.push([this, &ctx, x, dy] { backward_weight(ctx, x, dy); });
}

void ColumnParallelLinear::backward_input(Context& ctx, Tensor dy, Tensor dx) const {
  reduce_sequence(ctx, dx, [&](Tensor partial) { ctx.ops.matmul(dy, weight_.weight, partial, {}, ctx.compute); });
}

void ColumnParallelLinear::backward_weight(Context& ctx, Tensor x, Tensor dy) const {
  Scratch::Frame frame(ctx.scratch);
  ctx.ops.matmul(dy, gather_sequence(ctx, x, frame), weight_.grad, {.transpose_a = true, .accumulate = true},
                 ctx.compute);
  ctx.ops.column_sum(dy, bias_.grad, ctx.compute);
}

// ---- row

RowParallelLinear::RowParallelLinear(ParamList& params, const std::string& name, int64_t in, int64_t out, Init init,
                                     bool decay_bias, bool sequence_parallel)
    : weight_(params.declare({.name = name + ".weight", .global_shape = {out, in}, .cut_dim = 1, .init = init})),
      bias_(params.declare({.name = name + ".bias",
                            .global_shape = {out},
                            .weight_decay = decay_bias,
                            .sum_over_tensor_group = sequence_parallel})) {}

void RowParallelLinear::forward(Context& ctx, Tensor x, Tensor y) const {
  reduce_sequence(
      ctx, y, [&](Tensor partial) { ctx.ops.matmul(x, weight_.weight, partial, {.transpose_b = true}, ctx.compute); });
}

void RowParallelLinear::backward(Context& ctx, Tensor x, Tensor dy, Tensor dx) const {
  Scratch::Frame frame(ctx.scratch);
  const Tensor dy_whole = gather_sequence(ctx, dy, frame);
  backward_input(ctx, dy_whole, dx);
  if (ctx.weight_grads.deferring()) {
    ctx.weight_grads.push([this, &ctx, x, dy] {  // the gathered dy is gone by then: gather again
      Scratch::Frame later(ctx.scratch);
      backward_weight(ctx, x, gather_sequence(ctx, dy, later), dy);
    });
  } else {
    backward_weight(ctx, x, dy_whole, dy);
  }
}

void RowParallelLinear::backward_input(Context& ctx, Tensor dy_whole, Tensor dx) const {
  ctx.ops.matmul(dy_whole, weight_.weight, dx, {}, ctx.compute);
}

void RowParallelLinear::backward_weight(Context& ctx, Tensor x, Tensor dy_whole, Tensor dy) const {
  ctx.ops.matmul(dy_whole, x, weight_.grad, {.transpose_a = true, .accumulate = true}, ctx.compute);
  // Of this rank's own positions only: under sequence parallelism the trainer sums it over the tensor group.
  ctx.ops.column_sum(dy, bias_.grad, ctx.compute);
}

}  // namespace trivet
