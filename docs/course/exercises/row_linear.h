// row_linear: chapter 6, 20 minutes
//
// The layer that follows a column-parallel one: y = x W^T + bias, whose input columns are shared by t ranks. Rank r has
// its columns of x and the same columns of W. All ranks have the whole bias, and want the whole y.
#pragma once

#include <span>

#include "docs/course/exercises/support/matrix.h"
#include "docs/course/exercises/support/ranks.h"

namespace trivet::exercise {

// x: [n, in / t], w: [out, in / t], bias: [out]; returns y [n, out].
Matrix row_forward(Communicator& tensor, const Matrix& x, const Matrix& w, std::span<const float> bias, Stream& stream);

}  // namespace trivet::exercise

// Hints
//   1. The product of a rank's columns of x and W is one term of y.
//   2. All ranks need the sum of all terms: an all-reduce.
//   3. Count how many times the bias is added.
// In the engine: parallel/tensor/linear.cc:RowParallelLinear. Paper: Shoeybi et al. 2019, the operator g.
