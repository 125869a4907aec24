#include "docs/course/exercises/column_linear.h"

namespace trivet::exercise {

Matrix column_forward(const Matrix& x, const Matrix& w) {
  // Your code.
  return Matrix(x.rows, w.rows);
}

ColumnGradients column_backward(Communicator& tensor, const Matrix& x, const Matrix& w, const Matrix& dy,
                                Stream& stream) {
  // Your code.
  return {Matrix(x.rows, x.cols), Matrix(w.rows, w.cols)};
}

}  // namespace trivet::exercise
