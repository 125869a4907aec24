// The mistake: every rank adds the bias to its term, so the sum has it t times. While biases are zero, at the start of
// a run, nobody notices.
#include "docs/course/exercises/row_linear.h"

namespace trivet::exercise {

Matrix row_forward(Communicator& tensor, const Matrix& x, const Matrix& w, std::span<const float> bias,
                   Stream& stream) {
  Matrix y = matmul(x, transpose(w));
  for (size_t i = 0; i < y.values.size(); ++i) y.values[i] += bias[i % bias.size()];
  tensor.all_reduce(tensor_of(y.values), Reduce::sum, stream);
  return y;
}

}  // namespace trivet::exercise
