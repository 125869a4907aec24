// nvcc's language extensions, for other compilers: included before each .cu file of an emulated build
// (TRIVET_CUDA=EMULATED). Kernels become functions that one emulated thread runs; a launch queues them on a stream of
// the emulated runtime (runtime.h), which runs them through run_grid (grid.h).
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>
#include <functional>
#include <tuple>
#include <utility>

#include "tests/emulation/block_writes.h"
#include "tests/emulation/grid.h"
#include "tests/emulation/runtime.h"
#include "tests/emulation/sites.h"

// ---- memory and execution spaces

#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#undef __launch_bounds__
#undef __noinline__
#undef __grid_constant__
#define __global__
#define __device__
#define __host__
#define __launch_bounds__(...)
#define __noinline__
#define __grid_constant__
// A block's threads run on one host thread, one block at a time.
#define __shared__ static thread_local

// ---- launches

namespace trivet::emulation {

template <class... Parameters, class... Arguments>
cudaError_t launch(const cudaLaunchConfig_t* how, void (*kernel)(Parameters...), Arguments&&... arguments) {
  // Arguments are copied when the kernel is launched.
  return launch_kernel(*how, reinterpret_cast<const void*>(kernel),
                       [kernel, copies = std::tuple<Parameters...>(std::forward<Arguments>(arguments)...)] {
                         std::apply(kernel, copies);
                       });
}

template <class T>
struct Shuffle {
  T value;
  int from;
  T result;
};

template <class T>
T shuffle(uint32_t mask, const char* what, T value, int from) {
  Shuffle<T> mine{value, from, value};
  meet_warp(mask, what, &mine, [](void* const(&lanes)[32]) {
    for (void* lane : lanes)
      if (lane) {
        auto& asks = *static_cast<Shuffle<T>*>(lane);
        const void* const asked = lanes[asks.from % 32];
        if (!asked) broken("a shuffle from a lane that is not in the mask");
        asks.result = static_cast<const Shuffle<T>*>(asked)->value;
      }
  });
  return mine.result;
}

inline int lane_id() {
  return static_cast<int>((threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % 32);
}

}  // namespace trivet::emulation

#define cudaLaunchKernelEx ::trivet::emulation::launch

// ---- communication between threads

inline void __syncthreads() { trivet::emulation::synchronize_block(); }
inline void __syncwarp(unsigned int mask = 0xffffffffu) {
  if (trivet::emulation::skipped("__syncwarp")) return;
  int nothing = 0;
  trivet::emulation::meet_warp(mask, "__syncwarp", &nothing, nullptr);
}
template <class T>
T __shfl_sync(unsigned int mask, T value, int lane) {
  return trivet::emulation::shuffle(mask, "__shfl_sync", value, lane);
}
template <class T>
T __shfl_xor_sync(unsigned int mask, T value, int flip) {
  return trivet::emulation::shuffle(mask, "__shfl_xor_sync", value, trivet::emulation::lane_id() ^ flip);
}
template <class T, class Better>
T trivet_reduce(unsigned int mask, const char* what, T value, Better) {
  trivet::emulation::Shuffle<T> mine{value, 0, value};
  trivet::emulation::meet_warp(mask, what, &mine, [](void* const(&lanes)[32]) {
    using Lane = trivet::emulation::Shuffle<T>;
    const T* best = nullptr;
    for (void* lane : lanes)
      if (lane && (!best || Better()(static_cast<Lane*>(lane)->value, *best))) best = &static_cast<Lane*>(lane)->value;
    for (void* lane : lanes)
      if (lane) static_cast<Lane*>(lane)->result = *best;
  });
  return mine.result;
}
template <class T>
T __reduce_max_sync(unsigned int mask, T value) {
  return trivet_reduce(mask, "__reduce_max_sync", value, std::greater<>());
}
template <class T>
T __reduce_min_sync(unsigned int mask, T value) {
  return trivet_reduce(mask, "__reduce_min_sync", value, std::less<>());
}
// Blocks of different streams run concurrently.
template <class T, class U>
T atomicAdd(T* to, U value) {
  if constexpr (std::is_same_v<T, int> || std::is_same_v<T, unsigned int>) trivet::emulation::take_tile();
  trivet::emulation::writes_atomically(to, sizeof(T));
  return __atomic_fetch_add(to, static_cast<T>(value), __ATOMIC_RELAXED);
}
template <class T>
T atomicMax(T* to, T value) {
  trivet::emulation::writes_atomically(to, sizeof(T));
  T seen = __atomic_load_n(to, __ATOMIC_RELAXED);
  while (seen < value && !__atomic_compare_exchange_n(to, &seen, value, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  return seen;
}

// ---- arithmetic

using std::isfinite;
using std::isnan;

inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline unsigned int __float_as_uint(float x) { return std::bit_cast<unsigned int>(x); }
inline float __uint_as_float(unsigned int x) { return std::bit_cast<float>(x); }
inline double __longlong_as_double(long long x) { return std::bit_cast<double>(x); }
inline long long __double_as_longlong(double x) { return std::bit_cast<long long>(x); }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __dadd_rn(double a, double b) { return a + b; }
inline unsigned int __umulhi(unsigned int a, unsigned int b) {
  return static_cast<unsigned int>(static_cast<unsigned long long>(a) * b >> 32);
}
template <class A, class B>
constexpr std::common_type_t<A, B> min(A a, B b) {
  return b < a ? b : a;
}
template <class A, class B>
constexpr std::common_type_t<A, B> max(A a, B b) {
  return a < b ? b : a;
}
