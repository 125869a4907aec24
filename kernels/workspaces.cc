#include "kernels/workspaces.h"

#include <sys/mman.h>

#include "base/host_memory.h"

namespace trivet {

void Workspaces::Return::operator()(std::byte* data) const noexcept {
  std::lock_guard lock(owner->mutex_);
  owner->idle_.emplace(bytes, data);
}

Workspaces::Lease Workspaces::lease(int64_t bytes) {
  {
    std::lock_guard lock(mutex_);
    auto found = idle_.lower_bound(bytes);
    if (found != idle_.end()) {
      Lease block(found->second.release(), Return{this, found->first});
      idle_.erase(found);
      return block;
    }
    if (!idle_.empty()) idle_.erase(--found);  // too small: it is replaced, so that blocks do not pile up
  }
  constexpr int64_t kHugePage = 2 << 20;  // panels are read end to end; 4 KiB pages would cost TLB misses
  const int64_t rounded = (bytes + kHugePage - 1) / kHugePage * kHugePage;
  const MemoryPurpose purpose("a kernel's workspace");
  void* const data = std::aligned_alloc(kHugePage, static_cast<size_t>(rounded));
  if (!data) throw OutOfMemory(static_cast<size_t>(rounded));
  madvise(data, static_cast<size_t>(rounded), MADV_HUGEPAGE);
  return {static_cast<std::byte*>(data), Return{this, rounded}};
}

}  // namespace trivet
