// sequence_parallel: chapter 7, 30 minutes
//
// Between the tensor-parallel layers, t ranks would compute the same norms and dropouts of all s positions. With
// sequence parallelism, each has s / t of the positions there. Before a column-parallel layer the positions are
// gathered. Write this gather, what it becomes in the backward pass, and the gradient of a norm's weight, of which
// every rank has a copy: y = normalised * weight, column by column.
#pragma once

#include <vector>

#include "docs/course/exercises/support/matrix.h"
#include "docs/course/exercises/support/ranks.h"

namespace trivet::exercise {

// x: [s / t, h], this rank's positions; returns [s, h].
Matrix gather_forward(Communicator& tensor, const Matrix& x, Stream& stream);
// dy: [s, h], this rank's term of the gradient of what was gathered; returns [s / t, h], the gradient of its own x.
Matrix gather_backward(Communicator& tensor, const Matrix& dy, Stream& stream);
// dy, normalised: [s / t, h]; returns the gradient of the weight, [h], which all ranks need.
std::vector<float> norm_weight_gradient(Communicator& tensor, const Matrix& dy, const Matrix& normalised,
                                        Stream& stream);

}  // namespace trivet::exercise

// Hints
//   1. Each rank has used the whole gathered matrix with its own columns of a weight, so it has a term of the sum.
//   2. An all-gather forward is a reduce-scatter backward: sum over ranks, and each keeps its own positions.
//   3. The weight has met the positions of all ranks, so its gradient is a sum over all of them: an all-reduce. Without
//      it, the copies of the weight drift apart.
// In the engine: parallel/tensor/sequence.h; parallel/placed.h, where the place of a tensor says what has to be summed.
