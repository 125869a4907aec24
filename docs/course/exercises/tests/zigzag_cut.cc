#include "docs/course/exercises/zigzag_cut.h"

#include "docs/course/exercises/support/testing.h"
#include "parallel/context/cut.h"

namespace trivet::exercise {
namespace {

TEST(zigzag_cut, gives_all_ranks_the_same_work) {
  for (const int ranks : {1, 2, 3, 5}) {
    const int64_t s = 30 * ranks, pairs = s * (s + 1) / 2;  // of a query and a key that it sees
    for (int rank = 0; rank < ranks; ++rank) {
      const std::vector<int64_t> found = zigzag_positions(s, ranks, rank);
      const std::string what = "rank " + std::to_string(rank) + " of " + std::to_string(ranks);
      int64_t work = 0;
      for (const int64_t position : found) work += position + 1;
      ASSERT_EQ(work * ranks, pairs) << what << " has " << work << " pairs of query and key, expected "
                                     << pairs / ranks;
      std::vector<int64_t> expected;
      for (int64_t row = 0; row < s / ranks; ++row) expected.push_back(ContextCut{s, ranks, rank}.positions().at(row));
      expect_near(found, expected, 0, "positions of " + what);
    }
  }
}

}  // namespace
}  // namespace trivet::exercise
