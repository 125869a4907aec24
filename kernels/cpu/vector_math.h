// Functions of one float, without branches, that loops under `#pragma omp simd` turn into vector code.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include "kernels/base/dtype.h"

namespace trivet {

// to = value. A loop that assigns a whole bf16 does not vectorise: GCC keeps the temporary in memory.
inline void store(float& to, float value) { to = value; }
inline void store(bf16& to, float value) { to.bits = bf16(value).bits; }

// e^x to 1.5 ulp. 0 below ln of the smallest normal number, infinity above that of the largest; NaN stays NaN.
// x = n ln 2 + r with |r| <= ln 2 / 2 (Cody and Waite's split of ln 2), and e^r by its minimax polynomial.
inline float simd_exp(float x) {
  constexpr float kLowest = -87.3365f, kHighest = 88.7228f;
  const float clamped = x < kLowest ? kLowest : (x > kHighest ? kHighest : x);
  // Adding 1.5 * 2^23 rounds to an integer, which then is the low bits of the sum.
  constexpr float kRound = 12582912.0f;
  const float shifted = clamped * 1.44269504f + kRound;
  const float n = shifted - kRound;
  const float r = (clamped - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const float scaled = std::bit_cast<float>(std::bit_cast<uint32_t>(p) + (std::bit_cast<uint32_t>(shifted) << 23));
  const float above = x <= kHighest ? scaled : x + std::numeric_limits<float>::infinity();
  return x < kLowest ? 0.0f : above;
}

}  // namespace trivet
