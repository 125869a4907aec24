// Statistics of a few repeats: middle and range, a mean with Student's t interval, Holm's correction. And votes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

namespace trivet {

// The middle value; the mean of the middle two where their number is even; NaN where there is none.
double median(std::vector<double> values);

// One of the values: the middle one in their order, of an even number the upper of two. REQUIRES: there is one.
template <class T>
T upper_median(std::vector<T> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// What most of the votes say, and how many do: the same on all ranks that count the same votes.
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
  // The range over the median, 0 for one value.
  double spread() const { return n < 2 || median == 0 ? 0 : (max - min) / median; }
};
Sample sample_of(std::span<const double> values);

// exp of the mean of logarithms. REQUIRES: values above 0; 1 of none.
double geometric_mean(std::span<const double> values);

// P(T <= t) of Student's t: the finite sums of Abramowitz & Stegun, 26.7.3 and 26.7.4. REQUIRES: degrees >= 1.
double student_t_cdf(double t, int64_t degrees);
// Its inverse, by bisection. REQUIRES: 0 < p < 1, degrees >= 1.
double student_t_quantile(double p, int64_t degrees);

// The mean of independent values. standard_error: 0 of one value. p: two-sided, that the true mean is 0 (t test); 1 of
// one value.
struct MeanEstimate {
  int64_t n = 0;
  double mean = 0, standard_error = 0, p = 1;
  // Half of the interval that covers the true mean with this probability; 0 of one value.
  double half_width(double confidence) const;
};
MeanEstimate estimate_mean(std::span<const double> values);

// p-values corrected for their number, in their order, by S. Holm's step-down procedure (1979): to call those effects
// whose corrected p is at most alpha is wrong about any of them with probability alpha, however they depend on each
// other. A value that is not tested is left out by the caller.
std::vector<double> holm(std::span<const double> p_values);

}  // namespace trivet
