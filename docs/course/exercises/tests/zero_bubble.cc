#include "docs/course/exercises/zero_bubble.h"

#include "docs/course/exercises/support/pipeline.h"

namespace trivet::exercise {
namespace {

TEST(zero_bubble, fills_the_bubble_with_weight_halves) {
  const StageCosts costs{.forward = 2, .backward_input = 2, .backward_weight = 1.5};
  for (const int p : {1, 2, 3, 4, 6})
    for (const int m : {p, p + 1, 2 * p, 11}) {
      const std::string what = "p = " + std::to_string(p) + ", m = " + std::to_string(m);
      const Proof proof = prove(zero_bubble, p, m, costs);
      if (!proof.problems.empty()) FAIL() << what << ": the checker says\n" << proof.problems;
      ASSERT_LE(proof.bubble.time(), (p - 1) * (2 + 2 - 1.5) + 1e-9)
          << what << ": the bubble is too long, expected (p - 1)(tF + tI - tW)\n"
          << proof.drawing;
      for (const int slots : proof.slots)
        ASSERT_LE(slots, std::min(p, m)) << what << ": a rank holds too many activations\n" << proof.drawing;
      if (p == 4 && m == 8) std::cout << "your schedule, p = 4, m = 8:\n" << proof.drawing;
    }
}

}  // namespace
}  // namespace trivet::exercise
