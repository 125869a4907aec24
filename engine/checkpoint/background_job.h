// BackgroundJob: a thread that does one job at a time while its owner goes on. Used by one thread beside its own.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace trivet {

class BackgroundJob {
 public:
  BackgroundJob() : thread_([this] { run(); }) {}
  ~BackgroundJob();  // waits for the job under way
  BackgroundJob(const BackgroundJob&) = delete;
  BackgroundJob& operator=(const BackgroundJob&) = delete;

  // REQUIRES: not busy.
  void start(std::function<void()> job);
  bool busy() const;
  void wait() const;  // until not busy
  // What the last job threw; empty: nothing, or it was taken before. REQUIRES: not busy.
  std::string take_error();

 private:
  void run();

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::function<void()> job_;  // under way, or about to be; guarded by mutex_
  std::string error_;          // guarded by mutex_
  bool ending_ = false;        // guarded by mutex_
  std::thread thread_;
};

}  // namespace trivet
