// Functions of one float, without branches, that loops under `#pragma omp simd` turn into vector code; and sums whose
// order depends neither on alignment nor on the instruction set.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <limits>

namespace trivet {

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

// The K sums over i in [0, n) of f(i), an array of K floats: 32 running sums each, added up as a tree.
template <size_t K, class F>
inline std::array<float, K> lane_sums(int64_t n, const F& f) {
  constexpr int kLanes = 32;
  float lanes[K][kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
#pragma omp simd
    for (int lane = 0; lane < kLanes; ++lane) {
      const std::array<float, K> terms = f(i + lane);
      for (size_t k = 0; k < K; ++k) lanes[k][lane] += terms[k];
    }
  }
  for (int lane = 0; i < n; ++i, ++lane) {
    const std::array<float, K> terms = f(i);
    for (size_t k = 0; k < K; ++k) lanes[k][lane] += terms[k];
  }
  std::array<float, K> sums;
  for (size_t k = 0; k < K; ++k) {
    for (int half = kLanes / 2; half > 0; half /= 2)
      for (int lane = 0; lane < half; ++lane) lanes[k][lane] += lanes[k][lane + half];
    sums[k] = lanes[k][0];
  }
  return sums;
}

template <class F>
inline float lane_sum(int64_t n, const F& f) {
  return lane_sums<1>(n, [&](int64_t i) { return std::array<float, 1>{f(i)}; })[0];
}

}  // namespace trivet
