// Sums in fp32 whose order depends neither on alignment nor on the instruction set, and that vectorise.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace trivet {

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
