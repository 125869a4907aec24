#include "docs/course/exercises/column_linear.h"

namespace trivet::exercise {

Matrix column_forward(const Matrix& x, const Matrix& w) { return matmul(x, transpose(w)); }

ColumnGradients column_backward(Communicator& tensor, const Matrix& x, const Matrix& w, const Matrix& dy,
                                Stream& stream) {
  ColumnGradients gradients{matmul(dy, w), matmul(transpose(dy), x)};
  tensor.all_reduce(tensor_of(gradients.dx.values), Reduce::sum, stream);
  return gradients;
}

}  // namespace trivet::exercise
