#include "base/statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
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

double geometric_mean(std::span<const double> values) {
  double sum = 0;
  for (const double value : values) sum += std::log(value);
  return values.empty() ? 1 : std::exp(sum / static_cast<double>(values.size()));
}

namespace {

// P(|T| <= t), t >= 0: the angle of 26.7.3 (odd degrees) or the sine of 26.7.4 (even), with a sum of powers of cosine.
double student_t_within(double t, int64_t degrees) {
  const double angle = std::atan(t / std::sqrt(static_cast<double>(degrees)));
  const double sine = std::sin(angle), cosine = std::cos(angle);
  const bool odd = degrees % 2 == 1;
  double term = odd ? cosine : 1, sum = degrees == 1 ? 0 : term;
  for (int64_t k = odd ? 3 : 2; k < degrees; k += 2) {
    term *= cosine * cosine * static_cast<double>(k - 1) / static_cast<double>(k);
    sum += term;
  }
  return odd ? 2 / std::numbers::pi * (angle + sine * sum) : sine * sum;
}

}  // namespace

double student_t_cdf(double t, int64_t degrees) {
  return 0.5 + std::copysign(student_t_within(std::abs(t), degrees) / 2, t);
}

double student_t_quantile(double p, int64_t degrees) {
  if (p < 0.5) return -student_t_quantile(1 - p, degrees);
  double low = 0, high = 1;
  while (student_t_cdf(high, degrees) < p && high < 1e30) high *= 2;
  for (int i = 0; i < 200 && low < high; ++i) {
    const double middle = low + (high - low) / 2;
    if (middle == low || middle == high) break;
    (student_t_cdf(middle, degrees) < p ? low : high) = middle;
  }
  return high;
}

double MeanEstimate::half_width(double confidence) const {
  return n < 2 || standard_error == 0 ? 0 : standard_error * student_t_quantile((1 + confidence) / 2, n - 1);
}

MeanEstimate estimate_mean(std::span<const double> values) {
  MeanEstimate estimate{.n = static_cast<int64_t>(values.size())};
  if (values.empty()) return estimate;
  const auto n = static_cast<double>(values.size());
  estimate.mean = std::accumulate(values.begin(), values.end(), 0.0) / n;
  if (values.size() < 2) return estimate;
  double squares = 0;
  for (const double value : values) squares += (value - estimate.mean) * (value - estimate.mean);
  estimate.standard_error = std::sqrt(squares / (n - 1) / n);
  if (estimate.standard_error > 0)
    estimate.p = 1 - student_t_within(std::abs(estimate.mean) / estimate.standard_error, estimate.n - 1);
  else estimate.p = estimate.mean == 0 ? 1 : 0;
  return estimate;
}

std::vector<double> holm(std::span<const double> p_values) {
  std::vector<size_t> order(p_values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, {}, [&](size_t i) { return p_values[i]; });
  std::vector<double> corrected(p_values.size());
  double largest = 0;
  for (size_t rank = 0; rank < order.size(); ++rank) {
    largest = std::max(largest, std::min(1.0, p_values[order[rank]] * static_cast<double>(order.size() - rank)));
    corrected[order[rank]] = largest;
  }
  return corrected;
}

}  // namespace trivet
