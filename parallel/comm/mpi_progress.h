// MpiProgress: the one thread of a process that calls MPI, from MPI_Init_thread to MPI_Finalize.
//
// Everybody else gives it tasks. A task is a small state machine: the progress thread calls advance() when somebody
// asked for it and completed() when one of the messages it posted is done; both may post more. Neither takes longer
// than the copy of a chunk, so the progress thread soon comes to the next message of any task.
//
// It polls only while tasks are under way, with pauses that grow, and sleeps on a condition variable otherwise: it
// never takes a core away from compute.
//
// When a task or MPI fails, or halt() is called, the progress thread lets go of all tasks and makes no more MPI calls
// but MPI_Abort; everyone who waits for a task throws.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "kernels/base/check.h"

namespace trivet {

class MpiProgress;

class MpiTask {
 public:
  explicit MpiTask(MpiProgress& progress);
  virtual ~MpiTask();
  MpiTask(const MpiTask&) = delete;
  MpiTask& operator=(const MpiTask&) = delete;

  // On the progress thread. They throw Error to fail the rank.
  virtual void advance() = 0;
  virtual void completed(int slot, int64_t chunk, int64_t bytes) = 0;  // bytes: of a received message
  // While the task is under way: what had come from this rank of the world has been looked at, and no more will come.
  virtual void rank_ended(int) {}

 protected:
  // On the waiting thread: blocks until `ready` (called under mutex_), or throws when the progress thread has halted.
  template <class Ready>
  void wait(std::unique_lock<std::mutex>& lock, Ready ready);
  void wake() { changed_.notify_all(); }

  MpiProgress& progress_;
  std::mutex mutex_;

 private:
  friend class MpiProgress;
  std::condition_variable changed_;
  bool under_way_ = false;  // progress thread only
};

class MpiProgress {
 public:
  MpiProgress();   // returns when MPI is up
  ~MpiProgress();  // ends the thread; MPI_Finalize when finish() was not called and nothing failed
  MpiProgress(const MpiProgress&) = delete;
  MpiProgress& operator=(const MpiProgress&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  int max_tag() const { return max_tag_; }

  // Any thread: the progress thread will call task.advance().
  void submit(MpiTask& task);
  // Any thread: runs f on the progress thread, and waits for it. For benchmarks that measure MPI itself.
  void run(std::function<void()> f);
  // Any thread: fails the rank; the first reason counts.
  void halt(const std::string& why) noexcept;
  bool halted() const { return halted_.load(std::memory_order_acquire); }
  [[noreturn]] void throw_halted();

  // The main thread, at the end of the rank: tells the other ranks, waits until all have ended and finalises.
  void finish();
  // Ends the whole job.
  [[noreturn]] void abort_job(int exit_code);

  // ---- for tasks, on the progress thread ----

  void post_send(MpiTask& task, int slot, int64_t chunk, const void* data, int64_t bytes, int to, int tag);
  void post_recv(MpiTask& task, int slot, int64_t chunk, void* data, int64_t bytes, int from, int tag);
  void set_under_way(MpiTask& task, bool under_way);

 private:
  friend class MpiTask;
  struct Requests;  // MPI's types stay in the .cc
  class Goodbye;

  void thread_main();
  void loop();
  void stop_thread();
  bool run_submitted();
  bool poll();
  void report_ended_ranks();
  void pause(int idle_turns);

  std::unique_ptr<Requests> requests_;
  int rank_ = 0, size_ = 1, max_tag_ = 0;
  int tasks_under_way_ = 0;
  std::vector<char> ended_;  // by rank of the world

  std::mutex mutex_;  // guards what follows down to why_
  std::condition_variable changed_;
  std::vector<MpiTask*> submitted_;
  std::vector<MpiTask*> advancing_;  // progress thread only
  enum class Phase { starting, running, finishing, ended } phase_ = Phase::starting;
  bool poked_ = false;  // there is something new for the progress thread
  int abort_code_ = -1;
  std::string why_;
  std::atomic<bool> halt_wanted_ = false, halted_ = false;
  std::mutex tasks_mutex_;
  std::vector<MpiTask*> tasks_;  // all that exist: they are woken by a halt
  std::unique_ptr<Goodbye> goodbye_;
  std::thread thread_;  // last: it starts when the rest is there
};

template <class Ready>
void MpiTask::wait(std::unique_lock<std::mutex>& lock, Ready ready) {
  changed_.wait(lock, [&] { return progress_.halted() || ready(); });
  if (progress_.halted()) {
    lock.unlock();
    progress_.throw_halted();
  }
}

}  // namespace trivet
