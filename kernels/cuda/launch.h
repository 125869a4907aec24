// Shared by all launchers: grid checks, the mapping from trivet::bf16 to the compiler's type, and the launch.
#pragma once

#include <algorithm>
#include <cuda_bf16.h>
#include <utility>

#include "base/piece.h"
#include "kernels/base/cuda_device.h"
#include "kernels/base/tensor.h"
#include "kernels/heads_view.h"

namespace trivet {

// The type that kernels use for a tensor's element type: __nv_bfloat16 for bf16.
template <class T>
using DeviceType = std::conditional_t<std::is_same_v<T, bf16>, __nv_bfloat16, T>;

// A tensor's elements in the type that kernels use; null for a null tensor.
template <class T>
DeviceType<T>* elements(const Tensor& t) {
  return reinterpret_cast<DeviceType<T>*>(t.data);
}

// Calls f.template operator()<float>() or <bf16>(), like dispatch_float, but with the compiler's type.
template <class F>
void dispatch_device(DType dtype, F&& f) {
  dispatch_float(dtype, [&]<class T>() { f.template operator()<DeviceType<T>>(); });
}

inline constexpr int kBlockThreads = piece(256, 128);  // per block, in memory-bound kernels

inline constexpr int kRowThreads = piece(256, 32);  // at most, per block of a RowGrid

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// A one-dimensional grid holds up to 2^31 - 1 blocks; no op whose tensors fit in a GPU's memory needs more.
inline unsigned int blocks(int64_t count, const char* op) {
  if (count > 0x7fffffff) fail(std::string(op) + ": " + std::to_string(count) + " blocks are more than a grid holds");
  return static_cast<unsigned int>(count);
}

// True if 16-byte vectors can be read at the start of each of these tensors (a null tensor is fine).
template <class... Tensors>
bool aligned(const Tensors&... tensors) {
  return ((reinterpret_cast<uintptr_t>(tensors.data) % 16 == 0) && ...);
}

// True if 16-byte vectors of eight elements can be read at the start of each row of each head of these views.
template <class... Memory>
bool heads_are_aligned(const HeadsOf<Memory>&... views) {
  const auto is_aligned = [](const HeadsLayout& z, const void* data) {
    return (z.position | z.entry | z.group | z.member) % 8 == 0 && reinterpret_cast<uintptr_t>(data) % 16 == 0;
  };
  return (is_aligned(views.layout, views.data()) && ...);
}

// The grid of a kernel over the rows of a matrix [n, c] in packs of 8 columns: one chunk of one row per block.
struct RowGrid {
  unsigned int grid = 0, block = 0;
  int chunks = 0;  // per row: block i handles row i / chunks, from pack (i % chunks) * blockDim.x on

  RowGrid(int64_t rows, int64_t columns, const char* op) {
    const int64_t packs = ceil_div(columns, 8);
    const int64_t threads = std::min<int64_t>(kRowThreads, ceil_div(packs, 32) * 32);
    block = static_cast<unsigned int>(std::max<int64_t>(threads, 32));
    chunks = static_cast<int>(std::max<int64_t>(ceil_div(packs, block), 1));
    grid = blocks(rows * chunks, op);
  }
};

// A launch configuration: threads, stream, and bytes of dynamic shared memory per block.
struct Launch {
  dim3 grid, block;
  cudaStream_t stream;
  size_t shared = 0;
};

template <class... Parameters, class... Arguments>
void launch_kernel(void (*kernel)(Parameters...), const Launch& how, Arguments&&... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = how.grid;
  config.blockDim = how.block;
  config.stream = how.stream;
  config.dynamicSmemBytes = how.shared;
  check_cuda(cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...), "cudaLaunchKernelEx");
}

// For kernels that need a lot of dynamic shared memory. By default, dynamic and static shared memory together are
// limited to 48 KiB per block; in this folder, static shared memory takes at most 16 KiB.
template <class Kernel>
void allow_shared(Kernel* kernel, size_t bytes) {
  if (bytes > 32 * 1024)
    check_cuda(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(bytes)),
               "cudaFuncSetAttribute");
}

}  // namespace trivet
