#include "base/intervals.h"

#include <gtest/gtest.h>

namespace trivet {
namespace {

using Intervals = std::vector<Interval>;

TEST(Intervals, UnitedWhereTheyOverlapOrTouch) {
  const Intervals all = united({{5, 9}, {1, 3}, {3, 4}, {6, 7}, {8, 8}, {20, 18}});
  EXPECT_EQ(all, (Intervals{{1, 4}, {5, 9}}));
  EXPECT_EQ(length_of(all), 7);
}

TEST(Intervals, GapsAreWhatNoneCovers) {
  const Intervals covered{{2, 4}, {6, 8}};
  EXPECT_EQ(gaps(covered, {0, 10}), (Intervals{{0, 2}, {4, 6}, {8, 10}}));
  EXPECT_EQ(gaps(covered, {3, 7}), (Intervals{{4, 6}}));
  EXPECT_EQ(gaps(covered, {4, 6}), (Intervals{{4, 6}}));
  EXPECT_EQ(gaps(covered, {2, 4}), Intervals{});
  EXPECT_EQ(gaps(covered, {3, 3}), Intervals{});
  EXPECT_EQ(gaps({}, {1, 2}), (Intervals{{1, 2}}));
}

}  // namespace
}  // namespace trivet
