#include "engine/checkpoint/background_job.h"

#include <exception>
#include <utility>

#include "kernels/base/check.h"

namespace trivet {

BackgroundJob::~BackgroundJob() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void BackgroundJob::start(std::function<void()> job) {
  {
    const std::lock_guard lock(mutex_);
    check(!job_, "a background job is started while another is under way");
    job_ = std::move(job);
    error_.clear();
  }
  changed_.notify_all();
}

bool BackgroundJob::busy() const {
  const std::lock_guard lock(mutex_);
  return static_cast<bool>(job_);
}

void BackgroundJob::wait() const {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !job_; });
}

std::string BackgroundJob::take_error() {
  const std::lock_guard lock(mutex_);
  return std::exchange(error_, {});
}

void BackgroundJob::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return job_ || ending_; });
    if (!job_) return;
    lock.unlock();
    std::string error;
    try {
      job_();  // nobody else touches it until it is done
    } catch (const std::exception& e) {
      error = e.what();
    }
    lock.lock();
    error_ = std::move(error);
    job_ = nullptr;
    changed_.notify_all();
  }
}

}  // namespace trivet
