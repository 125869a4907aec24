// StagingPair: double buffering between a device and the host. One host buffer is copied while the host works on the
// other. Used by one thread.
#pragma once

#include <memory>
#include <optional>

#include "kernels/base/device.h"

namespace trivet {

class StagingPair {
 public:
  // Two buffers of `bytes`. Copies are queued on `stream`.
  StagingPair(Device& device, Stream& stream, int64_t bytes) : device_(device), stream_(stream), bytes_(bytes) {}
  ~StagingPair() {
    try {
      stream_.synchronize();  // copies in flight use the buffers
    } catch (...) {           // the next use of the stream throws it again
    }
  }
  StagingPair(const StagingPair&) = delete;
  StagingPair& operator=(const StagingPair&) = delete;

  int64_t bytes() const { return bytes_; }
  // Returns buffer i % 2 once the copies of its previous use are done.
  char* wait(size_t i) {
    Half& half = halves_[i % 2];
    if (!half.buffer) {
      half.buffer.emplace(device_, bytes_);
      half.copied = device_.create_event();
    }
    half.copied->synchronize();
    return static_cast<char*>(half.buffer->data());
  }
  void copies_queued(size_t i) { stream_.record(*halves_[i % 2].copied); }

 private:
  struct Half {
    std::optional<HostBuffer> buffer;
    std::unique_ptr<Event> copied;
  };
  Device& device_;
  Stream& stream_;
  const int64_t bytes_;
  Half halves_[2];
};

}  // namespace trivet
