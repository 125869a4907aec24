// Races between a grid's blocks. On a GPU blocks run at the same time, so no two may write the same byte except by
// atomic operations; here they run one after another, and a lost update would pass unnoticed. After each block, the
// GPU's memory is compared with what it was before: a byte that two blocks have changed ends the process with a
// message.
//
// Not watched: grids while other streams run, and grids whose blocks times the GPU's memory are more than 16 MiB.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_set>
#include <vector>

namespace trivet::emulation {

class BlockWrites {
 public:
  explicit BlockWrites(uint64_t blocks);
  ~BlockWrites();
  BlockWrites(const BlockWrites&) = delete;
  void block_ended();

 private:
  friend void writes_atomically(const void* to, size_t bytes);
  struct Region {
    const std::byte* data;
    std::vector<std::byte> before;  // the last block
    std::vector<bool> written;      // [byte]: by an earlier block
  };
  bool alone() const;

  std::vector<Region> regions_;
  std::unordered_set<const void*> atomic_;  // addresses of bytes
  uint64_t pieces_ = 0;
};

// An atomic operation of the running block.
void writes_atomically(const void* to, size_t bytes);

// Memory allocated on GPUs: address and size; empty if it is more than `most` bytes in all.
struct GpuMemory {
  const std::byte* data;
  size_t bytes;
};
std::vector<GpuMemory> gpu_memory(size_t most);

}  // namespace trivet::emulation
