// Hopper's warpgroups on an emulated GPU, following the PTX ISA (section "Asynchronous Warpgroup Level Matrix
// Multiply-Accumulate Instructions" and those on mbarrier, cp.async.bulk.tensor, barrier, fence.proxy).
//
// Wherever the ISA leaves room, the program's worst case happens:
//   * The sums of a product are NaN from its start to the wait that covers it; accesses in between end the
//     process.
//   * A product is computed at that wait, when no other thread of the block can run. Its operands must then still be
//     as they were at its start, in registers and shared memory: operands written late or overwritten early end
//     the process.
//   * The destination of a copy is NaN until the copy completes, which is when no thread of the block can run.
//   * Products and copies see shared memory as of the last fence.proxy.async, and data written by copies.
//   * Registers that a product reads must have been named in a wgmma.fence since the last wait.
//   * Order is decided by what threads know of each other through barriers, not by timing (order.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>

namespace trivet::emulation {

// ---- barriers in shared memory

void barrier_initialize(uint64_t* barrier, uint32_t arrivals);
void fence_initialized_barriers();
void barrier_arrive(uint64_t* barrier, uint32_t expected_bytes);
void barrier_wait(uint64_t* barrier, uint32_t parity);

// Hardware barriers for some of a block's warps.
void named_barrier(int barrier, int threads, bool waits);

// ---- copies by the TMA

// The emulated cuTensorMapEncodeTiled's encoding of its arguments: a tensor of three dimensions.
struct EncodedTileMap {
  uint64_t magic;
  const unsigned char* data;
  uint64_t size[3], stride[2];  // elements; bytes
  uint32_t box[3], element_bytes, swizzle_bytes;
};
inline constexpr uint64_t kTileMapMagic = 0x7472697665746d61;

void copy_tile(void* to, const void* map, int column, int matrix, int row, uint64_t* barrier);
void fence_async_proxy();

// The address as in instructions: relative to shared memory, whose first KiB is reserved for the system.
uint32_t address_in_shared(const void* pointer);
inline constexpr uint32_t kFirstSharedAddress = 1024;
// Shared memory as the async proxy sees it. `address` as above.
const unsigned char* as_async_proxy(uint32_t address, size_t bytes, const char* what);

// Address of a 16-byte piece in a swizzle of 128, 64 or 32 bytes: bits 4… of the address, XORed with bits 7….
constexpr uint32_t swizzled(uint32_t address, uint32_t bytes) {
  return address ^ (address >> 3 & (bytes - 1) & ~uint32_t{15});
}

// ---- products (wgmma.mma_async): one lane's arguments. Sums [64, columns], operands bf16.
struct Product {
  float* sums;  // [columns / 2]
  int columns;
  const uint32_t* left;  // the lane's registers of left[64, 16]; null: use the descriptor
  uint64_t left_matrix, right_matrix;
  bool right_by_columns;  // imm-trans-b: "MN-major"
  bool add;
};
void start_product(const Product& product);
// `registers`: those that the program names, in this lane.
struct Registers {
  const void* begin;
  size_t bytes;
};
void wgmma_fence(std::initializer_list<Registers> registers);
void wgmma_commit_group();
// `pending`: groups that may remain. product_pends: whether a product may still change these sums.
void wgmma_wait_group(int pending);
bool product_pends(const float* sums);

}  // namespace trivet::emulation
