// From a slice of the sequence to all of it and back. Under sequence parallelism a tensor rank holds its own positions
// [s/t, b, n] between the linear layers, and the layers need, or make a partial sum of, all of them [s, b, n].
#pragma once

#include "parallel/context.h"

namespace trivet {

// Of all positions, from that of one rank's.
inline Shape whole_sequence(const Context& ctx, Shape slice) {
  slice.dims[0] *= ctx.tensor.size();
  return slice;
}

// [s, b, n] of what each tensor rank holds a slice of; `x` itself where ranks hold all of it. Lives in `frame`.
inline Tensor gather_sequence(Context& ctx, Tensor x, Scratch::Frame& frame) {
  if (!ctx.sequence_parallel) return x;
  const Tensor gathered = frame.tensor(x.dtype, whole_sequence(ctx, x.shape));
  ctx.tensor.all_gather(x, gathered, ctx.compute);
  return gathered;
}

// y [s*, b, n] = the sum over the tensor group of the partial sums [s, b, n] that `write_partial(destination)` makes.
// Without sequence parallelism they are made in y itself.
template <class F>
void reduce_sequence(Context& ctx, Tensor y, F&& write_partial) {
  if (!ctx.sequence_parallel) {
    write_partial(y);
    if (ctx.tensor.size() > 1) ctx.tensor.all_reduce(y, Reduce::sum, ctx.compute);
    return;
  }
  Scratch::Frame frame(ctx.scratch);
  const Tensor partial = frame.tensor(y.dtype, whole_sequence(ctx, y.shape));
  write_partial(partial);
  ctx.tensor.reduce_scatter(partial, y, Reduce::sum, ctx.compute);
}

}  // namespace trivet
