#include "docs/course/exercises/vocab_loss.h"

#include "docs/course/exercises/support/testing.h"

namespace trivet::exercise {
namespace {

TEST(vocab_loss, equals_the_loss_over_whole_rows) {
  for (const int t : {1, 2, 3})
    for (const float scale : {1.0f, 300.0f}) {
      const int64_t n = 6, part = 7, vocab = t * part;
      Matrix logits = matrix(n, vocab, 1);
      for (float& x : logits.values) x *= scale;
      std::vector<int> targets;
      std::vector<double> expected;
      for (int64_t i = 0; i < n; ++i) {
        targets.push_back(static_cast<int>(mixed(static_cast<uint64_t>(i)) % static_cast<uint64_t>(vocab)));
        double max = -1e30, sum = 0;
        for (int64_t j = 0; j < vocab; ++j) max = std::max(max, static_cast<double>(logits(i, j)));
        for (int64_t j = 0; j < vocab; ++j) sum += std::exp(logits(i, j) - max);
        expected.push_back(std::log(sum) + max - logits(i, targets.back()));
      }
      on_ranks(t, [&](Communicator& tensor, Stream& stream) {
        Matrix own(n, part);
        const int first = tensor.rank() * static_cast<int>(part);
        for (int64_t i = 0; i < n; ++i)
          for (int64_t j = 0; j < part; ++j) own(i, j) = logits(i, first + j);
        expect_near(vocab_loss(tensor, own, targets, first, stream), expected, 1e-4,
                    "losses on rank " + std::to_string(tensor.rank()) + " of " + std::to_string(t) + ", logits up to " +
                        std::to_string(static_cast<int>(scale)));
      });
    }
}

}  // namespace
}  // namespace trivet::exercise
