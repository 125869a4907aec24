// Rotary position embedding (Su et al. 2021): the angles by which pairs of a head's columns are rotated.
#pragma once

#include <cmath>
#include <numbers>

#include "kernels/base/dtype.h"

namespace trivet {

struct Rotary {
  int64_t width = 0;  // the number of leading columns rotated in each head: column i with column i + width / 2
  double base = 10'000;
  // Llama 3.1's context extension: wavelengths above original_length / low are multiplied by `factor`, those
  // below original_length / high are unchanged, and frequencies in between are interpolated. factor 1: none.
  double factor = 1, low = 1, high = 4, original_length = 8192;
  bool operator==(const Rotary&) const = default;
};

// A pair's angle at position 1, in radians; at position p, the angle is p times as large.
TRIVET_HOST_DEVICE inline double rotary_frequency(const Rotary& rotary, int64_t pair) {
  const double f = pow(rotary.base, -2.0 * static_cast<double>(pair) / static_cast<double>(rotary.width));
  if (rotary.factor == 1) return f;
  const double waves = rotary.original_length * f / (2 * std::numbers::pi);
  const double share = (waves - rotary.low) / (rotary.high - rotary.low);
  const double kept = share < 0 ? 0 : share > 1 ? 1 : share;
  return (1 - kept) * f / rotary.factor + kept * f;
}

}  // namespace trivet
