// Packs: eight neighbouring elements as a thread loads, holds and stores them. bf16 comes in one access of 16 bytes,
// fp32 in two. Where rows are not aligned, or end inside a pack, elements come one by one: the same arithmetic, slower.
#pragma once

#include <cstdint>
#include <cuda_bf16.h>

namespace trivet {

inline constexpr int kPack = 8;

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
template <class T>
__device__ inline T from_float(float x) {
  if constexpr (sizeof(T) == 2) return __float2bfloat16_rn(x);
  else return x;
}

// As it lies in memory.
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

// Elements [i, i + 8) of x[0, n); zeros from n on. `vectors`: x is aligned to 16 bytes, and i a multiple of 8.
template <class T>
__device__ inline RawPack<T> load_raw(const T* x, int64_t i, int64_t n, bool vectors) {
  RawPack<T> raw;
  if (vectors && i + kPack <= n) {
    constexpr int kVectors = sizeof(RawPack<T>) / 16;
#pragma unroll
    for (int k = 0; k < kVectors; ++k) reinterpret_cast<uint4*>(&raw)[k] = reinterpret_cast<const uint4*>(x + i)[k];
  } else {
#pragma unroll
    for (int k = 0; k < kPack; ++k) raw.v[k] = i + k < n ? x[i + k] : from_float<T>(0.0f);
  }
  return raw;
}
template <class T>
__device__ inline Pack load_pack(const T* x, int64_t i, int64_t n, bool vectors) {
  return unpack(load_raw(x, i, n, vectors));
}

// Elements from n on are not written.
template <class T>
__device__ inline void store_pack(T* x, int64_t i, int64_t n, bool vectors, const Pack& pack) {
  RawPack<T> raw;
#pragma unroll
  for (int k = 0; k < kPack; ++k) raw.v[k] = from_float<T>(pack.v[k]);
  if (vectors && i + kPack <= n) {
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
