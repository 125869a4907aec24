// ThreadWorld: which ranks of one run_thread_ranks have failed or ended. Every wait in every group ends when a rank
// fails, or when a rank it waits for has returned from its main function. Any thread may call it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kernels/base/check.h"
#include "parallel/comm/comm.h"

namespace trivet {

// Thrown by the other ranks when one has failed: never the cause itself.
struct PeerFailure : Error {
  using Error::Error;
};

// Where ranks wait, and the world can wake them.
struct WaitPoint {
  std::mutex mutex;
  std::condition_variable changed;
};

class ThreadWorld {
 public:
  explicit ThreadWorld(int size) : ended_(static_cast<size_t>(size)) {}

  // Registers a point to wake, as long as it has another owner.
  void add(std::shared_ptr<WaitPoint> point);

  // The first call decides which rank failed; its `cause` may follow in a later one (null: not caught yet).
  void fail(int rank, const std::string& why, std::exception_ptr cause) noexcept;
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  Failure first_failure();
  [[noreturn]] void throw_peer_failure();
  // The rank of the first failure, and the exception that caused it.
  std::pair<int, std::exception_ptr> failure();

  uint64_t next_group_number() { return groups_++; }

  void end(int rank) noexcept;
  bool ended(int rank) const { return ended_[static_cast<size_t>(rank)].load(std::memory_order_acquire); }

 private:
  void wake_all() noexcept;

  std::mutex mutex_;
  std::vector<std::weak_ptr<WaitPoint>> points_;
  int failed_rank_ = -1;
  std::string why_;
  std::exception_ptr cause_;
  std::atomic<bool> failed_ = false;
  std::atomic<uint64_t> groups_ = 0;
  std::vector<std::atomic<bool>> ended_;
};

}  // namespace trivet
