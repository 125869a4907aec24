// The mistake: the forward pass needs no communication, so the backward pass has none either. Each rank goes on with
// the gradient of its own columns, and the layers below get only a part of their gradient.
#include "docs/course/exercises/column_linear.h"

namespace trivet::exercise {

Matrix column_forward(const Matrix& x, const Matrix& w) { return matmul(x, transpose(w)); }

ColumnGradients column_backward(Communicator& tensor, const Matrix& x, const Matrix& w, const Matrix& dy,
                                Stream& stream) {
  return {matmul(dy, w), matmul(transpose(dy), x)};
}

}  // namespace trivet::exercise
