#include "tests/emulation/block_writes.h"

#include <cstring>
#include <string>

#include "tests/emulation/grid.h"
#include "tests/emulation/stream.h"

namespace trivet::emulation {
namespace {

constexpr size_t kMost = 16 << 20;
thread_local BlockWrites* watching = nullptr;

}  // namespace

BlockWrites::BlockWrites(uint64_t blocks) : pieces_(pieces_begun) {
  if (blocks < 2 || !alone()) return;
  for (const GpuMemory& memory : gpu_memory(kMost / blocks))
    regions_.push_back({memory.data, {memory.data, memory.data + memory.bytes}, std::vector<bool>(memory.bytes)});
  watching = this;
}

BlockWrites::~BlockWrites() { watching = nullptr; }

// Only this grid has run since it began.
bool BlockWrites::alone() const { return pieces_begun == pieces_ && pieces_running == 1; }

void BlockWrites::block_ended() {
  if (regions_.empty()) return;
  if (!alone()) return regions_.clear();
  std::string problem;
  constexpr size_t kPage = 1024;
  for (Region& region : regions_)
    for (size_t page = 0; page < region.before.size(); page += kPage) {
      const size_t size = std::min(kPage, region.before.size() - page);
      if (std::memcmp(region.data + page, region.before.data() + page, size) == 0) continue;
      for (size_t i = page; i < page + size; ++i) {
        if (region.data[i] == region.before[i]) continue;
        if (region.written[i] && !atomic_.contains(region.data + i))
          problem = "two blocks of a grid write byte " + std::to_string(i) + " of " +
                    std::to_string(region.before.size()) + " bytes of memory, and not by atomic operations";
        region.written[i] = true;
        region.before[i] = region.data[i];
      }
    }
  if (!problem.empty() && alone()) broken(problem);
}

void writes_atomically(const void* to, size_t bytes) {
  if (!watching || watching->regions_.empty()) return;
  for (size_t i = 0; i < bytes; ++i) watching->atomic_.insert(static_cast<const std::byte*>(to) + i);
}

}  // namespace trivet::emulation
