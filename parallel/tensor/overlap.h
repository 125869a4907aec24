// Overlap of tensor-parallel communication with its GEMMs, under sequence parallelism. The methods are those of
// Transformer Engine's user buffers, as far as a rank-ordered sum allows.
//
// Timelines of rank 2 of 4. xi are the rows that rank i holds; yi is this rank's term of the rows that rank i will
// hold.
//
//   all-gather -> GEMM: multiply the rows that have arrived while the next ones are in flight
//
//     ring      wire      send x2, get x1 | send x1, get x0 | send x0, get x3 |
//               compute   x2 W            | x1 W            | x0 W            | x3 W
//
//     pipeline  wire      x0 to all | x1 to all | x2 to all | x3 to all |
//               compute   x2 W      | x0 W      | x1 W      |           | x3 W
//
//   GEMM -> reduce-scatter: multiply the next rows while the last ones are in flight
//
//     ring      compute   y3 | y0                    | y1                    | y2                    | y2 + received
//               wire         | y3 to 3, a y2 from 1  | y0 to 0, a y2 from 0  | y1 to 1, a y2 from 3  |
//
//     pipeline  compute   split 0 of y0 … y3 | split 1          | split 2          | split 3          |
//               wire                         | reduce-scatter 0 | reduce-scatter 1 | reduce-scatter 2 | …
//
//   bulk: a whole collective during an independent GEMM, which only the backward pass of a column-parallel layer has
//
//               wire      gather x | reduce-scatter dx
//               compute   dx = dy W | dW += dy^T x
//
// Elsewhere bulk behaves like none, and in that backward pass ring and pipeline behave like bulk (unless its weight
// half is deferred). In fp32 all are bitwise equal to none: the rows of a GEMM are independent, and sums are taken in
// rank order. In bf16 the ring rounds after each addition.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "parallel/comm_streams.h"
#include "parallel/context.h"
#include "parallel/tensor/overlap_mode.h"

namespace trivet {

// The communication stream of the tensor-parallel group: the wire of the timelines.
class TensorCommStream {
 public:
  explicit TensorCommStream(const CommStreamSite& on);  // collective over on.group, the tensor-parallel ranks

  // Later calls on the stream run after what compute has queued so far.
  void after_compute() { comm_streams_.after_compute(); }
  // Like TensorGroup::gather and reduce under sequence parallelism.
  void gather(Residual part, Whole whole) { comm_stream_.group->all_gather(part, whole, *comm_stream_.stream); }
  void reduce(Partial term, Residual sum) {
    comm_stream_.group->reduce_scatter(term, sum, Reduce::sum, *comm_stream_.stream);
  }
  template <Place kPlace>
  void exchange(Placed<kPlace> out, int to, Placed<kPlace> in, int from) {
    comm_stream_.group->exchange(out, to, in, from, *comm_stream_.stream);
  }
  void broadcast(Whole rows, int root) { comm_stream_.group->broadcast(rows, root, *comm_stream_.stream); }
  // wait(i): compute waits for the stream's work up to the last mark(i). 0 <= i < size of the group.
  void mark(int i);
  void wait(int i);
  void join();  // compute waits for everything that the stream has queued

 private:
  CommStreams comm_streams_;  // a single stream
  CommStream& comm_stream_;
  Stream& compute_;
  std::vector<std::unique_ptr<Event>> marks_;
  std::unique_ptr<Event> joined_;
};

// multiply(first, rows, whole): the GEMM of rows [first, first + rows) of the whole sequence.
using MultiplyWhole = std::function<void(int64_t first, int64_t rows, Whole whole)>;
// x: this rank's positions [s*, b, h]. Multiplies the whole sequence, in one GEMM or as slices arrive, and returns that
// sequence, [s, b, h], in `frame` or x itself. Modes other than none need sequence parallelism and tensor_comm_stream.
Whole gather_and_multiply(Context& ctx, TensorOverlap mode, Residual x, Scratch::Frame& frame,
                          const MultiplyWhole& multiply);

// multiply(first, rows, partial): the GEMM of those rows into `partial`, which has room for only those.
using MultiplyPartial = std::function<void(int64_t first, int64_t rows, Partial partial)>;
// y: this rank's positions [s*, b, n] of the sum over ranks of the partial results [s, b, n].
void multiply_and_reduce(Context& ctx, TensorOverlap mode, Residual y, const MultiplyPartial& multiply);

}  // namespace trivet
