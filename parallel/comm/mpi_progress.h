// MpiProgress: moves the messages of a process. One thread at a time is in MPI (MPI_THREAD_SERIALIZED): the one that
// has the seat.
//
// Messages belong to tasks. A task is a small state machine: the thread in the seat calls advance() when somebody asked
// for it and completed() when one of the messages it posted is done; both may post more. Neither takes longer than the
// copy of a chunk, so the thread in the seat soon comes to the next message of any task.
//
// The seat is the progress thread's, from MPI_Init_thread to MPI_Finalize. A thread that waits for a task, and would
// only block, borrows it when the progress thread is not in MPI just then: a call costs no switch of threads, and the
// copies are made by the thread whose cache has the data. It moves all tasks while it has the seat. When its own is
// done it leaves, and wakes the progress thread if others are still under way. So a thread is in MPI only between
// taking the seat and leaving it, both under mutex_, which orders what the threads do to tasks and requests.
//
// Whoever has the seat polls only while tasks are under way. Without news it first gives way to all who want the core,
// then sleeps, longer each time: nobody takes a core away from compute.
//
// When a task or MPI fails, or halt() is called, the progress thread takes the seat for good, lets go of all tasks and
// makes no more MPI calls but MPI_Abort; everyone who waits for a task throws.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "kernels/base/check.h"
#include "parallel/comm/comm.h"
#include "parallel/comm/mpi_endpoint.h"

namespace trivet {

class MpiProgress;

class MpiTask {
 public:
  explicit MpiTask(MpiProgress& progress);
  virtual ~MpiTask();
  MpiTask(const MpiTask&) = delete;
  MpiTask& operator=(const MpiTask&) = delete;

  // On the thread in the seat. They throw Error to fail the rank.
  virtual void advance() = 0;
  virtual void completed(int slot, int64_t chunk, int64_t bytes) = 0;  // bytes: of a received message
  // While the task is under way: what had come from this rank of the world has been looked at, and no more will come.
  virtual void rank_ended(int) {}

 protected:
  // On the thread that waits for the task: moves messages if the seat is free, and blocks until end(); throws when the
  // rank has halted.
  void run();
  // In advance() or completed(), as the last thing: the waiting thread may go on at once.
  void end();

  MpiProgress& progress_;

 private:
  friend class MpiProgress;
  bool done();

  std::mutex mutex_;  // guards done_
  std::condition_variable changed_;
  bool done_ = false;
  bool under_way_ = false;  // in the seat only
};

class MpiProgress {
 public:
  MpiProgress();   // returns when MPI is up
  ~MpiProgress();  // ends the thread; MPI_Finalize when finish() was not called and nothing failed
  MpiProgress(const MpiProgress&) = delete;
  MpiProgress& operator=(const MpiProgress&) = delete;

  int rank() const { return mpi_.rank(); }
  int size() const { return mpi_.size(); }
  // For tasks in the seat. What does not change may be asked by any thread.
  MpiEndpoint& mpi() { return mpi_; }

  // Any thread, which does not wait: task.advance() will be called.
  void submit(MpiTask& task);
  // Any thread: runs f in the seat, and waits for it. For benchmarks that measure MPI itself.
  void run(std::function<void()> f);
  // Any thread: fails the rank; the first reason counts.
  void halt(const std::string& why) noexcept;
  bool halted() const { return halted_.load(std::memory_order_acquire); }
  [[noreturn]] void throw_halted();
  Failure failure();  // of this rank

  // The main thread, at the end of the rank: tells the other ranks, waits until all have ended and finalises.
  void finish();
  // Ends the whole job.
  [[noreturn]] void abort_job(int exit_code);

  // For tasks in the seat.
  void set_under_way(MpiTask& task, bool under_way);

 private:
  friend class MpiTask;
  class Goodbye;
  struct Quiet;

  void thread_main();
  void loop();
  void stop_thread();
  void poke();

  // A waiting thread's.
  void run(MpiTask& task);
  bool borrow_seat(MpiTask& task);
  void drive(MpiTask& task);

  // In the seat.
  bool turn(Quiet& quiet);
  bool run_submitted();
  void report_ended_ranks();
  std::chrono::nanoseconds pause_length(const Quiet& quiet) const;

  // What belongs to the thread in the seat.
  MpiEndpoint mpi_;
  int tasks_under_way_ = 0;
  std::vector<char> ended_;  // by rank of the world
  std::vector<MpiTask*> advancing_;

  std::mutex mutex_;                       // guards what follows down to why_
  std::condition_variable changed_;        // phase_, halted_
  std::condition_variable news_;           // for the progress thread: poked_, or the seat is free
  std::condition_variable borrower_news_;  // for the thread that has borrowed the seat: poked_
  std::vector<MpiTask*> submitted_;
  enum class Phase { starting, running, finishing, ended } phase_ = Phase::starting;
  enum class Seat { progress_thread, free, borrowed } seat_ = Seat::progress_thread;
  std::atomic<bool> poked_ = false;  // there is something new for the thread in the seat; set under mutex_
  int abort_code_ = -1;
  std::string why_;
  std::atomic<bool> halt_wanted_ = false, halted_ = false;
  std::mutex tasks_mutex_;
  std::vector<MpiTask*> tasks_;  // all that exist: they are woken by a halt
  std::unique_ptr<Goodbye> goodbye_;
  std::thread thread_;  // last: it starts when the rest is there
};

}  // namespace trivet
