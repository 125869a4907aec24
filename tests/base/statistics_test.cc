#include "base/statistics.h"

#include <cmath>
#include <gtest/gtest.h>

namespace trivet {
namespace {

TEST(Statistics, AreExact) {
  EXPECT_TRUE(std::isnan(median({})));
  EXPECT_EQ(median({3}), 3);
  EXPECT_EQ(median({5, 1, 4}), 4);
  EXPECT_EQ(median({8, 1, 2, 4}), 3);
  const std::vector<double> values{8, 2, 4};
  const Sample sample = sample_of(values);
  EXPECT_EQ(sample.n, 3);
  EXPECT_EQ(sample.median, 4);
  EXPECT_EQ(sample.min, 2);
  EXPECT_EQ(sample.max, 8);
  EXPECT_EQ(sample.spread(), 1.5);
  EXPECT_EQ(sample_of(std::vector<double>{7}).spread(), 0);
  EXPECT_DOUBLE_EQ(geometric_mean(std::vector<double>{0.5, 2, 8}), 2);
  EXPECT_EQ(geometric_mean({}), 1);
}

TEST(Statistics, TheUpperMedianIsOneOfTheValues) {
  EXPECT_EQ(upper_median(std::vector<int64_t>{7}), 7);
  EXPECT_EQ(upper_median(std::vector<int64_t>{5, 1, 4}), 4);
  EXPECT_EQ(upper_median(std::vector{8.5, 1., 2., 4.}), 4);
}

TEST(Statistics, AMajorityIsTheSameInWhateverOrderItIsCounted) {
  const std::vector<int64_t> votes{3, -1, 3, 2, 3}, tie{9, 4, 4, 9};
  EXPECT_EQ(majority_of<int64_t>(votes).value, 3);
  EXPECT_EQ(majority_of<int64_t>(votes).votes, 3);
  EXPECT_EQ(majority_of<int64_t>(tie).value, 4);
  EXPECT_EQ(majority_of<int64_t>(tie).votes, 2);
}

}  // namespace
}  // namespace trivet
