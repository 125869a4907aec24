#include "parallel/comm/link_meter.h"

#include <algorithm>
#include <limits>

#include "kernels/base/arena.h"

namespace trivet {
namespace {

constexpr int64_t kLargeBytes = 8 << 20;  // of the gathered tensor
constexpr int kTimes = 5;

}  // namespace

Link measure_link(Communicator& group, Device& device, Stream& stream) {
  const int64_t n = group.size();
  Arena arena(device, "link");
  const Tensor memory = arena.allocate(DType::u8, {kLargeBytes / n * n});
  const auto best_ns = [&](int64_t shard_bytes) {
    const Tensor full = memory.slice(0, n * shard_bytes);
    int64_t best = std::numeric_limits<int64_t>::max();
    for (int i = 0; i < kTimes; ++i) {
      group.barrier();
      const int64_t start = now_ns();
      group.all_gather(full.slice(group.rank() * shard_bytes, shard_bytes), full, stream);
      stream.synchronize();
      best = std::min(best, now_ns() - start);
    }
    return static_cast<double>(best);
  };
  const double latency_ns = best_ns(1), large_ns = best_ns(kLargeBytes / n);
  const WireCost cost = wire_cost(CommCall::all_gather, memory.bytes(), group.size());
  return {.latency_us = 1e-3 * latency_ns,
          .gbps = 8 * static_cast<double>(cost.bytes) / std::max(large_ns - latency_ns, 1.0)};
}

}  // namespace trivet
