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
inline Whole gather_sequence(Context& ctx, Residual x, Scratch::Frame& frame) {
  if (!ctx.tensor.sequence_parallel()) return Whole(Tensor(x));
  const Whole gathered(frame.tensor(x.dtype, whole_sequence(ctx, x.shape)));
  ctx.tensor.gather(x, gathered, ctx.compute);
  return gathered;
}

// y [s*, b, n] = the sum over the tensor group of the partial sums [s, b, n] that `write_partial(destination)` makes.
// Without sequence parallelism they are made in y itself.
template <class F>
void reduce_sequence(Context& ctx, Residual y, F&& write_partial) {
  Scratch::Frame frame(ctx.scratch);
  const Partial partial(ctx.tensor.sequence_parallel() ? frame.tensor(y.dtype, whole_sequence(ctx, y.shape)) : y);
  write_partial(partial);
  ctx.tensor.reduce(partial, y, ctx.compute);
}

}  // namespace trivet
