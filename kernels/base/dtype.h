// Element types of tensors, and the dispatch from a run-time DType to a compile-time C++ type.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "base/check.h"

#if defined(__CUDACC__)
#define TRIVET_HOST_DEVICE __host__ __device__
#else
#define TRIVET_HOST_DEVICE
#endif

namespace trivet {

enum class DType : uint8_t { f32, bf16, i32, i64, u8, e4m3, e5m2 };  // in the order of kDTypes

// bfloat16: the upper half of a float; conversion rounds to nearest even, NaN stays NaN.
struct bf16 {
  uint16_t bits = 0;
  bf16() = default;
  explicit bf16(float value) {
    // A single shift after the select, so that a loop of conversions takes few vector instructions.
    const uint32_t u = std::bit_cast<uint32_t>(value);
    const uint32_t rounded = u + 0x7fffu + ((u >> 16) & 1u), quiet = u | 0x400000u;
    bits = static_cast<uint16_t>((value == value ? rounded : quiet) >> 16);
  }
  explicit operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
};

struct DTypeInfo {
  const char* name;
  int64_t bytes;
};
constexpr std::array<DTypeInfo, 7> kDTypes = {
    {{"fp32", 4}, {"bf16", 2}, {"int32", 4}, {"int64", 8}, {"uint8", 1}, {"e4m3", 1}, {"e5m2", 1}}};
constexpr const char* name_of(DType dtype) { return kDTypes[static_cast<size_t>(dtype)].name; }
constexpr int64_t size_of(DType dtype) { return kDTypes[static_cast<size_t>(dtype)].bytes; }
constexpr bool is_fp8(DType dtype) { return dtype == DType::e4m3 || dtype == DType::e5m2; }  // kernels/base/fp8.h

template <class T>
constexpr DType dtype_of() {
  if constexpr (std::is_same_v<T, float>) return DType::f32;
  else if constexpr (std::is_same_v<T, bf16>) return DType::bf16;
  else if constexpr (std::is_same_v<T, int32_t>) return DType::i32;
  else if constexpr (std::is_same_v<T, int64_t>) return DType::i64;
  else {
    static_assert(std::is_same_v<T, uint8_t>, "not an element type");
    return DType::u8;
  }
}

// Calls f.template operator()<float>() or <bf16>(): the two types in which activations and weights are stored.
//     dispatch_float(x.dtype, [&]<class T>() { gelu<T>(x.as<T>(), …); });
template <class F>
decltype(auto) dispatch_float(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f32: return f.template operator()<float>();
    case DType::bf16: return f.template operator()<bf16>();
    default: fail(std::string("expected fp32 or bf16, found ") + name_of(dtype));
  }
}

}  // namespace trivet
