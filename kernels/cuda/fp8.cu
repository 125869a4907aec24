// FP8: the largest magnitude of a tensor, and its values converted to a format, with a scale of their own or one per
// block. Each element is read once, in 16-byte accesses, and its code is written once. Whatever else GEMMs require of
// FP8 operands is in matmul.cu.
#include <cuda_fp8.h>

#include "kernels/base/fp8.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/reduce.cuh"

namespace trivet {
namespace {

// ---- device helpers

union Codes {
  uint8_t code[kPack];
  __nv_fp8x2_storage_t pair[kPack / 2];
  uint2 all;
};

// The GPU's own conversion makes infinities finite, so it is only used for numbers without any; with that of
// kernels/base/fp8.h, some 12 operations per element, kernels would be compute-bound.
template <class Format>
__device__ inline Codes encode(const Pack& scaled, bool finite) {
  constexpr auto kKind = std::is_same_v<Format, E4m3> ? __NV_E4M3 : __NV_E5M2;
  Codes to;
  if (finite) {
#pragma unroll
    for (int k = 0; k < kPack; k += 2)
      to.pair[k / 2] = __nv_cvt_float2_to_fp8x2({scaled.v[k], scaled.v[k + 1]}, __NV_SATFINITE, kKind);
  } else {
#pragma unroll
    for (int k = 0; k < kPack; ++k) to.code[k] = Format::encode(scaled.v[k]);
  }
  return to;
}

// As store_pack() of pack.cuh.
template <class Whole>
__device__ inline void store_codes(uint8_t* values, int64_t i, int64_t n, Whole whole, const Codes& codes) {
  if (whole) {
    *reinterpret_cast<uint2*>(values + i) = codes.all;
  } else {
#pragma unroll
    for (int k = 0; k < kPack; ++k)
      if (i + k < n) values[i + k] = codes.code[k];
  }
}

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

// One pack per thread.
template <class Format, class T>
__global__ void __launch_bounds__(kBlockThreads)
    quantize_kernel(const T* x, const float* amax, uint8_t* values, float* inverse, int64_t n, bool vectors) {
  const float scale = Format::scale_for(amax[0]);
  if (blockIdx.x == 0 && threadIdx.x == 0) inverse[0] = 1 / scale;
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kBlockThreads + threadIdx.x) * kPack;
  if (i >= n) return;
  with_flag(is_whole(i, n, vectors), [&](auto whole) {
    Pack pack = load_pack(x, i, n, whole);
#pragma unroll
    for (int k = 0; k < kPack; ++k) pack.v[k] *= scale;
    store_codes(values, i, n, whole, encode<Format>(pack, isfinite(amax[0])));
  });
}

// One block per tile of up to 128 x 128 elements of x[rows, n], of which a thread holds 8 columns of every 16th row in
// registers. tiles: their rows; a tile is one block of scales, one per row, or one per column. vectors: n is also a
// multiple of kPack.
template <class Format, class T>
__global__ void __launch_bounds__(kBlockThreads)
    quantize_blocks_kernel(const T* x, uint8_t* values, float* inverse, ScaleBlocks blocks, ScaleBlocks tiles,
                           int64_t n, bool vectors) {
  constexpr int kSize = ScaleBlocks::kSize, kAcross = kSize / kPack, kDown = kBlockThreads / kAcross;
  __shared__ unsigned int largest[kSize];  // by row, by column, or only the first; bits of magnitudes, as above
  __shared__ float factor[kSize];
  const bool by_column = blocks.columns == 1, by_row = !by_column && blocks.rows == 1;
  const int64_t across = (n + kSize - 1) / kSize, tile = blockIdx.x / across;
  const int64_t first_row = tiles.first_row(tile), first_column = blockIdx.x % across * kSize;
  const int rows = static_cast<int>(tiles.row_count(tile)), thread = static_cast<int>(threadIdx.x);
  const int top = thread / kAcross, left = thread % kAcross * kPack;
  const int64_t i = first_column + left;
  if (thread < kSize) largest[thread] = 0;
  __syncthreads();
  with_flag(vectors, [&](auto whole) {
    RawPack<T> raw[kSize / kDown];
#pragma unroll
    for (int r = 0; r < kSize / kDown; ++r) {
      const int row = top + r * kDown;
      raw[r] = row < rows && i < n ? load_raw(x + (first_row + row) * n, i, n, whole) : RawPack<T>{};
    }
    unsigned int of_column[kPack] = {}, of_all = 0;
#pragma unroll
    for (int r = 0; r < kSize / kDown; ++r) {
      const Pack pack = unpack(raw[r]);
      unsigned int of_row = 0;
#pragma unroll
      for (int k = 0; k < kPack; ++k) {
        const unsigned int magnitude = __float_as_uint(pack.v[k]) & 0x7fffffffu;
        of_row = max(of_row, magnitude), of_column[k] = max(of_column[k], magnitude);
      }
      of_all = max(of_all, of_row);
      if (!by_row) continue;
#pragma unroll
      for (int lane = kAcross / 2; lane > 0; lane /= 2) of_row = max(of_row, __shfl_xor_sync(kAllLanes, of_row, lane));
      if (left == 0) largest[top + r * kDown] = of_row;
    }
    if (by_column) {
#pragma unroll
      for (int k = 0; k < kPack; ++k) atomicMax(&largest[left + k], of_column[k]);
    } else if (!by_row) {
      of_all = warp_reduce(of_all, Max());
      if (thread % 32 == 0) atomicMax(&largest[0], of_all);
    }
    __syncthreads();
    if (thread < kSize) {
      const float scale = factor[thread] = Format::scale_for(__uint_as_float(largest[thread]));
      const int row = by_row ? thread : 0, column = by_row ? 0 : thread;
      if (row < rows && first_column + column < n && (by_row || by_column || thread == 0))
        inverse[blocks.index(first_row + row, first_column + column)] = 1 / scale;
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < kSize / kDown; ++r) {
      const int row = top + r * kDown;
      if (row >= rows || i >= n) continue;
      Pack pack = unpack(raw[r]);
      bool finite = true;
#pragma unroll
      for (int k = 0; k < kPack; ++k) {
        const int at = by_row ? row : by_column ? left + k : 0;
        pack.v[k] *= factor[at], finite &= largest[at] < 0x7f800000u;
      }
      store_codes(values + (first_row + row) * n, i, n, whole, encode<Format>(pack, finite));
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
  const int64_t n = op.x.numel(),
                grid = std::max<int64_t>(ceil_div(n, kBlockThreads * kPack), 1);  // always writes a scale
  if (!op.amax && n == 0) return;
  dispatch_fp8(op.values.dtype, [&]<class Format>() {
    dispatch_device(op.x.dtype, [&]<class T>() {
      if (!op.amax) {
        const int64_t rows = op.x.rows(), columns = op.x.cols();
        const ScaleBlocks of(op.scale, op.values);
        ScaleBlocks tiles = of;
        if (of.rows == 1 && of.columns > 1)  // 128 of these at a time, across groups
          tiles.group = rows, tiles.rows = ScaleBlocks::kSize, tiles.down = ScaleBlocks::count(rows);
        const int64_t count = rows / tiles.group * tiles.down * ScaleBlocks::count(columns);
        return launch_kernel(quantize_blocks_kernel<Format, T>, {blocks(count, op.kSpan.name), kBlockThreads, stream},
                             elements<T>(op.x), static_cast<uint8_t*>(op.values.data), op.scale.as<float>(), of, tiles,
                             columns, columns % kPack == 0 && aligned(op.x, op.values));
      }
      launch_kernel(quantize_kernel<Format, T>, {blocks(grid, op.kSpan.name), kBlockThreads, stream}, elements<T>(op.x),
                    op.amax.as<float>(), static_cast<uint8_t*>(op.values.data), op.scale.as<float>(), n,
                    aligned(op.x, op.values));
    });
  });
}

}  // namespace trivet
