// FP8: the two formats of Micikevicius et al. 2022, "FP8 Formats for Deep Learning", and the scale of a tensor.
//
//            sign, exponent, mantissa   largest finite      smallest        not finite
//     E4M3   1, 4, 3                    448                 2^-9            NaN (0x7f)
//     E5M2   1, 5, 2                    57344               2^-16           infinity (0x7c), NaN
//
// Conversion from fp32 rounds to nearest even and saturates large values. NaN and Inf are preserved: saturation must
// not make a broken run look healthy.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "kernels/base/dtype.h"

namespace trivet {

template <int kMantissa, int kBias, int kLargest, bool kInfinity>
struct Fp8Format {
  static constexpr int kDropped = 23 - kMantissa;  // bits dropped from an fp32 mantissa
  static constexpr uint32_t kRebias = static_cast<uint32_t>(127 - kBias) << 23;
  static constexpr float kMax = kLargest;
  static constexpr float kSmallest = std::bit_cast<float>(static_cast<uint32_t>(128 - kBias - kMantissa) << 23);

  // Branch-free, so that loops vectorise.
  TRIVET_HOST_DEVICE static uint8_t encode(float x) {
    const uint32_t u = std::bit_cast<uint32_t>(x), magnitude = u & 0x7fffffffu;
    const uint32_t finite = std::min(magnitude, std::bit_cast<uint32_t>(kMax));
    const uint32_t rounded = finite + ((1u << (kDropped - 1)) - 1) + ((finite >> kDropped) & 1u);
    const uint32_t normal = (rounded - kRebias) >> kDropped;
    // The last bit of a sum with kShift is worth kSmallest, so the addition rounds.
    constexpr float kShift = kSmallest * (1 << 23);
    const uint32_t subnormal =
        std::bit_cast<uint32_t>(std::bit_cast<float>(finite) + kShift) - std::bit_cast<uint32_t>(kShift);
    const uint32_t code = finite < kRebias + (1u << 23) ? subnormal : normal;
    const uint32_t special = kInfinity && magnitude == 0x7f800000u ? 0x7cu : 0x7fu;
    return static_cast<uint8_t>((magnitude < 0x7f800000u ? code : special) | (u >> 24 & 0x80u));
  }
  TRIVET_HOST_DEVICE static float decode(uint8_t code) {
    const uint32_t magnitude = code & 0x7fu, sign = static_cast<uint32_t>(code & 0x80u) << 24;
    const uint32_t normal = (magnitude << kDropped) + kRebias;
    const uint32_t subnormal = std::bit_cast<uint32_t>(static_cast<float>(static_cast<int>(magnitude)) * kSmallest);
    const uint32_t finite = magnitude >> kMantissa == 0 ? subnormal : normal;
    const bool special = kInfinity ? magnitude >= 0x7cu : magnitude == 0x7fu;
    return std::bit_cast<float>((special ? normal | 0x7f800000u : finite) | sign);
  }
  // The power of two by which a tensor is multiplied before encoding: the largest that keeps its largest magnitude
  // finite, at most 2^126, whose reciprocal is a normal number too. 1 if amax is 0 or not finite.
  TRIVET_HOST_DEVICE static float scale_for(float amax) {
    const uint32_t u = std::bit_cast<uint32_t>(amax), largest = std::bit_cast<uint32_t>(kMax);
    if (u == 0 || u >= 0x7f800000u) return 1;
    const bool over = (u & 0x7fffffu) > (largest & 0x7fffffu);
    const int exponent = static_cast<int>(largest >> 23) - static_cast<int>(u >> 23) - (over ? 1 : 0);
    return std::bit_cast<float>(static_cast<uint32_t>(127 + std::min(exponent, 126)) << 23);
  }
};

using E4m3 = Fp8Format<3, 7, 448, false>;
using E5m2 = Fp8Format<2, 15, 57344, true>;

// Calls f.template operator()<E4m3>() or <E5m2>().
template <class F>
decltype(auto) dispatch_fp8(DType dtype, F&& f) {
  switch (dtype) {
    case DType::e4m3: return f.template operator()<E4m3>();
    case DType::e5m2: return f.template operator()<E5m2>();
    default: fail(std::string("expected e4m3 or e5m2, found ") + name_of(dtype));
  }
}

}  // namespace trivet
