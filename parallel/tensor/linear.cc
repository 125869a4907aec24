#include "parallel/tensor/linear.h"

#include "parallel/tensor/sequence.h"

namespace trivet {
namespace {

Hidden rows_of(const Hidden& x, int64_t first, int64_t rows) { return x ? x.slice(first, rows) : x; }

// dW += dy^T x, and dbias += the sum of dy, unless bias is null. d: dy as the GEMM reads it.
template <Place kDy, Place kX>
void add_gradients(const Context& ctx, Param& weight, const Param* bias, const Operand<kDy>& d, const Operand<kX>& x,
                   const Tensor& dy) {
  ctx.run(op::Matmul{.a = d.values,
                     .b = x.values,
                     .c = weight.grad,
                     .transpose_a = true,
                     .accumulate = !weight.take_overwrite(),
                     .bias_grad = bias && !d.scale ? bias->grad : Tensor{},
                     .scales = {d.scale, x.scale}});
  if (bias && d.scale) ctx.run(op::ColumnSum{dy, bias->grad});
}

}  // namespace

ParallelLinear::ParallelLinear(ParamList& params, const std::string& name, const Shape& out, int64_t in, int dim,
                               Init init, Bias bias, TensorOverlap overlap, const Fp8Mode& fp8)
    : operands_(fp8),
      weight_(params.declare({.name = name + ".weight",
                              .global_shape = out.rank == 2 ? Shape{out[0], out[1], in} : Shape{out[0], in},
                              .placement = {{Axis::tp, partitioned(dim)}},
                              .init = init,
                              .overwrite_on_first_use = true,
                              .quantised = operands_.quantised(),
                              .scaled_by_blocks = operands_.by_blocks()})),
      bias_(bias == Bias::none
                ? nullptr
                : &params.declare({.name = name + ".bias",
                                   .global_shape = out,
                                   .placement = {{Axis::tp, dim < out.rank ? partitioned(dim) : kReplicated}},
                                   .weight_decay = bias == Bias::decayed,
                                   .used_on = dim < out.rank ? Place::whole : Place::residual})),
      overlap_(overlap) {}

// ---- column

void ColumnParallelLinear::forward(Context& ctx, const Input& x, Hidden y, Hidden pre_activation,
                                   Activation act) const {
  Scratch::Frame frame(ctx.scratch);
  const auto weight = operands_.weight(ctx, weight_, frame);
  const auto in = operands_.activation(ctx, x, frame);
  // 2. Rows of y, for all positions of x or those that have just arrived.
  const auto multiply = [&](int64_t first, int64_t rows, Whole whole) {
    ctx.run(op::Matmul{.a = whole.slice(first, rows),
                       .b = weight.values,
                       .c = y.slice(first, rows),
                       .transpose_b = true,
                       .bias = bias(),
                       .pre_activation = rows_of(pre_activation, first, rows),
                       .activation = act,
                       .scales = {in.scale_of(first, rows), weight.scale}});
  };
  gather_and_multiply(ctx, overlap_, in.values, frame, multiply);  // 1. and 2.
}

void ColumnParallelLinear::backward(Context& ctx, const Input& x, Hidden dy, Residual dx) const {
  Scratch::Frame frame(ctx.scratch);
  const Gradient d = operands_.gradient(ctx, dy, frame);
  const bool deferred = ctx.weight_grads.deferring();
  if (overlap_ != TensorOverlap::none && !deferred) return backward_in_bulk(ctx, x, dy, d, dx);
  reduce_sequence(ctx, dx, [&](Partial partial) { backward_input(ctx, d, partial); });  // 3., and 4.: f
  // 5. Now, or when the schedule says so.
  if (!deferred) return backward_weight(ctx, x, dy, for_weight(ctx, dy, d, frame));
  ctx.weight_grads.push([this, &ctx, x, dy] {
    Scratch::Frame later(ctx.scratch);
    backward_weight(ctx, x, dy, operands_.of_weight_grad().gradient(ctx, dy, later));
  });
}

void ColumnParallelLinear::backward_input(Context& ctx, const Gradient& d, Partial dx) const {
  Scratch::Frame frame(ctx.scratch);
  const auto weight = operands_.weight(ctx, weight_, frame);
  ctx.run(op::Matmul{.a = d.values, .b = weight.values, .c = dx, .scales = {d.scale, weight.scale}});
}

ColumnParallelLinear::Gradient ColumnParallelLinear::for_weight(Context& ctx, Hidden dy, const Gradient& d,
                                                                Scratch::Frame& frame) const {
  const Operands of_weight = operands_.of_weight_grad();
  return of_weight == operands_ ? d : of_weight.gradient(ctx, dy, frame);
}

// 3. to 5. in bulk: overlaps the all-gather of x with dy W, and the reduce-scatter of dx with dy^T x.
void ColumnParallelLinear::backward_in_bulk(Context& ctx, const Input& x, Hidden dy, const Gradient& d,
                                            Residual dx) const {
  TensorCommStream& comm_stream = *ctx.tensor_comm_stream;
  Scratch::Frame frame(ctx.scratch);
  const auto in = operands_.of_weight_grad().activation(ctx, x, frame);
  const Shape whole = whole_sequence(ctx, x.values.shape);
  const Whole gathered(frame.tensor(in.values.dtype, whole));
  const Partial partial(frame.tensor(dx.dtype, whole));
  comm_stream.after_compute();
  comm_stream.gather(in.values, gathered);
  comm_stream.mark(0);
  backward_input(ctx, d, partial);
  comm_stream.after_compute();
  comm_stream.reduce(partial, dx);
  comm_stream.wait(0);
  add_gradients(ctx, weight_, bias_, for_weight(ctx, dy, d, frame), Operand<Place::whole>{gathered, in.scale}, dy);
  comm_stream.join();
}

void ColumnParallelLinear::backward_weight(Context& ctx, const Input& x, Hidden dy, const Gradient& d) const {
  Scratch::Frame frame(ctx.scratch);
  const auto in = operands_.of_weight_grad().activation(ctx, x, frame);
  add_gradients(ctx, weight_, bias_, d, Operand<Place::whole>{gather_sequence(ctx, in.values, frame), in.scale}, dy);
}

// ---- row

void RowParallelLinear::forward(Context& ctx, const Operand<Place::hidden>& x, Residual y) const {
  Scratch::Frame frame(ctx.scratch);
  const auto weight = operands_.weight(ctx, weight_, frame);
  const auto in = operands_.activation(ctx, x, frame);
  // 1., and 2.: g
  multiply_and_reduce(ctx, overlap_, y, [&](int64_t first, int64_t rows, Partial partial) {
    ctx.run(op::Matmul{.a = in.values.slice(first, rows),
                       .b = weight.values,
                       .c = partial,
                       .transpose_b = true,
                       .scales = {in.scale_of(first, rows), weight.scale}});
  });
}

void RowParallelLinear::forward_onto(Context& ctx, const Operand<Place::hidden>& x, Residual residual,
                                     const Dropout& dropout, Residual out) const {
  Scratch::Frame frame(ctx.scratch);
  if (ctx.tensor.size() == 1 && dropout.probability == 0) {
    const auto weight = operands_.weight(ctx, weight_, frame);
    const auto in = operands_.activation(ctx, x, frame);
    return ctx.run(op::Matmul{.a = in.values,
                              .b = weight.values,
                              .c = out,
                              .transpose_b = true,
                              .bias = bias(),
                              .residual = residual,
                              .scales = {in.scale, weight.scale}});
  }
  const Residual branch(frame.tensor(out.dtype, out.shape));
  forward(ctx, x, branch);
  ctx.run(op::BiasDropoutAdd{.x = branch, .bias = bias(), .residual = residual, .dropout = dropout, .out = out});
}

void RowParallelLinear::backward(Context& ctx, const Operand<Place::hidden>& x, Residual dy, Hidden dx,
                                 Hidden pre_activation, Activation act) const {
  Scratch::Frame frame(ctx.scratch);
  const auto weight = operands_.weight(ctx, weight_, frame);
  const auto d = operands_.gradient(ctx, dy, frame);
  // 4. Rows of dx = dy W, times act'(pre_activation), for all positions or those that have just arrived.
  const auto multiply = [&](int64_t first, int64_t rows, Whole whole) {
    ctx.run(op::Matmul{.a = whole.slice(first, rows),
                       .b = weight.values,
                       .c = dx.slice(first, rows),
                       .activation_backward = rows_of(pre_activation, first, rows),
                       .activation = act,
                       .scales = {d.scale_of(first, rows), weight.scale}});
  };
  const Whole whole = gather_and_multiply(ctx, overlap_, d.values, frame, multiply);  // 3. and 4.
  // 5. Now, or when the schedule says so.
  const Operands of_weight = operands_.of_weight_grad();
  if (of_weight == operands_ && !ctx.weight_grads.deferring()) return backward_weight(ctx, x, {whole, d.scale}, dy);
  // A gathered dy is gone by then, or was gathered in FP8: gather it again, at the cost of more communication.
  ctx.weight_grads.push([this, &ctx, x, dy, of_weight] {
    Scratch::Frame later(ctx.scratch);
    const auto again = of_weight.gradient(ctx, dy, later);
    backward_weight(ctx, x, {gather_sequence(ctx, again.values, later), again.scale}, dy);
  });
}

void RowParallelLinear::backward_weight(Context& ctx, const Operand<Place::hidden>& x,
                                        const Operand<Place::whole>& dy_whole, Residual dy) const {
  Scratch::Frame frame(ctx.scratch);
  const auto in = operands_.of_weight_grad().activation(ctx, x, frame);
  // The bias: without sequence parallelism dy has all positions, and the GEMM sums them; otherwise this rank's are
  // summed here, and the ranks' sums are added at the end of the step (GradSync).
  const bool all_positions = !ctx.tensor.sequence_parallel();
  add_gradients(ctx, weight_, all_positions ? bias_ : nullptr, dy_whole, in, dy);
  if (bias_ && !all_positions) ctx.run(op::ColumnSum{dy, bias_->grad});
}

}  // namespace trivet
