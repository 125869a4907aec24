// CudaWorkspaces: device memory that ops need while they run, one block per stream. Ops on a stream run in order, so
// they share its block. A block is replaced when an op needs more than any before it, which happens only in the first
// of identical steps. Old blocks are freed by the destructor: queued ops may still use them, and cudaFree waits for the
// whole GPU, including another rank's stream that waits for this rank.
#pragma once

#include <cstddef>
#include <unordered_map>
#include <vector>

#include "kernels/base/cuda_device.h"
#include "kernels/base/device.h"

namespace trivet {

class CudaWorkspaces {
 public:
  explicit CudaWorkspaces(Device& device) : device_(device) {}
  ~CudaWorkspaces();
  CudaWorkspaces(const CudaWorkspaces&) = delete;
  CudaWorkspaces& operator=(const CudaWorkspaces&) = delete;

  // At least `bytes`, contents undefined, for the op that is being queued on `stream`.
  std::byte* take(cudaStream_t stream, int64_t bytes);
  // Two counters for the stream, 0 at first; each op that uses them resets them to 0.
  int* counters(cudaStream_t stream);

 private:
  struct Block {
    std::byte* data = nullptr;
    int64_t bytes = 0;
  };
  Device& device_;
  static constexpr int64_t kCounterBytes = 2 * sizeof(int);
  std::unordered_map<cudaStream_t, int*> counters_;
  std::unordered_map<cudaStream_t, std::vector<Block>> blocks_;  // the last is the one in use
};

// Splits a workspace into parts, each aligned to 256 bytes. Without memory (null) it only counts bytes.
class WorkspaceCut {
 public:
  explicit WorkspaceCut(std::byte* data) : data_(data) {}
  template <class T>
  T* part(int64_t count) {
    T* const at = data_ ? reinterpret_cast<T*>(data_ + bytes_) : nullptr;
    bytes_ += (count * static_cast<int64_t>(sizeof(T)) + 255) / 256 * 256;
    return at;
  }
  int64_t bytes() const { return bytes_; }

 private:
  std::byte* data_;
  int64_t bytes_ = 0;
};

}  // namespace trivet
