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

// Quantiles from textbook tables (two-sided 95 % and 99 %).
TEST(Statistics, StudentsTIsAsInTables) {
  EXPECT_NEAR(student_t_quantile(0.975, 1), 12.7062, 5e-5);
  EXPECT_NEAR(student_t_quantile(0.975, 4), 2.77645, 5e-6);
  EXPECT_NEAR(student_t_quantile(0.995, 5), 4.03214, 5e-6);
  EXPECT_NEAR(student_t_quantile(0.975, 999), 1.96234, 5e-6);
  EXPECT_NEAR(student_t_quantile(0.025, 4), -2.77645, 5e-6);
}

TEST(Statistics, AMeanHasAnIntervalAndAP) {
  const MeanEstimate estimate = estimate_mean(std::vector<double>{1, 2, 3, 4, 5});
  EXPECT_EQ(estimate.mean, 3);
  EXPECT_DOUBLE_EQ(estimate.standard_error, std::sqrt(0.5));
  EXPECT_NEAR(estimate.half_width, 2.77645 * std::sqrt(0.5), 5e-6);
  EXPECT_NEAR(estimate_mean(std::vector<double>{1, 3}).p, 1 - 2 * std::atan(2) / std::acos(-1), 1e-12)
      << "of one degree of freedom";
  const MeanEstimate one = estimate_mean(std::vector<double>{7});
  EXPECT_EQ(one.mean, 7);
  EXPECT_EQ(one.half_width, 0);
  EXPECT_EQ(one.p, 1);
  EXPECT_EQ(estimate_mean({}).n, 0);
  EXPECT_EQ(estimate_mean(std::vector<double>{2, 2}).p, 0);
  EXPECT_EQ(estimate_mean(std::vector<double>{0, 0}).p, 1);
}

}  // namespace
}  // namespace trivet
