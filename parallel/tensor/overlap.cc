#include "parallel/tensor/overlap.h"

#include <string>

#include "parallel/tensor/sequence.h"

namespace trivet {

// ---- TensorCommStream

TensorCommStream::TensorCommStream(const CommStreamSite& on)
    : comm_streams_(on, comm_of("tensor"), "tensor", 1),
      comm_stream_(comm_streams_.after_compute()),
      compute_(on.compute),
      joined_(on.device.create_event()) {
  for (int i = 0; i < on.group.size(); ++i) marks_.push_back(on.device.create_event());
}

void TensorCommStream::mark(int i) { comm_stream_.stream->record(*marks_.at(static_cast<size_t>(i))); }
void TensorCommStream::wait(int i) { compute_.wait(*marks_.at(static_cast<size_t>(i))); }

void TensorCommStream::join() {
  comm_stream_.stream->record(*joined_);
  compute_.wait(*joined_);
}

namespace {

// All positions [s, b, n], as the slices that the tensor ranks own.
template <Place kPlace>
struct Sequence {
  Placed<kPlace> whole;
  int64_t rows;  // per rank
  int t, rank;   // group size; this rank

  Sequence(const Context& ctx, Residual slice, Scratch::Frame& frame)
      : whole(frame.tensor(slice.dtype, whole_sequence(ctx, slice.shape))),
        rows(slice.shape[0]),
        t(ctx.tensor.size()),
        rank(ctx.tensor.rank()) {}
  Placed<kPlace> of(int owner) const { return whole.slice(owner * rows, rows); }
  int next(int hops) const { return (rank + hops) % t; }
  int previous(int hops) const { return (rank - hops + t) % t; }
};

// ---- all-gather -> GEMM. All communication is queued first: on a CPU a GEMM blocks the host.

void gather_in_parts(TensorCommStream& comm_stream, bool ring, const Sequence<Place::whole>& x,
                     const MultiplyWhole& multiply) {
  // 1. The wire's row of the timeline: hop i of the ring, or the broadcast of rank i's rows; then mark i.
  comm_stream.after_compute();
  for (int i = 0; i < x.t; ++i) {
    if (!ring) comm_stream.broadcast(x.of(i), i);
    else if (i > 0) comm_stream.exchange(x.of(x.previous(i - 1)), x.next(1), x.of(x.previous(i)), x.previous(1));
    comm_stream.mark(i);
  }
  // 2. Compute's row: this rank's own rows, then each slice once it has arrived.
  multiply(x.rank * x.rows, x.rows, x.whole);
  for (int i = 0; i < x.t; ++i) {
    const int owner = ring ? x.previous(i) : i;
    if (owner == x.rank) continue;
    comm_stream.wait(i);
    multiply(owner * x.rows, x.rows, x.whole);
  }
}

// ---- GEMM -> reduce-scatter

void reduce_in_ring(Context& ctx, const Sequence<Place::partial>& partial, Residual y, const MultiplyPartial& multiply,
                    Scratch::Frame& frame) {
  TensorCommStream& comm_stream = *ctx.tensor_comm_stream;
  const int t = partial.t, rank = partial.rank;
  Shape of_others = y.shape;
  of_others.dims[0] *= t - 1;
  const Partial received(frame.tensor(y.dtype, of_others));  // from the other ranks, in rank order
  const auto term = [&](int r) {
    return r == rank ? partial.of(rank) : received.slice((r < rank ? r : r - 1) * partial.rows, partial.rows);
  };
  // 1. The others' rows, each sent to its owner while the next are multiplied.
  for (int i = 1; i < t; ++i) {
    const int owner = partial.next(i), from = partial.previous(i);
    multiply(owner * partial.rows, partial.rows, partial.of(owner));
    comm_stream.after_compute();
    comm_stream.exchange(partial.of(owner), owner, term(from), from);
  }
  // 2. This rank's own rows; then adds all terms in rank order, not arrival order: in fp32, bitwise equal to mode none.
  multiply(rank * partial.rows, partial.rows, partial.of(rank));
  comm_stream.join();
  ctx.run(op::Add{term(0), term(1), y});
  for (int r = 2; r < t; ++r) ctx.run(op::Add{y, term(r), y});
}

void reduce_in_pipeline(TensorCommStream& comm_stream, const Sequence<Place::partial>& partial, Residual y,
                        const MultiplyPartial& multiply) {
  const int64_t splits = partial.rows % 4 == 0 ? 4 : partial.rows % 2 == 0 ? 2 : 1, split = partial.rows / splits;
  for (int64_t c = 0; c < splits; ++c) {
    const Partial of_all =
        partial.whole.slice(c * split * partial.t, split * partial.t);  // this split of each owner's rows
    for (int owner = 0; owner < partial.t; ++owner)
      multiply(owner * partial.rows + c * split, split, of_all.slice(owner * split, split));
    comm_stream.after_compute();
    comm_stream.reduce(of_all, y.slice(c * split, split));
  }
  comm_stream.join();
}

}  // namespace

Whole gather_and_multiply(Context& ctx, TensorOverlap mode, Residual x, Scratch::Frame& frame,
                          const MultiplyWhole& multiply) {
  if (mode == TensorOverlap::none || mode == TensorOverlap::bulk) {
    const Whole whole = gather_sequence(ctx, x, frame);
    multiply(0, whole.shape[0], whole);
    return whole;
  }
  const Sequence<Place::whole> sequence(ctx, x, frame);
  ctx.run(op::Convert{x, sequence.of(sequence.rank)});
  gather_in_parts(*ctx.tensor_comm_stream, mode == TensorOverlap::ring, sequence, multiply);
  ctx.tensor_comm_stream->join();  // this rank's own rows have been sent, too
  return sequence.whole;
}

void multiply_and_reduce(Context& ctx, TensorOverlap mode, Residual y, const MultiplyPartial& multiply) {
  if (mode == TensorOverlap::none || mode == TensorOverlap::bulk)
    return reduce_sequence(ctx, y, [&](Partial partial) { multiply(0, partial.shape[0], partial); });
  Scratch::Frame frame(ctx.scratch);
  const Sequence<Place::partial> partial(ctx, y, frame);
  if (mode == TensorOverlap::ring) reduce_in_ring(ctx, partial, y, multiply, frame);
  else reduce_in_pipeline(*ctx.tensor_comm_stream, partial, y, multiply);
}

}  // namespace trivet
