// Hopper's warpgroups, by the PTX ISA's words (section "Asynchronous Warpgroup Level Matrix Multiply-Accumulate
// Instructions" and those of mbarrier, cp.async.bulk.tensor, barrier, fence.proxy), on an emulated GPU.
//
// Where the ISA leaves room, the program's worst case happens:
//   * The sums of a product are NaN from its start to the wait that covers it; touched in between, they end the
//   process.
//   * A product is computed at that wait, when no other thread of the block can go on. Its operands must then still be
//     what they were when it was started, registers and shared memory: not yet written or already overwritten, they end
//     the process.
//   * What a copy will fill is NaN until the copy is done, and that is when no thread of the block can go on.
//   * Products and copies see shared memory as of the last fence.proxy.async, and what copies have written.
//   * Registers that a product reads must have been named by a wgmma.fence since the last wait.
//   * What threads know of each other by barriers decides, not when things happen (order.h).
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

// Barriers of hardware, of some of a block's warps.
void named_barrier(int barrier, int threads, bool waits);

// ---- copies by the TMA

// What the emulated cuTensorMapEncodeTiled makes of its arguments: a tensor of three dimensions.
struct EncodedTileMap {
  uint64_t magic;
  const unsigned char* data;
  uint64_t size[3], stride[2];  // elements; bytes
  uint32_t box[3], element_bytes, swizzle_bytes;
};
inline constexpr uint64_t kTileMapMagic = 0x7472697665746d61;

void copy_tile(void* to, const void* map, int column, int matrix, int row, uint64_t* barrier);
void fence_async_proxy();

// The address that instructions know: from the beginning of shared memory, where the system has the first KiB.
uint32_t address_in_shared(const void* pointer);
inline constexpr uint32_t kFirstSharedAddress = 1024;
// As the async proxy sees it. `address` as above.
const unsigned char* as_async_proxy(uint32_t address, size_t bytes, const char* what);

// 16-byte pieces as they are swizzled over so many bytes, 128, 64 or 32: bits 4… of the address, changed by bits 7….
constexpr uint32_t swizzled(uint32_t address, uint32_t bytes) {
  return address ^ (address >> 3 & (bytes - 1) & ~uint32_t{15});
}

// ---- products: what one lane says. Sums [64, columns], operands bf16.
struct Product {
  float* sums;  // columns / 2 of them
  int columns;
  const uint32_t* left;  // its registers of left[64, 16], or null: by the descriptor
  uint64_t left_matrix, right_matrix;
  bool right_by_columns;  // imm-trans-b: "MN-major"
  bool add;
};
void start_product(const Product& product);
// `registers`: those that the program names, as this lane has them.
struct Registers {
  const void* begin;
  size_t bytes;
};
void wgmma_fence(std::initializer_list<Registers> registers);
void wgmma_commit_group();
// `settled`: sums that the caller takes for done.
void wgmma_wait_group(int pending);
bool product_pends(const float* sums);

}  // namespace trivet::emulation
