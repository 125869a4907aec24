// Memory from ncclMemAlloc, and the buffers registered with an emulated communicator (nccl.cc). Freeing memory that is
// still registered with a communicator ends the process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

namespace trivet::emulation {

class NcclBuffers {
 public:
  NcclBuffers() = default;
  ~NcclBuffers();  // deregisters the remaining buffers, like NCCL
  NcclBuffers(const NcclBuffers&) = delete;
  NcclBuffers& operator=(const NcclBuffers&) = delete;

  // A handle, or null if the bytes do not lie within one block from ncclMemAlloc.
  void* add(const void* data, size_t bytes);
  bool remove(void* handle);
  // The offset in a registered buffer that contains all of the bytes; empty if there is none.
  std::optional<size_t> offset_of(const void* data, size_t bytes) const;

 private:
  struct Buffer {
    uintptr_t begin;
    size_t bytes;
  };
  std::map<uintptr_t, Buffer> buffers_;  // by handle
  uintptr_t next_ = 1;
};

}  // namespace trivet::emulation
