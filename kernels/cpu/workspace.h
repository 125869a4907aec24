// Workspaces: memory that ops on a CPU need while they run. A lease hands out a block and gives it back; blocks are
// kept, so that a step which repeats allocates nothing. Any thread may lease; a lease belongs to one op.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace trivet {

class Workspaces {
 private:
  struct Free {
    void operator()(std::byte* data) const;
  };
  struct Block {
    std::unique_ptr<std::byte, Free> data;
    int64_t bytes = 0;
  };

 public:
  class Lease {
   public:
    Lease(Workspaces& owner, Block block) : owner_(owner), block_(std::move(block)) {}
    ~Lease() { owner_.give_back(std::move(block_)); }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    std::byte* data() const { return block_.data.get(); }  // aligned to a cache line at least

   private:
    Workspaces& owner_;
    Block block_;
  };

  // At least `bytes`, contents undefined.
  Lease lease(int64_t bytes);

 private:
  void give_back(Block block) noexcept;

  std::mutex mutex_;
  std::vector<Block> idle_;  // by size, the largest last
};

}  // namespace trivet
