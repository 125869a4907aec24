#include "docs/course/exercises/one_f_one_b.h"

#include "docs/course/exercises/support/pipeline.h"

namespace trivet::exercise {
namespace {

TEST(one_f_one_b, works_and_holds_few_activations) {
  for (const int p : {1, 2, 3, 4, 7})
    for (const int m : {1, 2, 5, 8}) {
      const std::string what = "p = " + std::to_string(p) + ", m = " + std::to_string(m);
      const Proof proof = prove(one_f_one_b, p, m, {.forward = 1, .backward_input = 1, .backward_weight = 1});
      if (!proof.problems.empty()) FAIL() << what << ": the checker says\n" << proof.problems;
      ASSERT_DOUBLE_EQ(proof.bubble.time(), 3 * (p - 1)) << what << ": the bubble, expected (p - 1)(tF + tB)\n"
                                                         << proof.drawing;
      for (int rank = 0; rank < p; ++rank)
        ASSERT_EQ(proof.slots[static_cast<size_t>(rank)], std::min(p - rank, m))
            << what << ": micro-batches whose activations rank " << rank << " holds\n"
            << proof.drawing;
      if (p == 4 && m == 8)
        std::cout << "your schedule, p = 4, m = 8, a backward pass twice as long:\n" << proof.drawing;
    }
}

}  // namespace
}  // namespace trivet::exercise
