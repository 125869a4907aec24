// Workspaces: memory that ops on a CPU need while they run. A lease returns its block when it ends; blocks are reused,
// so that a repeated step allocates nothing. Any thread may lease; a lease belongs to one op.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>

namespace trivet {

class Workspaces {
 public:
  struct Return {
    Workspaces* owner;
    int64_t bytes;
    void operator()(std::byte* data) const noexcept;
  };
  using Lease = std::unique_ptr<std::byte, Return>;  // aligned to at least a cache line

  // At least `bytes`, contents undefined.
  Lease lease(int64_t bytes);

 private:
  struct Free {
    void operator()(std::byte* data) const { std::free(data); }
  };
  std::mutex mutex_;
  std::multimap<int64_t, std::unique_ptr<std::byte, Free>> idle_;  // by size
};

}  // namespace trivet
