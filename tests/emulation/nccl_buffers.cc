#include "tests/emulation/nccl_buffers.h"

#include <cuda_runtime_api.h>
#include <mutex>
#include <nccl.h>

#include "tests/emulation/grid.h"

namespace trivet::emulation {
namespace {

struct Block {
  size_t bytes;
  int known = 0;  // number of communicators that the block is registered with
};
struct Blocks {
  std::mutex mutex;
  std::map<uintptr_t, Block> of;  // by address
};
Blocks& blocks() {
  static Blocks blocks;
  return blocks;
}

// The block that contains all of the bytes, or null. REQUIRES: the mutex.
Block* block_with(uintptr_t begin, size_t bytes) {
  const auto behind = blocks().of.upper_bound(begin);
  if (behind == blocks().of.begin()) return nullptr;
  const auto block = std::prev(behind);
  return begin + bytes <= block->first + block->second.bytes ? &block->second : nullptr;
}

}  // namespace

NcclBuffers::~NcclBuffers() {
  while (!buffers_.empty()) remove(reinterpret_cast<void*>(buffers_.begin()->first));
}

void* NcclBuffers::add(const void* data, size_t bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(data);
  std::lock_guard lock(blocks().mutex);
  Block* const block = block_with(begin, bytes);
  if (!block) return nullptr;
  ++block->known;
  buffers_[next_] = {begin, bytes};
  return reinterpret_cast<void*>(next_++);
}

bool NcclBuffers::remove(void* handle) {
  const auto found = buffers_.find(reinterpret_cast<uintptr_t>(handle));
  if (found == buffers_.end()) return false;
  std::lock_guard lock(blocks().mutex);
  --block_with(found->second.begin, found->second.bytes)->known;
  buffers_.erase(found);
  return true;
}

std::optional<size_t> NcclBuffers::offset_of(const void* data, size_t bytes) const {
  const auto begin = reinterpret_cast<uintptr_t>(data);
  for (const auto& [handle, buffer] : buffers_)
    if (begin >= buffer.begin && begin + bytes <= buffer.begin + buffer.bytes) return begin - buffer.begin;
  return {};
}

}  // namespace trivet::emulation

using trivet::emulation::blocks;

extern "C" {

ncclResult_t ncclMemAlloc(void** data, size_t bytes) {
  if (!data || bytes == 0) return ncclInvalidArgument;
  if (cudaMalloc(data, bytes) != cudaSuccess) return ncclUnhandledCudaError;
  std::lock_guard lock(blocks().mutex);
  blocks().of[reinterpret_cast<uintptr_t>(*data)] = {bytes};
  return ncclSuccess;
}

ncclResult_t ncclMemFree(void* data) {
  {
    std::lock_guard lock(blocks().mutex);
    const auto found = blocks().of.find(reinterpret_cast<uintptr_t>(data));
    if (found == blocks().of.end()) return ncclInvalidArgument;
    if (found->second.known > 0) trivet::emulation::broken("ncclMemFree of memory that a communicator still knows");
    blocks().of.erase(found);
  }
  return cudaFree(data) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

}  // extern "C"
