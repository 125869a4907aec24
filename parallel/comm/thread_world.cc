#include "parallel/comm/thread_world.h"

#include <utility>

namespace trivet {

void ThreadWorld::add(std::shared_ptr<WaitPoint> point) {
  std::lock_guard lock(mutex_);
  std::erase_if(points_, [](const auto& p) { return p.expired(); });
  points_.push_back(std::move(point));
}

void ThreadWorld::fail(int rank, const std::string& why, std::exception_ptr cause) noexcept {
  {
    std::lock_guard lock(mutex_);
    if (failed_rank_ < 0) {
      failed_rank_ = rank;
      why_ = why;
    }
    if (failed_rank_ == rank && !cause_ && cause) {
      why_ = why;
      cause_ = std::move(cause);
    }
    failed_.store(true, std::memory_order_release);
  }
  wake_all();
}

Failure ThreadWorld::first_failure() {
  std::lock_guard lock(mutex_);
  return {failed_rank_, why_};
}

void ThreadWorld::throw_peer_failure() {
  std::lock_guard lock(mutex_);
  throw PeerFailure("rank " + std::to_string(failed_rank_) + " failed: " + why_);
}

std::pair<int, std::exception_ptr> ThreadWorld::failure() {
  std::lock_guard lock(mutex_);
  if (failed_rank_ >= 0 && !cause_) cause_ = std::make_exception_ptr(Error(why_));
  return {failed_rank_, cause_};
}

void ThreadWorld::end(int rank) noexcept {
  ended_[static_cast<size_t>(rank)].store(true, std::memory_order_release);
  wake_all();
}

void ThreadWorld::wake_all() noexcept {
  std::vector<std::shared_ptr<WaitPoint>> points;
  {
    std::lock_guard lock(mutex_);
    for (const auto& point : points_)
      if (auto alive = point.lock()) points.push_back(std::move(alive));
  }
  for (const auto& point : points) {
    // A waiter holds the mutex between its test and its sleep: after this it has seen the news, or sleeps.
    { std::lock_guard lock(point->mutex); }
    point->changed.notify_all();
  }
}

}  // namespace trivet
