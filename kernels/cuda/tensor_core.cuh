// Fragments for bf16 GEMMs on the tensor cores (mma.m16n8k16 with fp32 sums), loaded from tiles in shared memory.
//
// A warp's lanes hold the operands and sums like this (PTX ISA, "Matrix Fragments for mma.m16n8k16"), with g = lane / 4
// and t = lane % 4:
//   Sums   [16, 8] fp32   rows g, g, g + 8, g + 8; columns 2t, 2t + 1, 2t, 2t + 1
//   Left   [16, 16] bf16  pairs of columns 2t, 2t + 1 (then those 8 further) of rows g and g + 8
//   Right  [16, 8] bf16   pairs of rows 2t, 2t + 1 (then those 8 further) of column g
// Two Sums side by side hold exactly a lane's elements of a Left, so probabilities become an operand in place.
//
// Tiles are row-major, with rows `ld` elements apart; ld = columns + 8 places the eight rows that ldmatrix reads at a
// time in different banks (for 64, 80, 96 and 128 columns).
#pragma once

#include <cstdint>
#include <cuda_bf16.h>

#include "kernels/cuda/ptx.cuh"

namespace trivet {

using Sums = float[4];
using Left = uint32_t[4];

// Rows [0, 16) and columns [0, 16) of the tile at `tile`.
__device__ inline void load_left(Left& a, const __nv_bfloat16* tile, int ld) {
  const int lane = threadIdx.x % 32;
  ldmatrix(a, tile + lane % 16 * ld + lane / 16 * 8);
}

// Two Rights, for output columns [0, 8) and [8, 16): b[0], b[1] and b[2], b[3]. The operand [k, n] is the tile
// transposed: tile row n, tile column k, 16 of each.
__device__ inline void load_right_of_rows(uint32_t (&b)[4], const __nv_bfloat16* tile, int ld) {
  const int lane = threadIdx.x % 32;
  ldmatrix(b, tile + (lane % 8 + lane / 16 * 8) * ld + lane / 8 % 2 * 8);
}

// The same for an operand that is not transposed: tile row k, tile column n.
__device__ inline void load_right_of_columns(uint32_t (&b)[4], const __nv_bfloat16* tile, int ld) {
  const int lane = threadIdx.x % 32;
  ldmatrix_transposed(b, tile + lane % 16 * ld + lane / 16 * 8);
}

__device__ inline uint32_t pair_of(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// Two Sums side by side, rounded, as the operand of the next GEMM.
__device__ inline void to_left(Left& a, const Sums& first, const Sums& second) {
  a[0] = pair_of(first[0], first[1]);
  a[1] = pair_of(first[2], first[3]);
  a[2] = pair_of(second[0], second[1]);
  a[3] = pair_of(second[2], second[3]);
}

template <int kBlocks>
__device__ inline void clear(Sums (&sums)[kBlocks]) {
#pragma unroll
  for (int n = 0; n < kBlocks; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) sums[n][e] = 0;
}

// Rounds 16 kSteps columns of sums into the left operand of the next GEMM.
template <int kSteps>
__device__ inline void to_lefts(Left (&left)[kSteps], const Sums (&sums)[2 * kSteps]) {
#pragma unroll
  for (int step = 0; step < kSteps; ++step) to_left(left[step], sums[2 * step], sums[2 * step + 1]);
}

// sums[16 kGroups, 8 kBlocks] = left[16 kGroups, kD] right[8 kBlocks, kD]^T, both tiles in shared memory.
template <int kD, int kGroups, int kBlocks>
__device__ inline void gemm_nt(Sums (&sums)[kGroups][kBlocks], const __nv_bfloat16* left_rows,
                               const __nv_bfloat16* right_rows) {
  constexpr int kLd = kD + 8;
#pragma unroll
  for (int m = 0; m < kGroups; ++m) clear(sums[m]);
#pragma unroll
  for (int step = 0; step < kD / 16; ++step) {
    Left left[kGroups];
#pragma unroll
    for (int m = 0; m < kGroups; ++m) load_left(left[m], left_rows + 16 * m * kLd + 16 * step, kLd);
#pragma unroll
    for (int n = 0; n < kBlocks; n += 2) {
      uint32_t right[4];
      load_right_of_rows(right, right_rows + 8 * n * kLd + 16 * step, kLd);
#pragma unroll
      for (int m = 0; m < kGroups; ++m) {
        multiply(sums[m][n], left[m], right[0], right[1]);
        multiply(sums[m][n + 1], left[m], right[2], right[3]);
      }
    }
  }
}

// sums[16 kGroups, 8 kBlocks] += left[16 kGroups, 16 kSteps], in registers, times tile[16 kSteps, 8 kBlocks].
template <int kGroups, int kSteps, int kBlocks>
__device__ inline void gemm_nn(Sums (&sums)[kGroups][kBlocks], const Left (&left)[kGroups][kSteps],
                               const __nv_bfloat16* tile) {
  constexpr int kLd = 8 * kBlocks + 8;
#pragma unroll
  for (int step = 0; step < kSteps; ++step)
#pragma unroll
    for (int n = 0; n < kBlocks; n += 2) {
      uint32_t right[4];
      load_right_of_columns(right, tile + 16 * step * kLd + 8 * n, kLd);
#pragma unroll
      for (int m = 0; m < kGroups; ++m) {
        multiply(sums[m][n], left[m][step], right[0], right[1]);
        multiply(sums[m][n + 1], left[m][step], right[2], right[3]);
      }
    }
}

// Stores a warp's 16 rows of sums, from row `first` on, to rows of 8 kBlocks columns that are `stride` elements apart,
// with one factor for each of this lane's two rows; rows from s on are skipped.
template <int kBlocks>
__device__ inline void store_warp_rows(__nv_bfloat16* to, int64_t stride, const Sums (&sums)[kBlocks],
                                       const float (&factor)[2], int first, int s) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first + g + 8 * half;
    if (row >= s) continue;
    __nv_bfloat16* const at = to + row * stride + 2 * t;
#pragma unroll
    for (int n = 0; n < kBlocks; ++n)
      *reinterpret_cast<uint32_t*>(at + 8 * n) =
          pair_of(sums[n][2 * half] * factor[half], sums[n][2 * half + 1] * factor[half]);
  }
}

// ---- asynchronous copies to shared memory

// Called by the whole block: copies rows [first, first + kRows) of a matrix, each kColumns long and `stride` elements
// apart, to a tile; rows from `rows` on become zeros.
template <int kRows, int kColumns, int kThreads>
__device__ inline void copy_tile_async(__nv_bfloat16* tile, const __nv_bfloat16* matrix, int64_t stride, int first,
                                       int rows) {
  constexpr int kChunks = kColumns / 8, kLd = kColumns + 8;
#pragma unroll
  for (int i = 0; i < (kRows * kChunks + kThreads - 1) / kThreads; ++i) {
    const int chunk = i * kThreads + static_cast<int>(threadIdx.x);
    if (kRows * kChunks % kThreads != 0 && chunk >= kRows * kChunks) break;
    const int row = chunk / kChunks, column = chunk % kChunks * 8;
    const bool there = first + row < rows;
    // Even if nothing is read, the address must be valid.
    const __nv_bfloat16* const from = matrix + (there ? first + row : 0) * stride + column;
    cp_async_16(tile + row * kLd + column, from, there);
  }
}

}  // namespace trivet
