// Overlap of tensor-parallel communication with the products that need it or make it, under sequence parallelism. The
// methods are those of TransformerEngine's user buffers, cut to what a rank-ordered sum allows.
//
// What rank 2 of 4 does in time, from left to right. xi are the rows that rank i holds; yi is this rank's term of the
// rows that rank i shall have.
//
//   all-gather -> product: multiply what is here while the next part travels
//
//     ring      wire      send x2, get x1 | send x1, get x0 | send x0, get x3 |
//               compute   x2 W            | x1 W            | x0 W            | x3 W
//
//     pipeline  wire      x0 to all | x1 to all | x2 to all | x3 to all |
//               compute   x2 W      | x0 W      | x1 W                  | x3 W
//
//   product -> reduce-scatter: multiply the next part while the last one travels
//
//     ring      compute   y3 | y0                    | y1                    | y2                    | y2 + what came
//               wire         | y3 to 3, a y2 from 1  | y0 to 0, a y2 from 0  | y1 to 1, a y2 from 3  |
//
//     pipeline  compute   cut 0 of y0 … y3 | cut 1                | cut 2                | cut 3                |
//               wire                       | reduce-scatter cut 0 | reduce-scatter cut 1 | reduce-scatter cut 2 | … 3
//
//   bulk: a whole collective beside an independent product, which only the backward pass of a column-parallel layer has
//
//               wire      gather x | reduce-scatter dx
//               compute   dx = dy W | dW += dy^T x
//
// Elsewhere bulk is none, and in that backward pass ring and pipeline are bulk. In fp32 all give the same bits as none:
// rows of a product do not depend on each other, and sums are taken in rank order. In bf16 the ring rounds after each
// addition.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "parallel/comm_streams.h"
#include "parallel/context.h"

namespace trivet {

enum class TensorOverlap { none, bulk, ring, pipeline };

// The stream beside the compute stream that tensor-parallel communication overlaps on: the wire of the pictures.
class TensorCommStream {
 public:
  explicit TensorCommStream(const CommStreamSite& on);  // collective over on.group, the tensor-parallel ranks

  // What is queued on the stream from now on runs after what compute has queued so far.
  void after_compute() { comm_streams_.after_compute(); }
  // As a TensorGroup under sequence parallelism has them.
  void gather(Residual part, Whole whole) { comm_stream_.group->all_gather(part, whole, *comm_stream_.stream); }
  void reduce(Partial term, Residual sum) {
    comm_stream_.group->reduce_scatter(term, sum, Reduce::sum, *comm_stream_.stream);
  }
  // Some of the positions, from rank to rank.
  template <Place kPlace>
  void exchange(Placed<kPlace> out, int to, Placed<kPlace> in, int from) {
    comm_stream_.group->exchange(out, to, in, from, *comm_stream_.stream);
  }
  void broadcast(Whole rows, int root) { comm_stream_.group->broadcast(rows, root, *comm_stream_.stream); }
  // Compute waits for what the stream had queued at the last mark(i). 0 <= i < size of the group.
  void mark(int i);
  void wait(int i);
  void join();  // compute waits for all that the stream has queued

 private:
  CommStreams comm_streams_;  // one
  CommStream& comm_stream_;
  Stream& compute_;
  std::vector<std::unique_ptr<Event>> marks_;
  std::unique_ptr<Event> joined_;
};

// multiply(first, rows, whole): the product of rows [first, first + rows) of the whole sequence.
using MultiplyWhole = std::function<void(int64_t first, int64_t rows, Whole whole)>;
// x: this rank's positions [s*, b, h]. Multiplies the whole, at once or part by part as they come; returns the whole
// [s, b, h], which lives in `frame` or is x. A mode but none needs sequence parallelism and a Context with a
// stream.
Whole gather_and_multiply(Context& ctx, TensorOverlap mode, Residual x, Scratch::Frame& frame,
                          const MultiplyWhole& multiply);

// multiply(first, rows, partial): the product of those rows into `partial`, which has room for them alone.
using MultiplyPartial = std::function<void(int64_t first, int64_t rows, Partial partial)>;
// y: this rank's positions [s*, b, n] of the sum over ranks of partial products [s, b, n].
void multiply_and_reduce(Context& ctx, TensorOverlap mode, Residual y, const MultiplyPartial& multiply);

}  // namespace trivet
