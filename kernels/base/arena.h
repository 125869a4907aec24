// Arena: the memory for one purpose on one device, with a name ("weights", "gradients", "activations", …).
//
// A rank's memory is allocated from arenas while the rank is built, and freed with it; nothing allocates between the
// first and the last step. Each allocation is its own block of the device, so that AddressSanitizer guards its ends.
//
// Scratch: a stack of bytes for tensors that live only inside one call. A Frame allocates tensors and frees them all
// when it ends; frames nest.
#pragma once

#include <string>
#include <vector>

#include "kernels/base/device.h"

namespace trivet {

class Arena {
 public:
  enum class Where { device, host };  // host: host memory that the device copies efficiently
  Arena(Device& device, std::string name, Where where = Where::device)
      : device_(device), memory_(device), name_(std::move(name)), where_(where) {}
  // The arena's blocks come from `memory`, which the device can access and which must outlive the arena.
  Arena(Device& device, Memory& memory, std::string name)
      : device_(device), memory_(memory), name_(std::move(name)), where_(Where::device) {}
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // A tensor with undefined contents that lives as long as the arena.
  Tensor allocate(DType dtype, Shape shape);

  const std::string& name() const { return name_; }
  int64_t bytes() const { return bytes_; }  // allocated so far
  std::vector<Tensor> blocks() const;       // [bytes] u8 each: the allocations
  Device& device() { return device_; }

 private:
  struct Block {
    void* data;
    int64_t bytes;
  };
  Device& device_;
  Memory& memory_;
  std::string name_;
  const Where where_;
  std::vector<Block> blocks_;
  int64_t bytes_ = 0;
};

class Scratch {
 public:
  static constexpr int64_t kAlignment = 256;
  static constexpr int64_t padded(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

  // Allocates `bytes` from `arena` immediately.
  Scratch(Arena& arena, int64_t bytes);

  class Frame {
   public:
    explicit Frame(Scratch& scratch) : scratch_(scratch), mark_(scratch.used_) {}
    ~Frame() { scratch_.release(mark_); }
    Frame(const Frame&) = delete;
    Frame& operator=(const Frame&) = delete;
    Tensor tensor(DType dtype, Shape shape) { return scratch_.take(dtype, shape); }

   private:
    Scratch& scratch_;
    int64_t mark_;
  };

  int64_t capacity() const { return memory_.bytes(); }
  int64_t high_water() const { return high_water_; }  // most bytes ever in use, padding included

 private:
  Tensor take(DType dtype, Shape shape);
  void release(int64_t mark);

  Tensor memory_;  // [capacity] u8
  bool host_ = false;
  int64_t used_ = 0;
  int64_t high_water_ = 0;
};

}  // namespace trivet
