// The example of docs/extending.md for a layer: an adapter (Houlsby et al. 2019), a bottleneck of two linear layers on
// a branch of the residual stream, partitioned over the tensor group as the MLP is.
//
//   x ── down ── gelu ── up ── + ── out
//    └──────────────────────────┘
#pragma once

#include <string>

#include "parallel/context.h"
#include "parallel/param.h"
#include "parallel/tensor/linear.h"

namespace trivet::test {

class Adapter {
 public:
  // What the forward pass saves for the backward pass. s* is s, or s/t under sequence parallelism.
  struct Activations {
    Hidden pre_activation, gelu_out;  // [s, b, width/t]
    Residual out;                     // [s*, b, hidden]
  };

  Adapter(ParamList& params, const std::string& name, int64_t hidden, int64_t width, Init init)
      : down_(params, name + ".linear_down", hidden, {width}, init, Bias::kept),
        up_(params, name + ".linear_up", width, hidden, init, Bias::kept) {}

  void forward(Context& ctx, Residual x, const Activations& acts) const {
    down_.forward(ctx, x, acts.gelu_out, acts.pre_activation);
    up_.forward(ctx, acts.gelu_out, acts.out);
    ctx.run(op::BiasDropoutAdd{.x = acts.out, .bias = up_.bias(), .residual = x, .dropout = {}, .out = acts.out});
  }

  // grad: [s*, b, hidden], in place: gradient of acts.out -> of x. Inner gradients live in scratch memory, so weight
  // gradients cannot be deferred: a layer for zero-bubble schedules keeps them in its own buffers (BlockGradients).
  void backward(Context& ctx, Residual x, Residual grad, const Activations& acts) const {
    check(!ctx.weight_grads.deferring(), "the adapter's weight gradients cannot be deferred");
    Scratch::Frame frame(ctx.scratch);
    const Hidden d_down(frame.tensor(x.dtype, acts.gelu_out.shape));
    const Residual d_x(frame.tensor(x.dtype, x.shape));
    up_.backward(ctx, acts.gelu_out, grad, d_down, acts.pre_activation);
    down_.backward(ctx, x, d_down, d_x);
    ctx.run(op::Add{.a = grad, .b = d_x, .out = grad});
  }

 private:
  ColumnParallelLinear down_;
  RowParallelLinear up_;
};

}  // namespace trivet::test
