// Tiles in shared memory as wgmma reads them, and GEMMs of whole tiles.
//
// A tile [rows, columns] of bf16 is stored in blocks of kBlock columns, one after the other, each row-major. Within a
// block, the 16-byte chunks are swizzled as the TMA does it: with 64 columns (128 bytes), chunk c of row r is stored
// where chunk c ^ r % 8 would be; with 32 columns (64 bytes), where c ^ r / 2 % 4 would be. So the same chunk of eight
// rows, which wgmma reads together, is in different banks (PTX ISA, "Asynchronous Warpgroup Level Swizzle").
//
// Sums and left operands are laid out in registers as for mma (tensor_core.cuh): warp w holds rows 16 w to 16 w + 15;
// a lane with g = lane / 4 and t = lane % 4 holds rows g and g + 8 of these, and columns 2t and 2t + 1 of each eight
// (PTX ISA, "Matrix Fragments for wgmma.mma_async.m64nNk16").
#pragma once

#include "kernels/cuda/ptx_hopper.cuh"

namespace trivet {

// A matrix descriptor (PTX ISA, "Matrix Descriptor Format"): bits 0-13 the address, 16-29 the leading, 32-45 the stride
// dimension byte offset, each without its lowest four bits; 62-63 the swizzle, 1: 128 bytes, 2: 64 bytes.
__device__ constexpr uint64_t matrix_descriptor(uint32_t address, uint32_t leading, uint32_t stride, int swizzle) {
  return static_cast<uint64_t>((address & 0x3ffff) >> 4) | static_cast<uint64_t>(leading >> 4) << 16 |
         static_cast<uint64_t>(stride >> 4) << 32 | static_cast<uint64_t>(swizzle == 128 ? 1 : 2) << 62;
}

// The widest swizzle repeats every 1024 bytes, so tiles not aligned to 1024 bytes would be read in the wrong order.
__device__ inline unsigned char* dynamic_shared_tiles() {
  unsigned char* const tiles = dynamic_shared_1024();
  if (shared_address(tiles) % 1024 != 0) trap();
  return tiles;
}

// kRows rows of a head of kD columns. Heads of 80 columns are padded to 96 with zeros: blocks of 16 columns
// would need no padding, but GEMMs on them would be slow.
template <int kRows, int kD>
struct Tile {
  static constexpr int kBlock = kD % 64 == 0 ? 64 : 32, kBlocks = (kD + kBlock - 1) / kBlock;
  static constexpr int kColumns = kBlocks * kBlock, kSwizzle = 2 * kBlock;  // in bytes
  static constexpr uint32_t kBlockBytes = kRows * kSwizzle, kBytes = kBlocks * kBlockBytes;
  static_assert(kRows % 8 == 0);

  unsigned char* data;

  // Describes rows from `row` on, with k as the column; add by_row_step(i) for step i of 16 columns.
  __device__ uint64_t by_rows(int row) const {
    return matrix_descriptor(shared_address(data) + row * kSwizzle, 16, 8 * kSwizzle, kSwizzle);
  }
  static constexpr uint64_t by_row_step(int step) {
    return (16 * step / kBlock * kBlockBytes + 32 * step % kSwizzle) >> 4;
  }
  // Describes all columns, with k as the row; add by_column_step(i) for step i of 16 rows.
  __device__ uint64_t by_columns() const {
    return matrix_descriptor(shared_address(data), kBlockBytes, 8 * kSwizzle, kSwizzle);
  }
  static constexpr uint64_t by_column_step(int step) { return (16 * step * kSwizzle) >> 4; }

  // Called by one thread: copies rows from `row` on into this tile. Does not announce the bytes.
  __device__ void fetch(const TileMap& map, int matrix, int row, Barrier* barrier) const {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block)
      copy_tile(data + block * kBlockBytes, map, block * kBlock, matrix, row, barrier);
  }
};

// Starts sums[64, kN] = left[row…, kD] right[kN, kD]^T.
template <int kN, int kRows, int kD>
__device__ inline void start_gemm_nt(float (&sums)[kN / 8][4], const Tile<kRows, kD>& left, int row,
                                     const Tile<kN, kD>& right) {
  const uint64_t a = left.by_rows(row), b = right.by_rows(0);
  wgmma_ss<kN, false>(sums, a, b);
#pragma unroll
  for (int step = 1; step < kD / 16; ++step)
    wgmma_ss<kN, true>(sums, a + left.by_row_step(step), b + right.by_row_step(step));
}

// Starts sums[64, kColumns] += left[64, kRows] right[kRows, kColumns].
template <int kRows, int kD>
__device__ inline void start_gemm_nn(float (&sums)[Tile<kRows, kD>::kColumns / 8][4],
                                     const uint32_t (&left)[kRows / 16][4], const Tile<kRows, kD>& right) {
  const uint64_t b = right.by_columns();
#pragma unroll
  for (int step = 0; step < kRows / 16; ++step)
    wgmma_rs<Tile<kRows, kD>::kColumns>(sums, left[step], b + right.by_column_step(step));
}

}  // namespace trivet
