#include "docs/course/exercises/zero_step.h"

#include "docs/course/exercises/support/testing.h"

namespace trivet::exercise {
namespace {

TEST(zero_step, equals_three_steps_on_one_rank) {
  for (const int d : {2, 3}) {
    const int64_t own = 7, n = d * own;
    std::vector<float> expected = numbers(n, 1), momentum(static_cast<size_t>(n));
    const auto gradient = [&](int step, int rank) { return numbers(n, static_cast<uint64_t>(10 * step + rank + 2)); };
    for (int step = 0; step < 3; ++step)
      for (size_t i = 0; i < expected.size(); ++i) {
        float mean = 0;
        for (int rank = 0; rank < d; ++rank) mean += gradient(step, rank)[i] / static_cast<float>(d);
        momentum[i] = 0.9f * momentum[i] + mean;
        expected[i] -= 0.1f * momentum[i];
      }
    on_ranks(d, [&](Communicator& data, Stream& stream) {
      std::vector<float> weights = numbers(n, 1), part(static_cast<size_t>(own));
      for (int step = 0; step < 3; ++step) {
        std::vector<float> grads = gradient(step, data.rank());
        zero_step(data, weights, grads, part, 0.1f, stream);
      }
      const std::string where = "rank " + std::to_string(data.rank()) + " of " + std::to_string(d) + ": ";
      expect_near(weights, expected, 1e-6, where + "weights");
      expect_near(part, std::span(momentum).subspan(static_cast<size_t>(data.rank() * own), static_cast<size_t>(own)),
                  1e-6, where + "momentum");
    });
  }
}

}  // namespace
}  // namespace trivet::exercise
