#include "base/statistics.h"

#include <algorithm>
#include <boost/math/distributions/students_t.hpp>
#include <cmath>
#include <limits>
#include <numeric>

namespace trivet {

double median(std::vector<double> values) {
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  std::ranges::sort(values);
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : values[half - 1] + (values[half] - values[half - 1]) / 2;
}

Sample sample_of(std::span<const double> values) {
  if (values.empty()) return {};
  const auto [low, high] = std::ranges::minmax(values);
  return {.n = static_cast<int64_t>(values.size()),
          .median = median({values.begin(), values.end()}),
          .min = low,
          .max = high};
}

double student_t_quantile(double p, int64_t degrees) {
  return quantile(boost::math::students_t(static_cast<double>(degrees)), p);
}

namespace {

MeanEstimate with_interval(MeanEstimate estimate, int64_t degrees) {
  if (estimate.n < 2) return estimate;
  if (estimate.standard_error > 0) {
    const boost::math::students_t t(static_cast<double>(degrees));
    estimate.half_width = quantile(t, (1 + kConfidence) / 2) * estimate.standard_error;
    estimate.p = 2 * cdf(complement(t, std::abs(estimate.mean) / estimate.standard_error));
  } else {
    estimate.p = estimate.mean == 0 ? 1 : 0;
  }
  return estimate;
}

}  // namespace

MeanEstimate estimate_mean(std::span<const double> values) {
  MeanEstimate estimate{.n = static_cast<int64_t>(values.size())};
  if (values.empty()) return estimate;
  const auto n = static_cast<double>(values.size());
  estimate.mean = std::accumulate(values.begin(), values.end(), 0.0) / n;
  double squares = 0;
  for (const double value : values) squares += (value - estimate.mean) * (value - estimate.mean);
  if (values.size() > 1) estimate.standard_error = std::sqrt(squares / (n - 1) / n);
  return with_interval(estimate, estimate.n - 1);
}

MeanEstimate operator-(const MeanEstimate& a, const MeanEstimate& b) {
  const double va = a.standard_error * a.standard_error, vb = b.standard_error * b.standard_error;
  const double degrees =
      (va + vb) * (va + vb) / (va * va / static_cast<double>(a.n - 1) + vb * vb / static_cast<double>(b.n - 1));
  return with_interval({.n = std::min(a.n, b.n), .mean = a.mean - b.mean, .standard_error = std::sqrt(va + vb)},
                       va + vb > 0 ? std::max<int64_t>(1, static_cast<int64_t>(degrees)) : 1);
}

}  // namespace trivet
