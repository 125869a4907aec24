// FP8: finds a tensor's largest magnitude, and converts its values to an FP8 format. Each element is read once, in
// 16-byte accesses, and its code is written once. Everything else that FP8 operands of GEMMs need is in matmul.cu.
#include <cuda_fp8.h>

#include "kernels/base/fp8.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/reduce.cuh"

namespace trivet {
namespace {

// ---- kernels

// amax = the maximum of itself and all |x|, compared by their bits: magnitudes sort like their bits, and NaN, which
// sorts above infinity, counts as infinity. An integer maximum does not depend on the order of the blocks. vectors:
// n is also a multiple of kPack.
template <class T>
__global__ void __launch_bounds__(kBlockThreads) amax_kernel(const T* x, int64_t n, bool vectors, unsigned int* amax) {
  __shared__ unsigned int shared[32];
  unsigned int largest = 0;
  with_flag(vectors, [&](auto whole) {
#pragma unroll 4
    for (int64_t i = (static_cast<int64_t>(blockIdx.x) * kBlockThreads + threadIdx.x) * kPack; i < n;
         i += static_cast<int64_t>(gridDim.x) * kBlockThreads * kPack) {
      const Pack pack = load_pack(x, i, n, whole);
#pragma unroll
      for (int k = 0; k < kPack; ++k) largest = max(largest, __float_as_uint(pack.v[k]) & 0x7fffffffu);
    }
  });
  largest = block_reduce(min(largest, 0x7f800000u), Max(), 0u, shared);
  if (threadIdx.x == 0) atomicMax(amax, largest);
}

// One pack per thread. The GPU's own conversion makes infinities finite, so it is used only for tensors without any.
// With the conversion in kernels/base/fp8.h (some 12 operations per element), the kernel would be compute-bound.
template <class Format, class T>
__global__ void __launch_bounds__(kBlockThreads)
    quantize_kernel(const T* x, const float* amax, uint8_t* values, float* inverse, int64_t n, bool vectors) {
  constexpr auto kKind = std::is_same_v<Format, E4m3> ? __NV_E4M3 : __NV_E5M2;
  const float scale = Format::scale_for(amax[0]);
  if (blockIdx.x == 0 && threadIdx.x == 0) inverse[0] = 1 / scale;
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kBlockThreads + threadIdx.x) * kPack;
  if (i >= n) return;
  with_flag(is_whole(i, n, vectors), [&](auto whole) {
    const Pack pack = load_pack(x, i, n, whole);
    union {
      uint8_t code[kPack];
      __nv_fp8x2_storage_t pair[kPack / 2];
      uint2 all;
    } to;
    if (isfinite(amax[0])) {
#pragma unroll
      for (int k = 0; k < kPack; k += 2)
        to.pair[k / 2] = __nv_cvt_float2_to_fp8x2({pack.v[k] * scale, pack.v[k + 1] * scale}, __NV_SATFINITE, kKind);
    } else {
#pragma unroll
      for (int k = 0; k < kPack; ++k) to.code[k] = Format::encode(pack.v[k] * scale);
    }
    if (whole) {
      *reinterpret_cast<uint2*>(values + i) = to.all;
    } else {
#pragma unroll
      for (int k = 0; k < kPack; ++k)
        if (i + k < n) values[i + k] = to.code[k];
    }
  });
}

}  // namespace

// ---- launchers

void CudaOps::launch(const op::Amax& op, cudaStream_t stream) {
  const int64_t n = op.x.numel();
  launch(op::Fill{op.amax, 0}, stream);
  if (n == 0) return;
  const int64_t grid = std::min<int64_t>(ceil_div(n, kBlockThreads * kPack), 8 * multiprocessors_);
  dispatch_device(op.x.dtype, [&]<class T>() {
    launch_kernel(amax_kernel<T>, {blocks(grid, op.kSpan.name), kBlockThreads, stream}, elements<T>(op.x), n,
                  n % kPack == 0 && aligned(op.x), static_cast<unsigned int*>(op.amax.data));
  });
}

void CudaOps::launch(const op::Quantize& op, cudaStream_t stream) {
  check(op.amax.data != nullptr, "quantize: GPUs support a scale per tensor, not per block");
  const int64_t n = op.x.numel(),
                grid = std::max<int64_t>(ceil_div(n, kBlockThreads * kPack), 1);  // always writes a scale
  dispatch_fp8(op.values.dtype, [&]<class Format>() {
    dispatch_device(op.x.dtype, [&]<class T>() {
      launch_kernel(quantize_kernel<Format, T>, {blocks(grid, op.kSpan.name), kBlockThreads, stream}, elements<T>(op.x),
                    op.amax.as<float>(), static_cast<uint8_t*>(op.values.data), op.scale.as<float>(), n,
                    aligned(op.x, op.values));
    });
  });
}

}  // namespace trivet
