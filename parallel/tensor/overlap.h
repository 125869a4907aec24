// Overlap of tensor-parallel communication with the products that need it or make it, under sequence parallelism. The
// methods are those of TransformerEngine's user buffers, cut to what a rank-ordered sum allows:
//
//   bulk      a whole collective beside an independent product: in the backward pass of a column-parallel layer the
//             gathering of x beside dy W, and the reduction of dx beside dy^T x
//   ring      all-gather -> product: each rank's rows travel round the ring; while one part travels, the one before is
//             multiplied. product -> reduce-scatter: each owner's rows are multiplied and sent to it, the own ones
//             last; the owner adds what it gets in rank order
//   pipeline  all-gather -> product: the parts are broadcast one after the other. product -> reduce-scatter: the rows
//   of
//             all owners in a few cuts; while one is reduced, the next is multiplied
//
// Under ring and pipeline the backward pass of a column-parallel layer is bulk. In fp32 all give the same bits as none:
// rows of a product do not depend on each other, and sums are taken in rank order. In bf16 the ring rounds after each
// addition.
#pragma once

#include <string_view>

#include "parallel/context.h"
#include "parallel/lanes.h"

namespace trivet {

enum class TensorOverlap { none, bulk, ring, pipeline };
TensorOverlap parse_tensor_overlap(std::string_view name);  // throws ConfigError

// The stream beside the compute stream that tensor-parallel communication overlaps on.
class TensorLane {
 public:
  // Collective over `tensor`.
  TensorLane(Communicator& tensor, Device& device, Stream& compute, Trace* trace);

  Communicator& group() { return *lane_.group; }
  // For the next call on the lane: it runs after what compute has queued so far.
  Stream& after_compute();
  Event& mark();  // of what the lane has queued so far; valid for the next kMarks marks
  void join();    // compute waits for all that the lane has queued
  static constexpr size_t kMarks = 64;

 private:
  Lanes lanes_;
  Lane& lane_;
  Stream& compute_;
  std::vector<std::unique_ptr<Event>> marks_;
  size_t next_ = 0;
  std::unique_ptr<Event> computed_;
};

// x: this rank's rows [s/t, b, h]. Calls multiply(first, rows) for parts of the whole [s, b, h], at once or as they
// come, with the whole as its third argument; returns the whole, which lives in `frame`.
template <class F>
Tensor gather_and_multiply(Context& ctx, TensorOverlap mode, Tensor x, Scratch::Frame& frame, F&& multiply);

// y: this rank's rows [s/t, b, n] of the sum over ranks of partial products. Calls multiply(first, rows, destination)
// for parts of this rank's partial product [s, b, n].
template <class F>
void multiply_and_reduce(Context& ctx, TensorOverlap mode, Tensor y, F&& multiply);

// ---- implementation

template <class F>
Tensor gather_and_multiply(Context& ctx, TensorOverlap mode, Tensor x, Scratch::Frame& frame, F&& multiply) {
  const int t = ctx.tensor.size(), rank = ctx.tensor.rank();
  Shape shape = x.shape;
  const int64_t rows = shape[0];
  shape.dims[0] *= t;
  const Tensor whole = frame.tensor(x.dtype, shape);
  if (mode == TensorOverlap::none || mode == TensorOverlap::bulk) {
    ctx.tensor.all_gather(x, whole, ctx.compute);
    multiply(int64_t{0}, rows * t, whole);
    return whole;
  }
  TensorLane& lane = *ctx.tensor_lane;
  const auto part = [&](int of) { return whole.slice(of * rows, rows); };
  ctx.ops.convert(x, part(rank), ctx.compute);
  // Whatever travels is queued first; then the products, each behind its part.
  std::vector<std::pair<int, Event*>> arrivals;
  Stream& stream = lane.after_compute();
  for (int i = 1; i < t; ++i) {
    if (mode == TensorOverlap::ring) {
      const int from = (rank - i + t) % t;
      lane.group().send(part((from + 1) % t), (rank + 1) % t, stream);
      lane.group().recv(part(from), (rank - 1 + t) % t, stream);
      arrivals.emplace_back(from, &lane.mark());
    }
  }
  if (mode == TensorOverlap::pipeline) {
    for (int root = 0; root < t; ++root) {
      lane.group().broadcast(part(root), root, stream);
      Event& arrived = lane.mark();
      if (root != rank) arrivals.emplace_back(root, &arrived);
    }
  }
  multiply(rank * rows, rows, whole);
  for (const auto& [from, arrived] : arrivals) {
    ctx.compute.wait(*arrived);
    multiply(from * rows, rows, whole);
  }
  lane.join();  // the parts have left too
  return whole;
}

template <class F>
void multiply_and_reduce(Context& ctx, TensorOverlap mode, Tensor y, F&& multiply) {
  const int t = ctx.tensor.size(), rank = ctx.tensor.rank();
  Scratch::Frame frame(ctx.scratch);
  Shape shape = y.shape;
  const int64_t rows = shape[0];
  shape.dims[0] *= t;
  const Tensor partial = frame.tensor(y.dtype, shape);
  const auto part = [&](int of) { return partial.slice(of * rows, rows); };
  if (mode == TensorOverlap::none || mode == TensorOverlap::bulk) {
    multiply(int64_t{0}, rows * t, partial);
    ctx.tensor.reduce_scatter(partial, y, Reduce::sum, ctx.compute);
    return;
  }
  TensorLane& lane = *ctx.tensor_lane;
  if (mode == TensorOverlap::pipeline) {
    const int64_t cuts = rows % 4 == 0 ? 4 : rows % 2 == 0 ? 2 : 1, cut = rows / cuts;
    for (int64_t c = 0; c < cuts; ++c) {
      const Tensor staged = partial.slice(c * cut * t, cut * t);  // this cut of all owners
      for (int owner = 0; owner < t; ++owner) multiply(owner * rows + c * cut, cut, staged.slice(owner * cut, cut));
      lane.group().reduce_scatter(staged, y.slice(c * cut, cut), Reduce::sum, lane.after_compute());
    }
    lane.join();
    return;
  }
  Shape others = y.shape;
  others.dims[0] *= t - 1;
  const Tensor received = frame.tensor(y.dtype, others);  // of the ranks but this one, in rank order
  const auto from_rank = [&](int r) { return received.slice((r < rank ? r : r - 1) * rows, rows); };
  for (int i = 1; i < t; ++i) {
    const int owner = (rank + i) % t, from = (rank - i + t) % t;
    multiply(owner * rows, rows, part(owner));
    lane.group().send(part(owner), owner, lane.after_compute());
    lane.group().recv(from_rank(from), from, lane.after_compute());
  }
  multiply(rank * rows, rows, part(rank));
  lane.join();
  const auto term = [&](int r) { return r == rank ? part(rank) : from_rank(r); };
  ctx.ops.add(term(0), term(1), y, ctx.compute);
  for (int r = 2; r < t; ++r) ctx.ops.add(y, term(r), y, ctx.compute);
}

}  // namespace trivet
