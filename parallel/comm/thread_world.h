// ThreadWorld: tracks which ranks of one run_thread_ranks have failed or ended. Every wait in every group ends when a
// rank fails, or when a rank it waits for has returned from its main function. Any thread may call it.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "parallel/comm/comm.h"

namespace trivet {

// Thrown by the other ranks when one has failed: never the cause itself.
struct PeerFailure : Error {
  using Error::Error;
};

// A place where ranks wait and the world can wake them.
struct WaitPoint {
  std::mutex mutex;
  std::condition_variable changed;
};

class ThreadWorld {
 public:
  explicit ThreadWorld(int size) : ended_(static_cast<size_t>(size)) {}

  // Registers a point to be woken for as long as another owner holds it.
  void add(std::shared_ptr<WaitPoint> point) {
    std::lock_guard lock(mutex_);
    const auto free = std::ranges::find_if(points_, [](const auto& p) { return p.expired(); });
    if (free != points_.end()) *free = std::move(point);
    else points_.push_back(std::move(point));
  }

  // The first call decides which rank failed; its `cause` may follow in a later call (null: not caught yet).
  void fail(int rank, const std::string& why, std::exception_ptr cause) noexcept {
    try {
      std::lock_guard lock(mutex_);
      if (failed_rank_ < 0) {
        failed_rank_ = rank;
        why_ = why;
      }
      if (failed_rank_ == rank && !cause_ && cause) {
        cause_ = std::move(cause);
        why_ = why;
      }
      if (failed_rank_ != rank && cause) others_.push_back(why);
    } catch (const std::bad_alloc&) {  // no memory for the text; the rank is recorded
    }
    failed_.store(true, std::memory_order_release);
    wake_all();
  }
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  [[noreturn]] void throw_peer_failure() {
    std::lock_guard lock(mutex_);
    throw PeerFailure("rank " + std::to_string(failed_rank_) + " failed: " + why_);
  }
  struct FirstFailure : Failure {
    bool shared;               // another rank failed with the same message
    std::exception_ptr cause;  // null: not caught yet
  };
  FirstFailure failure() {
    std::lock_guard lock(mutex_);
    return {{failed_rank_, why_}, std::ranges::count(others_, why_) > 0, cause_};
  }

  uint64_t next_group_number() { return groups_++; }

  void end(int rank) noexcept {
    ended_[static_cast<size_t>(rank)].store(true, std::memory_order_release);
    wake_all();
  }
  bool ended(int rank) const { return ended_[static_cast<size_t>(rank)].load(std::memory_order_acquire); }

 private:
  void wake_all() noexcept {
    // Fetches one point at a time: copying the list would need memory, and running out of it may be the failure.
    // Points never move, and a rank that waits at a point added during the loop has already seen the news.
    for (size_t i = 0;; ++i) {
      std::shared_ptr<WaitPoint> point;
      {
        std::lock_guard lock(mutex_);
        if (i == points_.size()) return;
        point = points_[i].lock();
      }
      if (!point) continue;
      // A waiter holds the mutex from its test until it sleeps: after this it has seen the news, or is asleep.
      { std::lock_guard lock(point->mutex); }
      point->changed.notify_all();
    }
  }

  std::mutex mutex_;
  std::vector<std::weak_ptr<WaitPoint>> points_;
  int failed_rank_ = -1;
  std::vector<std::string> others_;  // why other ranks failed
  std::string why_;
  std::exception_ptr cause_;
  std::atomic<bool> failed_ = false;
  std::atomic<uint64_t> groups_ = 0;
  std::vector<std::atomic<bool>> ended_;
};

}  // namespace trivet
