#include "docs/course/exercises/row_linear.h"

#include "docs/course/exercises/support/testing.h"

namespace trivet::exercise {
namespace {

TEST(row_linear, equals_the_layer_of_one_rank) {
  for (const int t : {1, 2, 3}) {
    const int64_t n = 4, part = 2, in = t * part, out = 5;
    const Matrix x = matrix(n, in, 1), w = matrix(out, in, 2);
    const std::vector<float> bias = numbers(out, 3);
    Matrix y = matmul(x, transpose(w));
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j < out; ++j) y(i, j) += bias[static_cast<size_t>(j)];
    on_ranks(t, [&](Communicator& tensor, Stream& stream) {
      const auto own = [&](const Matrix& whole) {  // this rank's columns
        Matrix columns(whole.rows, part);
        for (int64_t i = 0; i < whole.rows; ++i)
          for (int64_t j = 0; j < part; ++j) columns(i, j) = whole(i, tensor.rank() * part + j);
        return columns;
      };
      expect_near(row_forward(tensor, own(x), own(w), bias, stream).values, y.values, 1e-5,
                  "y on rank " + std::to_string(tensor.rank()) + " of " + std::to_string(t));
    });
  }
}

}  // namespace
}  // namespace trivet::exercise
