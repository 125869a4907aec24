// Tags, headers and buffers of the MPI back end's messages.
//
// All groups share one MPI communicator; a group's number determines its tags, so that groups never see each other's
// messages. Between two ranks, messages with the same tag arrive in order.
#pragma once

#include <array>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <sys/mman.h>
#include <vector>

#include "parallel/comm/back_end.h"

namespace trivet {

enum class MpiTag { call, scatter, gather, transfer, transfer_data };
constexpr int kMpiTags = 5;

inline int mpi_tag(const CommGroup& group, MpiTag kind) {
  return static_cast<int>(group.number) * kMpiTags + static_cast<int>(kind);
}

// A call's header carries its signature, its time and small data: one message instead of two. It stays below the eager
// limit of MPI libraries (4 KiB between two processes on one host).
struct MpiHeader {
  static constexpr int64_t kPayload = 3960;
  CallSignature signature;
  int64_t called_ns = 0;  // by the sender's clock
  std::array<std::byte, kPayload> payload;

  static constexpr int64_t bytes(int64_t payload_bytes) {
    return static_cast<int64_t>(sizeof(MpiHeader)) - kPayload + payload_bytes;
  }
  static constexpr int64_t kBytes = sizeof(CallSignature) + sizeof(int64_t) + kPayload;
};
static_assert(offsetof(MpiHeader, payload) == MpiHeader::kBytes - MpiHeader::kPayload &&
              sizeof(MpiHeader) == MpiHeader::kBytes);

// Large buffers ask for huge pages, so that the kernel, which copies between processes, looks up far fewer pages.
class GrowOnlyBuffer {
 public:
  std::byte* at_least(int64_t bytes) {
    if (bytes > capacity_) {
      const size_t page = bytes >= kHugePage / 2 ? kHugePage : 4096;
      const size_t size = (static_cast<size_t>(bytes) + page - 1) / page * page;
      data_.reset();
      data_.reset(static_cast<std::byte*>(std::aligned_alloc(page, size)));
      capacity_ = data_ ? static_cast<int64_t>(size) : 0;
      check(data_ != nullptr, "cannot allocate " + std::to_string(size) + " bytes for messages");
      if (page == kHugePage) madvise(data_.get(), size, MADV_HUGEPAGE);
    }
    return data_.get();
  }
  std::byte* data() const { return data_.get(); }
  int64_t capacity() const { return capacity_; }

 private:
  static constexpr int64_t kHugePage = 2 << 20;
  struct Free {
    void operator()(std::byte* data) const { std::free(data); }
  };
  std::unique_ptr<std::byte, Free> data_;
  int64_t capacity_ = 0;
};

}  // namespace trivet
