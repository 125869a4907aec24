// Statistics of a few repeats: middle and range, a mean with Student's t interval. And votes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

namespace trivet {

// The middle value; the mean of the middle two if their number is even; NaN for no values.
double median(std::vector<double> values);

// One of the values: the middle one in their order, of an even number the upper of two. REQUIRES: there is one.
template <class T>
T upper_median(std::vector<T> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// The most frequent vote and its count: the same on all ranks that count the same votes.
// REQUIRES: there is one.
template <class T>
struct Majority {
  T value;
  int64_t votes = 0;
};
template <class T>
Majority<T> majority_of(std::span<const T> votes) {
  std::map<T, int64_t> counts;
  for (const T& vote : votes) ++counts[vote];
  const auto most = std::ranges::max_element(counts, {}, [](const auto& count) { return count.second; });
  return {most->first, most->second};
}

struct Sample {
  int64_t n = 0;
  double median = 0, min = 0, max = 0;
};
Sample sample_of(std::span<const double> values);

// The value that Student's t is below with probability p. REQUIRES: 0 < p < 1, degrees >= 1.
double student_t_quantile(double p, int64_t degrees);

constexpr double kConfidence = 0.95;

// The mean of independent values, or the difference of two such means. Of one value the error and the interval are 0.
struct MeanEstimate {
  int64_t n = 0;
  double mean = 0, standard_error = 0;
  double half_width = 0;  // of the interval that covers the true mean with kConfidence, by Student's t
  double p = 1;           // two-sided, that the true mean is 0; 1 of one value
};
MeanEstimate estimate_mean(std::span<const double> values);
// The difference of the means of two independent samples whose variances may differ (B. L. Welch 1947), the degrees of
// freedom rounded down. n: the smaller one.
MeanEstimate operator-(const MeanEstimate& a, const MeanEstimate& b);

}  // namespace trivet
