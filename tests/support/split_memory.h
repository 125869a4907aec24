// The memory of a split device (split_device.h): a range of inaccessible addresses, and the same number of bytes behind
// it. Thread-safe.
#pragma once

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <sys/mman.h>

#include "kernels/base/tensor.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(data, size) ((void)(data), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(data, size) ((void)(data), (void)(size))
#endif

namespace trivet::test {

// NaN as fp32 and as bf16, and a large number as an integer.
inline void spoil(void* data, int64_t bytes) {
  constexpr uint16_t kPattern = 0x7fff;
  std::fill_n(static_cast<uint16_t*>(data), bytes / 2, kPattern);
  if (bytes % 2) static_cast<unsigned char*>(data)[bytes - 1] = 0x7f;
}

class SplitMemory {
 public:
  static constexpr int64_t kBytes = int64_t{1} << 30;

  SplitMemory() {
    void* const both = mmap(nullptr, 2 * kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (both == MAP_FAILED) fail("cannot reserve the addresses of a split-memory device");
    front_ = static_cast<std::byte*>(both);
    if (mprotect(front_ + kBytes, kBytes, PROT_READ | PROT_WRITE) != 0) fail("cannot make its memory writable");
  }
  ~SplitMemory() {
    ASAN_UNPOISON_MEMORY_REGION(front_ + kBytes, static_cast<size_t>(high_water_));
    munmap(front_, 2 * kBytes);
  }
  SplitMemory(const SplitMemory&) = delete;
  SplitMemory& operator=(const SplitMemory&) = delete;

  void* allocate(int64_t bytes) {
    std::lock_guard lock(mutex_);
    const int64_t room = (bytes + kGuard + kAlignment - 1) / kAlignment * kAlignment;
    int64_t begin = 0;  // start of the first gap that is large enough
    for (const auto& [at, block] : blocks_) {
      if (at - begin >= room) break;
      begin = at + block.room;
    }
    if (begin + room > kBytes)
      fail("cannot allocate " + std::to_string(bytes) + " bytes on the split-memory test device");
    blocks_[begin] = {bytes, room};
    high_water_ = std::max(high_water_, begin + room);
    std::byte* const behind = front_ + kBytes + begin;
    ASAN_UNPOISON_MEMORY_REGION(behind, static_cast<size_t>(bytes));
    ASAN_POISON_MEMORY_REGION(behind + bytes, static_cast<size_t>(room - bytes));
    spoil(behind, bytes);
    return front_ + begin;
  }

  void deallocate(void* data) noexcept {
    std::lock_guard lock(mutex_);
    const auto block = blocks_.find(static_cast<std::byte*>(data) - front_);
    if (block == blocks_.end()) return;
    std::byte* const behind = static_cast<std::byte*>(data) + kBytes;
    spoil(behind, block->second.bytes);
    ASAN_POISON_MEMORY_REGION(behind, static_cast<size_t>(block->second.bytes));
    blocks_.erase(block);
  }

  // True if any of these bytes lies in the device's address range, in a block or not.
  bool touches(const void* data, int64_t bytes) const {
    const auto begin = reinterpret_cast<uintptr_t>(data), front = reinterpret_cast<uintptr_t>(front_);
    return begin < front + 2 * kBytes && begin + static_cast<uintptr_t>(bytes) > front;
  }

  // The accessible tensor behind a tensor of this device. `what` names its place in the call, for the Error.
  template <class What>
  Tensor behind(const Tensor& tensor, const What& what) {
    std::lock_guard lock(mutex_);
    if (touches(tensor.data, std::max<int64_t>(tensor.bytes(), 1))) {
      const int64_t begin = static_cast<std::byte*>(tensor.data) - front_;
      const auto next = blocks_.upper_bound(begin);
      if (next != blocks_.begin())
        if (const auto& [at, block] = *std::prev(next); begin + tensor.bytes() <= at + block.bytes)
          return {front_ + kBytes + begin, tensor.dtype, tensor.shape};
    }
    fail(what() + ", " + to_string(tensor.shape) + " " + name_of(tensor.dtype) +
         ", is not inside a block of the device's memory");
  }

 private:
  static constexpr int64_t kAlignment = 256, kGuard = 64;
  struct Block {
    int64_t bytes, room;
  };
  std::byte* front_ = nullptr;
  std::mutex mutex_;
  std::map<int64_t, Block> blocks_;  // by offset
  int64_t high_water_ = 0;
};

}  // namespace trivet::test
