// column_linear: chapter 6, 35 minutes
//
// A linear layer y = x W^T whose output columns are shared by t tensor-parallel ranks: rank r has rows r out / t to
// (r + 1) out / t of W. Every rank has all of x, so it computes its columns of y without communication. But x affects
// the columns of all ranks. Where does the backward pass have to communicate, and what?
#pragma once

#include "docs/course/exercises/support/matrix.h"
#include "docs/course/exercises/support/ranks.h"

namespace trivet::exercise {

// x: [n, in], w: [out / t, in]; returns this rank's columns of y, [n, out / t].
Matrix column_forward(const Matrix& x, const Matrix& w);

struct ColumnGradients {
  Matrix dx, dw;  // [n, in], the same on all ranks; [out / t, in]
};
// dy: [n, out / t]
ColumnGradients column_backward(Communicator& tensor, const Matrix& x, const Matrix& w, const Matrix& dy,
                                Stream& stream);

}  // namespace trivet::exercise

// Hints
//   1. matmul(a, b) and transpose(a) are in support/matrix.h. For y = x W^T, dx = dy W and dW = dy^T x.
//   2. A rank's dy W is one term of dx: the part of the sum that runs over the rank's own columns of y.
//   3. tensor.all_reduce(tensor_of(dx.values), Reduce::sum, stream). dW needs nothing: no other rank has its rows.
// In the engine: parallel/tensor/linear.cc:ColumnParallelLinear. Paper: Shoeybi et al. 2019, the operator f.
