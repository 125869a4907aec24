#include "docs/course/exercises/column_linear.h"

#include "docs/course/exercises/support/testing.h"

namespace trivet::exercise {
namespace {

TEST(column_linear, equals_the_layer_of_one_rank) {
  for (const int t : {2, 3}) {
    const int64_t n = 4, in = 5, part = 2, out = t * part;
    const Matrix x = matrix(n, in, 1), w = matrix(out, in, 2), dy = matrix(n, out, 3);
    const Matrix y = matmul(x, transpose(w)), dx = matmul(dy, w), dw = matmul(transpose(dy), x);
    on_ranks(t, [&](Communicator& tensor, Stream& stream) {
      const auto own = [&](const Matrix& whole) {  // this rank's rows
        Matrix rows(part, whole.cols);
        for (int64_t i = 0; i < part; ++i)
          for (int64_t j = 0; j < whole.cols; ++j) rows(i, j) = whole(tensor.rank() * part + i, j);
        return rows;
      };
      const std::string where = " on rank " + std::to_string(tensor.rank()) + " of " + std::to_string(t);
      const Matrix my_dy = transpose(own(transpose(dy)));
      expect_near(column_forward(x, own(w)).values, transpose(own(transpose(y))).values, 1e-5, "y" + where);
      const ColumnGradients found = column_backward(tensor, x, own(w), my_dy, stream);
      expect_near(found.dw.values, own(dw).values, 1e-5, "dW" + where);
      expect_near(found.dx.values, dx.values, 1e-5, "dx" + where);
    });
  }
}

}  // namespace
}  // namespace trivet::exercise
