// ThreadWorld: what the ranks of one run_thread_ranks share beside their groups: who has failed, and who has ended.
//
// Every wait in every group ends when a rank fails, or when a rank it waits for has returned from its main function.
// All methods may be called by any thread.
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

// What the other ranks throw when one has failed: never the cause itself.
struct PeerFailure : Error {
  using Error::Error;
};

// A place where ranks wait: a mutex and a condition variable that the world can wake.
struct WaitPoint {
  std::mutex mutex;
  std::condition_variable changed;
};

class ThreadWorld {
 public:
  explicit ThreadWorld(int size) : ended_(static_cast<size_t>(size)) {}

  // Registers a place to wake; it is forgotten when its last owner is gone.
  void add(std::shared_ptr<WaitPoint> point);

  // The first call decides who failed. `cause` may come later (null: `why` is known before the exception is caught).
  void fail(int rank, const std::string& why, std::exception_ptr cause) noexcept;
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  Failure first_failure();
  [[noreturn]] void throw_peer_failure();
  // Of the first failure: its rank, and the exception that caused it.
  std::pair<int, std::exception_ptr> failure();

  // Of a new group: no other of this world has it.
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
