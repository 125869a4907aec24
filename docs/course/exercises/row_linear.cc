#include "docs/course/exercises/row_linear.h"

namespace trivet::exercise {

Matrix row_forward(Communicator& tensor, const Matrix& x, const Matrix& w, std::span<const float> bias,
                   Stream& stream) {
  // Your code.
  return Matrix(x.rows, w.rows);
}

}  // namespace trivet::exercise
