// BackgroundJob: one job at a time on a thread of its own while its owner goes on. Used by one thread.
#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <string>

#include "kernels/base/check.h"

namespace trivet {

class BackgroundJob {
 public:
  // REQUIRES: not busy.
  void start(std::function<void()> job) {
    check(!busy(), "a background job is started while another is under way");
    error_ = std::async(std::launch::async, [job = std::move(job)]() -> std::string {
      try {
        job();
        return {};
      } catch (const std::exception& error) {
        return error.what();
      }
    });
  }
  bool busy() const { return error_.valid() && error_.wait_for(std::chrono::seconds(0)) != std::future_status::ready; }
  void wait() const {  // until not busy
    if (error_.valid()) error_.wait();
  }
  // What the last job threw; empty: nothing, or it was taken before. REQUIRES: not busy.
  std::string take_error() { return error_.valid() ? error_.get() : std::string(); }

 private:
  std::future<std::string> error_;  // of the last job, if nobody has taken it; waits for the job where it is destroyed
};

}  // namespace trivet
