#include "parallel/tensor/linear.h"

#include "parallel/tensor/sequence.h"

namespace trivet {
namespace {

Tensor rows_of(const Tensor& x, int64_t first, int64_t rows) { return x ? x.slice(first, rows) : x; }

}  // namespace

// ---- column

ColumnParallelLinear::ColumnParallelLinear(ParamList& params, const std::string& name, int64_t in, int64_t out,
                                           Init init, bool decay_bias, TensorOverlap overlap)
    : weight_(params.declare(
          {.name = name + ".weight", .global_shape = {out, in}, .cut_dim = 0, .init = init, .first_one_writes = true})),
      bias_(params.declare({.name = name + ".bias", .global_shape = {out}, .cut_dim = 0, .weight_decay = decay_bias})),
      overlap_(overlap) {}

void ColumnParallelLinear::forward(Context& ctx, Tensor x, Tensor y, Tensor before_gelu) const {
  Scratch::Frame frame(ctx.scratch);
  const auto multiply = [&](int64_t first, int64_t rows, Tensor whole) {
    ctx.ops.matmul(whole.slice(first, rows), weight_.weight, y.slice(first, rows),
                   {.transpose_b = true, .bias = bias_.weight, .before_gelu = rows_of(before_gelu, first, rows)},
                   ctx.compute);
  };
  gather_and_multiply(ctx, overlap_, x, frame, multiply);
}

void ColumnParallelLinear::backward(Context& ctx, Tensor x, Tensor dy, Tensor dx) const {
  if (overlap_ != TensorOverlap::none && !ctx.weight_grads.deferring()) return backward_in_bulk(ctx, x, dy, dx);
  backward_input(ctx, dy, dx);
  ctx.weight_grads.push([this, &ctx, x, dy] { backward_weight(ctx, x, dy); });
}

void ColumnParallelLinear::backward_input(Context& ctx, Tensor dy, Tensor dx) const {
  reduce_sequence(ctx, dx, [&](Tensor partial) { ctx.ops.matmul(dy, weight_.weight, partial, {}, ctx.compute); });
}

// x travels beside dy W, and dx beside dy^T x.
void ColumnParallelLinear::backward_in_bulk(Context& ctx, Tensor x, Tensor dy, Tensor dx) const {
  TensorLane& lane = *ctx.tensor_lane;
  Scratch::Frame frame(ctx.scratch);
  const Shape whole = whole_sequence(ctx, x.shape);
  const Tensor gathered = frame.tensor(x.dtype, whole), partial = frame.tensor(dx.dtype, whole);
  lane.group().all_gather(x, gathered, lane.after_compute());
  lane.mark(0);
  ctx.ops.matmul(dy, weight_.weight, partial, {}, ctx.compute);
  lane.group().reduce_scatter(partial, dx, Reduce::sum, lane.after_compute());
  lane.wait(0);
  ctx.ops.matmul(dy, gathered, weight_.grad, {.transpose_a = true, .accumulate = !weight_.take_overwrite()},
                 ctx.compute);
  ctx.ops.column_sum(dy, bias_.grad, ctx.compute);
  lane.join();
}

void ColumnParallelLinear::backward_weight(Context& ctx, Tensor x, Tensor dy) const {
  Scratch::Frame frame(ctx.scratch);
  ctx.ops.matmul(dy, gather_sequence(ctx, x, frame), weight_.grad,
                 {.transpose_a = true, .accumulate = !weight_.take_overwrite()}, ctx.compute);
  ctx.ops.column_sum(dy, bias_.grad, ctx.compute);
}

// ---- row

RowParallelLinear::RowParallelLinear(ParamList& params, const std::string& name, int64_t in, int64_t out, Init init,
                                     bool decay_bias, bool sequence_parallel, TensorOverlap overlap)
    : weight_(params.declare(
          {.name = name + ".weight", .global_shape = {out, in}, .cut_dim = 1, .init = init, .first_one_writes = true})),
      bias_(params.declare({.name = name + ".bias",
                            .global_shape = {out},
                            .weight_decay = decay_bias,
                            .sum_over_tensor_group = sequence_parallel})),
      overlap_(overlap) {}

void RowParallelLinear::forward(Context& ctx, Tensor x, Tensor y) const {
  const auto multiply = [&](int64_t first, int64_t rows, Tensor partial) {
    ctx.ops.matmul(x.slice(first, rows), weight_.weight, partial, {.transpose_b = true}, ctx.compute);
  };
  multiply_and_reduce(ctx, overlap_, y, multiply);
}

void RowParallelLinear::backward(Context& ctx, Tensor x, Tensor dy, Tensor dx, Tensor before_gelu) const {
  Scratch::Frame frame(ctx.scratch);
  const auto multiply = [&](int64_t first, int64_t rows, Tensor whole) {
    backward_input(ctx, whole.slice(first, rows), dx.slice(first, rows), rows_of(before_gelu, first, rows));
  };
  const Tensor dy_whole = gather_and_multiply(ctx, overlap_, dy, frame, multiply);
  if (ctx.weight_grads.deferring()) {
    ctx.weight_grads.push([this, &ctx, x, dy] {  // the gathered dy is gone by then: gather again
      Scratch::Frame later(ctx.scratch);
      backward_weight(ctx, x, gather_sequence(ctx, dy, later), dy);
    });
  } else {
    backward_weight(ctx, x, dy_whole, dy);
  }
}

void RowParallelLinear::backward_input(Context& ctx, Tensor dy_whole, Tensor dx, Tensor before_gelu) const {
  ctx.ops.matmul(dy_whole, weight_.weight, dx, {.gelu_backward = before_gelu}, ctx.compute);
}

void RowParallelLinear::backward_weight(Context& ctx, Tensor x, Tensor dy_whole, Tensor dy) const {
  ctx.ops.matmul(dy_whole, x, weight_.grad, {.transpose_a = true, .accumulate = !weight_.take_overwrite()},
                 ctx.compute);
  // Of this rank's own positions only: under sequence parallelism the trainer sums it over the tensor group.
  ctx.ops.column_sum(dy, bias_.grad, ctx.compute);
}

}  // namespace trivet
