// Memory that ncclMemAlloc gave, and what an emulated communicator (nccl.cc) has been told of it. To give memory back
// that a communicator still knows ends the process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

namespace trivet::emulation {

class NcclBuffers {
 public:
  NcclBuffers() = default;
  ~NcclBuffers();  // forgets what is left, as NCCL does
  NcclBuffers(const NcclBuffers&) = delete;
  NcclBuffers& operator=(const NcclBuffers&) = delete;

  // A handle, or null where the bytes do not lie in one block of ncclMemAlloc.
  void* add(const void* data, size_t bytes);
  bool remove(void* handle);
  // How far from the beginning of a registered buffer that has all of the bytes; nothing where there is none.
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
