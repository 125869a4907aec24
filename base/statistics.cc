#include "base/statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>

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

}  // namespace trivet
