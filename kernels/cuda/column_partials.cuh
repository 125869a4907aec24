// The second step of summing over rows: blocks have summed their rows into partials[parts][columns]; these are added up
// in a fixed order and then added to the result. A part may hold two results of equal length side by side.
#pragma once

#include <cstdint>
#include <cuda_runtime.h>

#include "kernels/cuda/launch.h"

namespace trivet {

// A block handles 32 columns, one per lane. Each of its 8 warps sums every 8th part; a column's 8 sums are added last.
static __global__ void __launch_bounds__(256)
    add_column_partials_kernel(const float* partials, int64_t parts, int64_t columns, int64_t of_first, float* first,
                               float* second) {
  constexpr int kWarps = 8;
  __shared__ float shared[kWarps][32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * 32 + lane;
  float total = 0;
  if (column < columns) {
#pragma unroll 4
    for (int64_t part = warp; part < parts; part += kWarps) total += partials[part * columns + column];
  }
  shared[warp][lane] = total;
  __syncthreads();
  if (warp != 0 || column >= columns) return;
#pragma unroll
  for (int other = 1; other < kWarps; ++other) total += shared[other][lane];
  if (column < of_first) first[column] += total;
  else second[column - of_first] += total;
}

// first[c] += the sum over parts of partials[part][c]; unless null, second[c] += that of partials[part][columns + c].
inline void add_column_partials(const float* partials, int64_t parts, int64_t columns, float* first, float* second,
                                cudaStream_t stream) {
  const int64_t all = second ? 2 * columns : columns;
  const auto grid = static_cast<unsigned int>((all + 31) / 32);
  launch_kernel(add_column_partials_kernel, {grid, 256, stream}, partials, parts, all, columns, first, second);
}

}  // namespace trivet
