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

// Quantiles of tables in textbooks (two-sided 95 % and 99 %), and the closed forms of 1 and 2 degrees of freedom.
TEST(Statistics, StudentsTIsAsInTables) {
  EXPECT_NEAR(student_t_quantile(0.975, 1), 12.7062, 5e-5);
  EXPECT_NEAR(student_t_quantile(0.975, 4), 2.77645, 5e-6);
  EXPECT_NEAR(student_t_quantile(0.995, 5), 4.03214, 5e-6);
  EXPECT_NEAR(student_t_quantile(0.975, 30), 2.04227, 5e-6);
  EXPECT_NEAR(student_t_quantile(0.975, 999), 1.96234, 5e-6);
  EXPECT_NEAR(student_t_quantile(0.025, 4), -2.77645, 5e-6);
  EXPECT_NEAR(student_t_quantile(0.5, 7), 0, 1e-12);
  for (const double t : {-30., -1.5, 0., 0.3, 2., 700.}) {
    EXPECT_NEAR(student_t_cdf(t, 1), 0.5 + std::atan(t) / std::acos(-1), 1e-15);
    EXPECT_NEAR(student_t_cdf(t, 2), 0.5 + t / (2 * std::sqrt(2 + t * t)), 1e-15);
    for (const int64_t degrees : {3, 4, 11, 40})
      EXPECT_NEAR(student_t_cdf(t, degrees) + student_t_cdf(-t, degrees), 1, 1e-15);
  }
  // The density integrates to it: 3 degrees of freedom, Simpson's rule.
  const auto density = [](double t) { return 2 / (std::acos(-1) * std::sqrt(3.) * std::pow(1 + t * t / 3, 2)); };
  double integral = 0;
  for (int i = 0; i < 1000; ++i) {
    const double a = i / 500., b = (i + 1) / 500.;
    integral += (b - a) / 6 * (density(a) + 4 * density((a + b) / 2) + density(b));
  }
  EXPECT_NEAR(student_t_cdf(2, 3), 0.5 + integral, 1e-12);
}

TEST(Statistics, AMeanHasAnIntervalAndAP) {
  const MeanEstimate estimate = estimate_mean(std::vector<double>{1, 2, 3, 4, 5});
  EXPECT_EQ(estimate.mean, 3);
  EXPECT_DOUBLE_EQ(estimate.standard_error, std::sqrt(0.5));
  EXPECT_NEAR(estimate.half_width(0.95), 2.77645 * std::sqrt(0.5), 5e-6);
  EXPECT_NEAR(estimate.p, 2 * (1 - student_t_cdf(3 / std::sqrt(0.5), 4)), 1e-12);
  const MeanEstimate one = estimate_mean(std::vector<double>{7});
  EXPECT_EQ(one.mean, 7);
  EXPECT_EQ(one.half_width(0.95), 0);
  EXPECT_EQ(one.p, 1);
  EXPECT_EQ(estimate_mean({}).n, 0);
  EXPECT_EQ(estimate_mean(std::vector<double>{2, 2}).p, 0);
  EXPECT_EQ(estimate_mean(std::vector<double>{0, 0}).p, 1);
}

TEST(Statistics, HolmsCorrectionStepsDown) {
  EXPECT_EQ(holm(std::vector<double>{0.25, 0.0625, 0.125, 0.5}), (std::vector<double>{0.5, 0.25, 0.375, 0.5}));
  EXPECT_EQ(holm(std::vector<double>{0.5, 0.5}), (std::vector<double>{1, 1}));
  EXPECT_EQ(holm(std::vector<double>{0.25}), (std::vector<double>{0.25}));
  EXPECT_EQ(holm({}), (std::vector<double>{}));
  // Never smaller than that of a smaller p.
  EXPECT_EQ(holm(std::vector<double>{0.125, 0.1875, 0.1875}), (std::vector<double>{0.375, 0.375, 0.375}));
}

}  // namespace
}  // namespace trivet
