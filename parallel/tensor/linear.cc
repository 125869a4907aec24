#include "parallel/tensor/linear.h"

#include "parallel/tensor/sequence.h"

namespace trivet {
namespace {

Hidden rows_of(const Hidden& x, int64_t first, int64_t rows) { return x ? x.slice(first, rows) : x; }

// dW += dy^T x, and dbias += the sum of dy, unless bias is null.
void add_gradients(const Context& ctx, Param& weight, const Param* bias, const Tensor& dy, const Tensor& x) {
  ctx.run(op::Matmul{.a = dy,
                     .b = x,
                     .c = weight.grad,
                     .transpose_a = true,
                     .accumulate = !weight.take_overwrite(),
                     .bias_grad = bias ? bias->grad : Tensor{}});
}

}  // namespace

// ---- column

ColumnParallelLinear::ColumnParallelLinear(ParamList& params, const std::string& name, int64_t in, const Shape& out,
                                           Init init, Bias bias, TensorOverlap overlap)
    : weight_(params.declare({.name = name + ".weight",
                              .global_shape = out.rank == 2 ? Shape{out[0], out[1], in} : Shape{out[0], in},
                              .placement = {{Axis::tp, partitioned(out.rank - 1)}},
                              .init = init,
                              .first_one_writes = true})),
      bias_(bias == Bias::none ? nullptr
                               : &params.declare({.name = name + ".bias",
                                                  .global_shape = out,
                                                  .placement = {{Axis::tp, partitioned(out.rank - 1)}},
                                                  .weight_decay = bias == Bias::decayed})),
      overlap_(overlap) {}

void ColumnParallelLinear::forward(Context& ctx, Residual x, Hidden y, Hidden pre_activation, Activation act) const {
  Scratch::Frame frame(ctx.scratch);
  const auto multiply = [&](int64_t first, int64_t rows, Whole whole) {
    ctx.run(op::Matmul{.a = whole.slice(first, rows),
                       .b = weight_.weight,
                       .c = y.slice(first, rows),
                       .transpose_b = true,
                       .bias = bias_ ? bias_->weight : Tensor{},
                       .pre_activation = rows_of(pre_activation, first, rows),
                       .activation = act});
  };
  gather_and_multiply(ctx, overlap_, x, frame, multiply);
}

void ColumnParallelLinear::backward(Context& ctx, Residual x, Hidden dy, Residual dx) const {
  if (overlap_ != TensorOverlap::none && !ctx.weight_grads.deferring()) return backward_in_bulk(ctx, x, dy, dx);
  backward_input(ctx, dy, dx);
  ctx.weight_grads.push([this, &ctx, x, dy] { backward_weight(ctx, x, dy); });
}

void ColumnParallelLinear::backward_input(Context& ctx, Hidden dy, Residual dx) const {
  reduce_sequence(ctx, dx, [&](Partial partial) { ctx.run(op::Matmul{.a = dy, .b = weight_.weight, .c = partial}); });
}

// Overlaps the all-gather of x with dy W, and the reduce-scatter of dx with dy^T x.
void ColumnParallelLinear::backward_in_bulk(Context& ctx, Residual x, Hidden dy, Residual dx) const {
  TensorCommStream& comm_stream = *ctx.tensor_comm_stream;
  Scratch::Frame frame(ctx.scratch);
  const Shape whole = whole_sequence(ctx, x.shape);
  const Whole gathered(frame.tensor(x.dtype, whole));
  const Partial partial(frame.tensor(dx.dtype, whole));
  comm_stream.after_compute();
  comm_stream.gather(x, gathered);
  comm_stream.mark(0);
  ctx.run(op::Matmul{.a = dy, .b = weight_.weight, .c = partial});
  comm_stream.after_compute();
  comm_stream.reduce(partial, dx);
  comm_stream.wait(0);
  add_gradients(ctx, weight_, bias_, dy, gathered);
  comm_stream.join();
}

void ColumnParallelLinear::backward_weight(Context& ctx, Residual x, Hidden dy) const {
  Scratch::Frame frame(ctx.scratch);
  add_gradients(ctx, weight_, bias_, dy, gather_sequence(ctx, x, frame));
}

// ---- row

RowParallelLinear::RowParallelLinear(ParamList& params, const std::string& name, int64_t in, int64_t out, Init init,
                                     Bias bias, TensorOverlap overlap)
    : weight_(params.declare({.name = name + ".weight",
                              .global_shape = {out, in},
                              .placement = {{Axis::tp, partitioned(1)}},
                              .init = init,
                              .first_one_writes = true})),
      bias_(bias == Bias::none ? nullptr
                               : &params.declare({.name = name + ".bias",
                                                  .global_shape = {out},
                                                  .weight_decay = bias == Bias::decayed,
                                                  .used_on = Place::residual})),
      overlap_(overlap) {}

void RowParallelLinear::forward(Context& ctx, Hidden x, Residual y) const {
  multiply_and_reduce(ctx, overlap_, y, [&](int64_t first, int64_t rows, Partial partial) {
    ctx.run(op::Matmul{.a = x.slice(first, rows), .b = weight_.weight, .c = partial, .transpose_b = true});
  });
}

void RowParallelLinear::forward_onto(Context& ctx, Hidden x, Residual residual, const Dropout& dropout,
                                     Residual out) const {
  if (ctx.tensor.size() == 1 && dropout.probability == 0)
    return ctx.run(
        op::Matmul{.a = x, .b = weight_.weight, .c = out, .transpose_b = true, .bias = bias(), .residual = residual});
  Scratch::Frame frame(ctx.scratch);
  const Residual branch(frame.tensor(out.dtype, out.shape));
  forward(ctx, x, branch);
  ctx.run(op::BiasDropoutAdd{.x = branch, .bias = bias(), .residual = residual, .dropout = dropout, .out = out});
}

void RowParallelLinear::backward(Context& ctx, Hidden x, Residual dy, Hidden dx, Hidden pre_activation,
                                 Activation act) const {
  Scratch::Frame frame(ctx.scratch);
  const auto multiply = [&](int64_t first, int64_t rows, Whole whole) {
    backward_input(ctx, whole.slice(first, rows), dx.slice(first, rows), rows_of(pre_activation, first, rows), act);
  };
  const Whole dy_whole = gather_and_multiply(ctx, overlap_, dy, frame, multiply);
  if (ctx.weight_grads.deferring()) {
    ctx.weight_grads.push([this, &ctx, x, dy] {  // the gathered dy is gone by then: gather again
      Scratch::Frame later(ctx.scratch);
      backward_weight(ctx, x, gather_sequence(ctx, dy, later), dy);
    });
  } else {
    backward_weight(ctx, x, dy_whole, dy);
  }
}

void RowParallelLinear::backward_input(Context& ctx, Whole dy_whole, Hidden dx, Hidden pre_activation,
                                       Activation act) const {
  ctx.run(op::Matmul{
      .a = dy_whole, .b = weight_.weight, .c = dx, .activation_backward = pre_activation, .activation = act});
}

void RowParallelLinear::backward_weight(Context& ctx, Hidden x, Whole dy_whole, Residual dy) const {
  // The bias: this rank's positions only. Under sequence parallelism the step sums it over the tensor group.
  const bool own = !ctx.tensor.sequence_parallel();
  add_gradients(ctx, weight_, own ? bias_ : nullptr, dy_whole, x);
  if (bias_ && !own) ctx.run(op::ColumnSum{dy, bias_->grad});
}

}  // namespace trivet
