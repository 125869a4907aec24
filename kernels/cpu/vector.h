// Float vectors as values (GCC's vector extension), loops that process fp32 or bf16 arrays vector by vector, and sums.
//
//     for_vectors(n, [=](auto at) { at.store(y, exp(at.load(x))); });      // y[i] = e^x[i] for i in [0, n)
//
// All arithmetic is fp32. `at` is a position in the arrays: that of a whole vector, or of the last few elements, which
// are loaded into a vector padded with 0. An element's result does not depend on its lane.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "kernels/base/dtype.h"

namespace trivet::TRIVET_CPU {

// The widest vectors of the instruction set.
#if defined(__AVX512F__)
inline constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
inline constexpr int kVectorBytes = 32;
#else
inline constexpr int kVectorBytes = 16;
#endif
inline constexpr int kLanes = kVectorBytes / 4;

using Floats = float __attribute__((vector_size(kVectorBytes)));
using Bits = uint32_t __attribute__((vector_size(kVectorBytes)));
using HalfBits = uint16_t __attribute__((vector_size(kVectorBytes / 2)));

// ---- instructions that the compiler does not generate on its own. larger(): a > b ? a : b, so b if either is NaN.

#if defined(__AVX512F__)
// GCC 12 warns about uninitialized variables in the plain intrinsics, so we use masked ones with all lanes set.
inline constexpr __mmask16 kAllLanes = 0xffff;
inline Floats larger(Floats a, Floats b) { return _mm512_maskz_max_ps(kAllLanes, a, b); }
inline Floats smaller(Floats a, Floats b) { return _mm512_maskz_min_ps(kAllLanes, a, b); }
inline Floats sqrt(Floats x) { return _mm512_maskz_sqrt_ps(kAllLanes, x); }
inline Bits widen(HalfBits x) {
  return std::bit_cast<Bits>(_mm512_maskz_cvtepu16_epi32(kAllLanes, std::bit_cast<__m256i>(x)));
}
#elif defined(__AVX2__)
inline Floats larger(Floats a, Floats b) { return _mm256_max_ps(a, b); }
inline Floats smaller(Floats a, Floats b) { return _mm256_min_ps(a, b); }
inline Floats sqrt(Floats x) { return _mm256_sqrt_ps(x); }
inline Bits widen(HalfBits x) { return std::bit_cast<Bits>(_mm256_cvtepu16_epi32(std::bit_cast<__m128i>(x))); }
#elif defined(__SSE2__)
inline Floats larger(Floats a, Floats b) { return _mm_max_ps(a, b); }
inline Floats smaller(Floats a, Floats b) { return _mm_min_ps(a, b); }
inline Floats sqrt(Floats x) { return _mm_sqrt_ps(x); }
inline Bits widen(HalfBits x) { return __builtin_convertvector(x, Bits); }
#else
inline Floats larger(Floats a, Floats b) { return a > b ? a : b; }
inline Floats smaller(Floats a, Floats b) { return a < b ? a : b; }
inline Floats sqrt(Floats x) {
  for (int lane = 0; lane < kLanes; ++lane) x[lane] = std::sqrt(x[lane]);
  return x;
}
inline Bits widen(HalfBits x) { return __builtin_convertvector(x, Bits); }
#endif

// ---- loads and stores

inline Floats load(const float* x) {
  Floats v;
  std::memcpy(&v, x, sizeof v);
  return v;
}
inline Floats load(const bf16* x) {
  HalfBits half;
  std::memcpy(&half, x, sizeof half);
  return std::bit_cast<Floats>(widen(half) << 16);
}
inline void store(float* x, Floats v) { std::memcpy(x, &v, sizeof v); }
// Rounds like bf16's constructor, except that the conversion instruction flushes subnormal numbers to 0.
inline void store(bf16* x, Floats v) {
#if defined(__AVX512BF16__)
  const __m256bh half = _mm512_cvtneps_pbh(v);
#else
  const Bits u = std::bit_cast<Bits>(v);
  const Bits rounded = u + 0x7fffu + ((u >> 16) & 1u), quiet = u | 0x400000u;
  const HalfBits half = __builtin_convertvector((v == v ? rounded : quiet) >> 16, HalfBits);
#endif
  std::memcpy(static_cast<void*>(x), &half, sizeof half);
}

// Clamps x from below, or from above; NaN stays NaN.
inline Floats at_least(Floats x, float bound) { return larger(Floats{} + bound, x); }
inline Floats at_most(Floats x, float bound) { return smaller(Floats{} + bound, x); }

// A whole vector of elements, starting at index i.
struct WholeVector {
  int64_t i;
  template <class T>
  Floats load(const T* x) const {
    return TRIVET_CPU::load(x + i);
  }
  template <class T>
  void store(T* x, Floats v) const {
    TRIVET_CPU::store(x + i, v);
  }
  Floats keep(Floats v) const { return v; }
  WholeVector moved_by(int64_t offset) const { return {i + offset}; }
};

// The `count` <= kLanes elements starting at index i.
struct PartOfVector {
  int64_t i, count;
  template <class T>
  Floats load(const T* x) const {
    T lanes[kLanes] = {};
    std::copy_n(x + i, count, lanes);
    return TRIVET_CPU::load(lanes);
  }
  template <class T>
  void store(T* x, Floats v) const {
    T lanes[kLanes];
    TRIVET_CPU::store(lanes, v);
    std::copy_n(lanes, count, x + i);
  }
  // v with zeros in the lanes past the last element, for sums.
  Floats keep(Floats v) const {
    float lanes[kLanes];
    TRIVET_CPU::store(lanes, v);
    std::fill(lanes + count, lanes + kLanes, 0.0f);
    return TRIVET_CPU::load(lanes);
  }
  PartOfVector moved_by(int64_t offset) const { return {i + offset, count}; }
};

// Calls f(at) for each vector of [0, n).
template <class F>
inline void for_vectors(int64_t n, const F& f) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) f(WholeVector{i});
  if (i < n) f(PartOfVector{i, n - i});
}

// fp32 sums in an order that depends on neither alignment nor the machine's vector width: terms are added round-robin
// to 64 running sums, which are then added up as a tree.
class LaneSum {
 public:
  static constexpr int kSumLanes = 64, kVectors = kSumLanes / kLanes;
  void add(int vector, Floats v) { sums_[vector] += v; }
  float total() const {
    float lanes[kSumLanes];
    for (int k = 0; k < kVectors; ++k) store(lanes + k * kLanes, sums_[k]);
    for (int half = kSumLanes / 2; half > 0; half /= 2)
      for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
    return lanes[0];
  }

 private:
  Floats sums_[kVectors] = {};
};

// Calls f(at, k) for each vector of [0, n); k is the index of the LaneSum vector that its terms are added to.
template <class F>
inline void for_sum_vectors(int64_t n, const F& f) {
  int64_t i = 0;
  // Unrolled by hand: with constant k the sums stay in registers.
  [&]<int... k>(std::integer_sequence<int, k...>) {
    for (; i + LaneSum::kSumLanes <= n; i += LaneSum::kSumLanes) (f(WholeVector{i + k * kLanes}, k), ...);
    const auto rest = [&](int64_t begin, int vector) {
      if (begin < n) f(PartOfVector{begin, std::min<int64_t>(kLanes, n - begin)}, vector);
    };
    (rest(i + k * kLanes, k), ...);
  }
  (std::make_integer_sequence<int, LaneSum::kVectors>());
}

// The sum over [0, n) of f(at), which returns the terms for one vector of elements.
template <class F>
inline float sum_over(int64_t n, const F& f) {
  LaneSum sum;
  for_sum_vectors(n, [&](auto at, int k) { sum.add(k, at.keep(f(at))); });
  return sum.total();
}

// e^x within 2 ulp for x in [-88, 89], or NaN.
// x = n ln 2 + r with |r| <= ln 2 / 2 and n an integer; e^r is a minimax polynomial, and 2^n is built from its bits. At
// the ends of the range, n is -127 and 128, which yield the bits of 0 and infinity.
inline Floats exp_in_range(Floats x) {
  // Adding 1.5 * 2^23 rounds to an integer, whose bits are then the low bits of the sum.
  constexpr float kRound = 12582912.0f;
  const Floats shifted = x * 1.44269504f + kRound;
  const Floats n = shifted - kRound;
  const Floats r = (x - n * 0.693359375f) + n * 2.12194440e-4f;  // ln 2 in two parts: the first product is exact
  Floats p = 1.3814581e-3f * r + 8.3687239e-3f;
  p = p * r + 4.1668389e-2f;
  p = p * r + 1.6666521e-1f;
  p = p * r + 4.9999993e-1f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  return p * std::bit_cast<Floats>((std::bit_cast<Bits>(shifted) << 23) + 0x3f800000u);
}

// e^x: 0 below -87.7, infinity above 88.4, and NaN stays NaN.
inline Floats exp(Floats x) { return exp_in_range(at_most(at_least(x, -88.0f), 89.0f)); }

// e^x for x <= 0, or NaN.
inline Floats exp_of_nonpositive(Floats x) { return exp_in_range(at_least(x, -88.0f)); }

}  // namespace trivet::TRIVET_CPU
