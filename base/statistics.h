// Statistics of a few repeats: middle and range rather than mean and deviation, for three noisy numbers.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace trivet {

// Of an even number, the mean of the middle two; NaN of none.
double median(std::vector<double> values);

struct Sample {
  int64_t n = 0;
  double median = 0, min = 0, max = 0;
  // The range over the median, 0 for one value.
  double spread() const { return n < 2 || median == 0 ? 0 : (max - min) / median; }
};
Sample sample_of(std::span<const double> values);

// exp of the mean of logarithms. REQUIRES: values above 0; 1 of none.
double geometric_mean(std::span<const double> values);

}  // namespace trivet
