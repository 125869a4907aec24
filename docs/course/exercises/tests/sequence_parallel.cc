#include "docs/course/exercises/sequence_parallel.h"

#include "docs/course/exercises/support/testing.h"

namespace trivet::exercise {
namespace {

TEST(sequence_parallel, equals_one_rank_with_all_positions) {
  for (const int t : {2, 3}) {
    const int64_t part = 3, s = t * part, h = 5;
    const Matrix x = matrix(s, h, 1), dy = matrix(s, h, 2), normalised = matrix(s, h, 3);
    const auto term = [&](int rank) { return matrix(s, h, static_cast<uint64_t>(10 + rank)); };
    Matrix sum(s, h);
    std::vector<float> weight_gradient(h);
    for (int64_t i = 0; i < s * h; ++i) {
      for (int rank = 0; rank < t; ++rank)
        sum.values[static_cast<size_t>(i)] += term(rank).values[static_cast<size_t>(i)];
      weight_gradient[static_cast<size_t>(i % h)] += dy(i / h, i % h) * normalised(i / h, i % h);
    }
    on_ranks(t, [&](Communicator& tensor, Stream& stream) {
      const auto own = [&](const Matrix& whole) {  // this rank's positions
        Matrix rows(part, h);
        for (int64_t i = 0; i < part * h; ++i) rows(i / h, i % h) = whole(tensor.rank() * part + i / h, i % h);
        return rows;
      };
      const std::string where = " on rank " + std::to_string(tensor.rank()) + " of " + std::to_string(t);
      expect_near(gather_forward(tensor, own(x), stream).values, x.values, 0, "all positions" + where);
      expect_near(gather_backward(tensor, term(tensor.rank()), stream).values, own(sum).values, 1e-5,
                  "the gradient of the own positions" + where);
      expect_near(norm_weight_gradient(tensor, own(dy), own(normalised), stream), weight_gradient, 1e-5,
                  "the gradient of the norm's weight" + where);
    });
  }
}

}  // namespace
}  // namespace trivet::exercise
