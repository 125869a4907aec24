#include "tools/draw/context_picture.h"

#include <gtest/gtest.h>

namespace trivet {
namespace {

TEST(ContextPicture, HasEqualWorkInZigzagPiecesAndTheLastRankTakesLongestInPlainOnes) {
  for (const int ranks : {2, 4, 8}) {
    // when
    const std::vector<ContextWork> cuts = context_work(ranks);

    // then
    ASSERT_EQ(cuts.size(), 2);
    int64_t sums[2] = {};
    for (size_t cut = 0; cut < 2; ++cut)
      for (size_t rank = 0; rank < static_cast<size_t>(ranks); ++rank) sums[cut] += cuts[cut].of(rank);
    EXPECT_EQ(sums[0], sums[1]) << "both cut the same triangle";
    for (size_t rank = 0; rank < static_cast<size_t>(ranks); ++rank) {
      EXPECT_EQ(cuts[0].of(rank) * ranks, sums[0]);
      EXPECT_EQ(cuts[0].hops[rank].size(), static_cast<size_t>(ranks)) << "no hop is idle";
      EXPECT_EQ(cuts[1].hops[rank].size(), rank + 1);
    }
    const double mean = static_cast<double>(sums[1]) / ranks;
    EXPECT_EQ(cuts[1].of(static_cast<size_t>(ranks - 1)), cuts[1].most());
    EXPECT_NEAR(static_cast<double>(cuts[1].most()) / mean, (2. * ranks - 1) / ranks, 1e-3);
  }
}

// Three documents over four chunks. The middle one is on both ranks in a contiguous split, on one rank in zigzag order.
TEST(ContextPicture, CountsThePairsWithinDocuments) {
  constexpr int64_t kPiece = 4096, kTriangle = kPiece * (kPiece + 1) / 2, kSquare = kPiece * kPiece;
  const std::vector<ContextWork> cuts = context_work(2, {1, 2, 1});
  // contiguous: rank 0 holds chunks 0 and 1, rank 1 holds 2 and 3; the middle document is on both
  EXPECT_EQ(cuts[1].of(0), 2 * kTriangle);
  EXPECT_EQ(cuts[1].of(1), 2 * kTriangle + kSquare);
  ASSERT_EQ(cuts[1].hops[1].size(), 2);
  EXPECT_EQ(cuts[1].hops[1][1].pairs, kSquare);
  // zigzag: rank 1 holds the whole middle document
  EXPECT_EQ(cuts[0].of(0), 2 * kTriangle);
  EXPECT_EQ(cuts[0].of(1), 2 * kTriangle + kSquare);
  EXPECT_EQ(cuts[0].hops[1].size(), 1);
  const std::string with = render_context_svg(cuts), without = render_context_svg(context_work(2));
  EXPECT_NE(with.find("The mask"), std::string::npos);
  EXPECT_EQ(without.find("The mask"), std::string::npos);
}

TEST(ContextPicture, NamesThePiecesAndTheIdleTimeOfEachRank) {
  const std::vector<ContextWork> cuts = context_work(2);
  EXPECT_EQ(table_of(cuts).rows[1], (std::vector<std::string>{"zigzag", "0", "0 3", "0 1", "1.00", "0.0%"}));
  EXPECT_EQ(table_of(cuts).rows[3], (std::vector<std::string>{"plain", "0", "0 1", "0", "0.50", "66.7%"}));
  const std::string svg = render_context_svg(cuts);
  EXPECT_NE(svg.find("66.7% idle"), std::string::npos);
}

}  // namespace
}  // namespace trivet
