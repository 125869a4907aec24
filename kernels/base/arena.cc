#include "kernels/base/arena.h"

#include <algorithm>

// AddressSanitizer guards the memory that a scratch frame has released; without it these macros do nothing.
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(data, size) ((void)(data), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(data, size) ((void)(data), (void)(size))
#endif

namespace trivet {

Arena::~Arena() {
  for (const auto& [data, bytes] : blocks_)
    if (where_ == Where::host) device_.deallocate_host(data, bytes);
    else memory_.deallocate(data, bytes);
}

Tensor Arena::allocate(DType dtype, Shape shape) {
  const int64_t bytes = shape.numel() * size_of(dtype);
  if (bytes < 0) fail("arena " + name_ + ": negative size " + to_string(shape));
  void* data = nullptr;
  try {
    const int64_t some = std::max<int64_t>(bytes, 1);
    data = where_ == Where::host ? device_.allocate_host(some) : memory_.allocate(some);
  } catch (const Error& error) {
    throw ConfigError("out of memory: " + name_ + " need " + std::to_string(bytes) + " bytes on top of the " +
                          std::to_string(bytes_) + " that they hold (" + error.what() + ")",
                      Lack::memory);
  }
  blocks_.push_back({data, std::max<int64_t>(bytes, 1)});
  bytes_ += bytes;
  return {data, dtype, shape};
}

std::vector<Tensor> Arena::blocks() const {
  std::vector<Tensor> blocks;
  for (const auto& [data, bytes] : blocks_) blocks.push_back({data, DType::u8, {bytes}});
  return blocks;
}

Scratch::Scratch(Arena& arena, int64_t bytes)
    : memory_(arena.allocate(DType::u8, {bytes})), host_(arena.device().kind() == DeviceKind::cpu) {
  if (host_) ASAN_POISON_MEMORY_REGION(memory_.data, static_cast<size_t>(bytes));
}

Tensor Scratch::take(DType dtype, Shape shape) {
  const int64_t bytes = shape.numel() * size_of(dtype);
  if (used_ + padded(bytes) > capacity())
    fail("scratch of " + std::to_string(capacity()) + " bytes has no room for " + to_string(shape) + " " +
         name_of(dtype) + " with " + std::to_string(used_) + " bytes in use");
  void* data = static_cast<std::byte*>(memory_.data) + used_;
  if (host_) ASAN_UNPOISON_MEMORY_REGION(data, static_cast<size_t>(bytes));
  used_ += padded(bytes);
  high_water_ = std::max(high_water_, used_);
  return {data, dtype, shape};
}

void Scratch::release(int64_t mark) {
  if (host_) ASAN_POISON_MEMORY_REGION(static_cast<std::byte*>(memory_.data) + mark, static_cast<size_t>(used_ - mark));
  used_ = mark;
}

}  // namespace trivet
