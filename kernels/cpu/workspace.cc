#include "kernels/cpu/workspace.h"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <sys/mman.h>

#include "kernels/base/check.h"

namespace trivet {

void Workspaces::Free::operator()(std::byte* data) const { std::free(data); }

Workspaces::Lease Workspaces::lease(int64_t bytes) {
  Block block;
  {
    std::lock_guard lock(mutex_);
    auto found = std::find_if(idle_.begin(), idle_.end(), [=](const Block& idle) { return idle.bytes >= bytes; });
    if (found == idle_.end() && !idle_.empty()) --found;  // too small: it is replaced, so that blocks do not pile up
    if (found != idle_.end()) {
      block = std::move(*found);
      idle_.erase(found);
    }
  }
  if (block.bytes < bytes) {
    constexpr int64_t kHugePage = 2 << 20;  // panels are walked end to end; 4 KiB pages would cost TLB misses
    block.data.reset();
    block.bytes = (bytes + kHugePage - 1) / kHugePage * kHugePage;
    block.data.reset(static_cast<std::byte*>(std::aligned_alloc(kHugePage, static_cast<size_t>(block.bytes))));
    if (!block.data) fail("cannot allocate " + std::to_string(block.bytes) + " bytes of workspace");
    madvise(block.data.get(), static_cast<size_t>(block.bytes), MADV_HUGEPAGE);
  }
  return {*this, std::move(block)};
}

void Workspaces::give_back(Block block) noexcept {
  std::lock_guard lock(mutex_);
  const auto larger =
      std::find_if(idle_.begin(), idle_.end(), [&](const Block& idle) { return idle.bytes >= block.bytes; });
  idle_.insert(larger, std::move(block));
}

}  // namespace trivet
