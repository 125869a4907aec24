// Gathers the sequence from its slices, and reduces partial sums to slices. Under sequence parallelism, a tensor rank
// holds its own positions [s/t, b, n] between linear layers, which read, or compute a partial sum of, all [s, b, n].
#pragma once

#include "parallel/context.h"

namespace trivet {

// The shape of the whole sequence, from that of one rank's slice.
inline Shape whole_sequence(const Context& ctx, Shape slice) {
  slice.dims[0] *= ctx.tensor.size();
  return slice;
}

// All positions [s, b, n], in `frame`; without sequence parallelism `x` itself.
inline Whole gather_sequence(Context& ctx, Residual x, Scratch::Frame& frame) {
  if (!ctx.tensor.sequence_parallel()) return Whole(Tensor(x));
  const Whole gathered(frame.tensor(x.dtype, whole_sequence(ctx, x.shape)));
  ctx.tensor.gather(x, gathered, ctx.compute);
  return gathered;
}

// y [s*, b, n] = the sum over the tensor group of the partial sums [s, b, n] that `write_partial(destination)` writes;
// without sequence parallelism, they are written to y itself.
template <class F>
void reduce_sequence(Context& ctx, Residual y, F&& write_partial) {
  Scratch::Frame frame(ctx.scratch);
  const Partial partial(ctx.tensor.sequence_parallel() ? frame.tensor(y.dtype, whole_sequence(ctx, y.shape)) : y);
  write_partial(partial);
  ctx.tensor.reduce(partial, y, ctx.compute);
}

}  // namespace trivet
