// The exact sum of squares for the gradient norm: a fixed-point number so wide that no square of an fp32 number, nor
// any sum of them, is rounded. Integer addition is associative, so the sum's bits do not depend on how its terms are
// split over calls, threads and ranks. The idea is Demmel and Nguyen's, "Parallel Reproducible Summation" (IEEE
// Transactions on Computers, 2015), taken to the point where nothing is rounded off.
//
// The state is kExactSumBins int64: bin i < 23 counts units of 2^(28 i - 308), and the last counts non-finite elements.
// A square is a multiple of 2^-298 and less than 2^256, so bins 0 to 20 can represent any square; bins 21 and 22 take
// the carries. Each value has many representations, one of which is canonical: bins 0 to 21 in [0, 2^28).
//
// Range. Adding one number changes a bin by at most 2^28, so 2^34 numbers may be added to canonical bins before the
// bins must be made canonical again. The canonical bins of 2^34 ranks may be added up. 23 bins of 28 bits each
// represent values up to 2^336, so a sum may include 2^80 elements of the largest magnitude.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include "kernels/step_ops.h"

namespace trivet {

inline constexpr int kExactSumBinBits = 28;
inline constexpr int kExactSumLowestExponent = -308;
inline constexpr int kExactSumDigits = static_cast<int>(kExactSumBins) - 1;

// bins += value * 2^exponent. REQUIRES: |value| < 2^56, exponent in [-308, 208].
TRIVET_HOST_DEVICE inline void exact_add(int64_t* bins, int64_t value, int exponent) {
  constexpr int64_t kMask = (int64_t{1} << kExactSumBinBits) - 1;
  const int shift = exponent - kExactSumLowestExponent;
  const int bin = shift / kExactSumBinBits, low_bits = shift % kExactSumBinBits;
  // value * 2^low_bits, up to 84 bits, as two digits and a signed remainder.
  const int64_t low = (value & (kMask >> low_bits)) << low_bits;
  const int64_t high = value >> (kExactSumBinBits - low_bits);
  bins[bin] += low;
  bins[bin + 1] += high & kMask;
  bins[bin + 2] += high >> kExactSumBinBits;
}

// bins += x^2, or counts one more non-finite element. This is the definition; back ends add many squares at a time.
TRIVET_HOST_DEVICE inline void exact_add_square(int64_t* bins, float x) {
#if defined(__CUDA_ARCH__)
  const uint32_t bits = __float_as_uint(x) & 0x7fffffffu;
#else
  const uint32_t bits = std::bit_cast<uint32_t>(x) & 0x7fffffffu;
#endif
  if (bits >= 0x7f800000u) {
    ++bins[kExactSumDigits];
    return;
  }
  const int field = static_cast<int>(bits >> 23);
  const int64_t mantissa = static_cast<int64_t>(bits & 0x7fffffu) | (field ? 0x800000 : 0);
  exact_add(bins, mantissa * mantissa, 2 * ((field ? field : 1) - 150));
}

// The canonical representation of the same value.
TRIVET_HOST_DEVICE inline void exact_canonicalize(int64_t* bins) {
  constexpr int64_t kMask = (int64_t{1} << kExactSumBinBits) - 1;
  for (int i = 0; i + 1 < kExactSumDigits; ++i) {
    bins[i + 1] += bins[i] >> kExactSumBinBits;
    bins[i] &= kMask;
  }
}

// The sum as a double, in a fixed order of operations and within one unit in the last place; NaN if an element was
// not finite. The bins need not be canonical.
TRIVET_HOST_DEVICE inline double exact_total(const int64_t* bins) {
  if (bins[kExactSumDigits] != 0) return std::numeric_limits<double>::quiet_NaN();
  int64_t digits[kExactSumBins];
  for (int i = 0; i <= kExactSumDigits; ++i) digits[i] = bins[i];
  exact_canonicalize(digits);
  double total = 0, unit = 0x1p-308;
  for (int i = 0; i < kExactSumDigits; ++i, unit *= 0x1p28) total += static_cast<double>(digits[i]) * unit;
  return total;
}

// One step of a split: moves the part of r above the sum's last bit to the sum, and returns the rest. V: double, or a
// vector of doubles.
template <class V>
TRIVET_HOST_DEVICE inline V cut_at_anchor(V& sum, V r) {
  const V next = sum + r;
  const V rest = r - (next - sum);
  sum = next;
  return rest;
}

// The scale that clips this norm. NaN stays NaN: gradients that are not finite must not pass as valid.
TRIVET_HOST_DEVICE inline float clipped(double multiplier, double max_norm, double norm) {
  const double coefficient = max_norm > 0 ? max_norm / (norm + 1e-6) : 1;
  return static_cast<float>(multiplier * (coefficient >= 1 ? 1 : coefficient));
}

}  // namespace trivet
