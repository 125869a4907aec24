// Packs: eight adjacent elements that a thread loads, holds and stores together. bf16 takes one 16-byte access, fp32
// two. If rows are not aligned, or end inside a pack, elements are accessed one by one: the same result, but slower.
//
// `whole`: true if packs are read and written as vectors, because they are 16-byte aligned and complete. A kernel with
// several loads tests it once, through with_flag, and is compiled twice: with a branch at each load, the compiler would
// make each load wait for the previous one, so a thread would have one load in flight instead of all of them.
#pragma once

#include <cstdint>
#include <cuda_bf16.h>
#include <type_traits>

namespace trivet {

inline constexpr int kPack = 8;

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
template <class T>
__device__ inline T from_float(float x) {
  if constexpr (sizeof(T) == 2) return __float2bfloat16_rn(x);
  else return x;
}

// A pack as stored in memory.
template <class T>
struct alignas(16) RawPack {
  T v[kPack];
};

struct Pack {
  float v[kPack];
};

template <class T>
__device__ inline Pack unpack(const RawPack<T>& raw) {
  Pack pack;
#pragma unroll
  for (int k = 0; k < kPack; ++k) pack.v[k] = to_float(raw.v[k]);
  return pack;
}

// Calls body(std::true_type()) or body(std::false_type()).
template <class Body>
__device__ inline void with_flag(bool flag, const Body& body) {
  if (flag) body(std::true_type());
  else body(std::false_type());
}

// A `whole` of type bool means only that x is 16-byte aligned and i is a multiple of 8.
template <class Whole>
__device__ inline bool is_whole(int64_t i, int64_t n, Whole whole) {
  if constexpr (std::is_same_v<Whole, bool>) return whole && i + kPack <= n;
  else return whole;
}

// Elements [i, i + 8) of x[0, n); zeros from n on.
template <class T, class Whole>
__device__ inline RawPack<T> load_raw(const T* x, int64_t i, int64_t n, Whole whole) {
  RawPack<T> raw;
  if (is_whole(i, n, whole)) {
    constexpr int kVectors = sizeof(RawPack<T>) / 16;
#pragma unroll
    for (int k = 0; k < kVectors; ++k) reinterpret_cast<uint4*>(&raw)[k] = reinterpret_cast<const uint4*>(x + i)[k];
  } else {
#pragma unroll
    for (int k = 0; k < kPack; ++k) raw.v[k] = i + k < n ? x[i + k] : from_float<T>(0.0f);
  }
  return raw;
}
template <class T, class Whole>
__device__ inline Pack load_pack(const T* x, int64_t i, int64_t n, Whole whole) {
  return unpack(load_raw(x, i, n, whole));
}

// Elements from n on are not written.
template <class T, class Whole>
__device__ inline void store_pack(T* x, int64_t i, int64_t n, Whole whole, const Pack& pack) {
  RawPack<T> raw;
#pragma unroll
  for (int k = 0; k < kPack; ++k) raw.v[k] = from_float<T>(pack.v[k]);
  if (is_whole(i, n, whole)) {
    constexpr int kVectors = sizeof(RawPack<T>) / 16;
#pragma unroll
    for (int k = 0; k < kVectors; ++k) reinterpret_cast<uint4*>(x + i)[k] = reinterpret_cast<const uint4*>(&raw)[k];
  } else {
#pragma unroll
    for (int k = 0; k < kPack; ++k)
      if (i + k < n) x[i + k] = raw.v[k];
  }
}

}  // namespace trivet
