// Statistics of a few repeats (median and range, mean with Student's t interval), and majority votes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

namespace trivet {

// The middle value; for an even number of values, the mean of the middle two; NaN for no values.
double median(std::vector<double> values);

// The middle value; for an even number of values, the upper of the middle two. REQUIRES: at least one value.
template <class T>
T upper_median(std::vector<T> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// The most frequent vote and its count: the same on all ranks that count the same votes.
// REQUIRES: at least one vote.
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

// The p-quantile of Student's t distribution. REQUIRES: 0 < p < 1, degrees >= 1.
double student_t_quantile(double p, int64_t degrees);

constexpr double kConfidence = 0.95;

// The mean of independent values, or the difference of two such means. For one value, error and interval are 0.
struct MeanEstimate {
  int64_t n = 0;
  double mean = 0, standard_error = 0;
  double half_width = 0;  // of the kConfidence interval for the true mean, by Student's t
  double p = 1;           // two-sided p-value for a true mean of 0; 1 for one value
};
MeanEstimate estimate_mean(std::span<const double> values);
// The difference of the means of two independent samples whose variances may differ (B. L. Welch 1947), with the
// degrees of freedom rounded down. n: the smaller of the two.
MeanEstimate operator-(const MeanEstimate& a, const MeanEstimate& b);

}  // namespace trivet
