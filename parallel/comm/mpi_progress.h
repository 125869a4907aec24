// MpiProgress: moves the messages of a process. Only the thread that holds the progress token calls MPI
// (MPI_THREAD_SERIALIZED).
//
// Messages belong to tasks. A task is a small state machine: the token's holder calls advance() after submit() and
// completed() when one of the task's messages is done; both may post more. Neither may take longer than copying a
// chunk, because other tasks' messages wait for it.
//
// The token belongs to the progress thread, from MPI_Init_thread to MPI_Finalize. A thread that would block on a task
// borrows it while the progress thread is not in MPI: a call then costs no context switch, and the thread whose cache
// has the data copies it. The borrower advances all tasks; when its own is done it returns the token, and wakes the
// progress thread if others are in flight. It does both under mutex_, which orders accesses to tasks and requests.
//
// The holder polls only while tasks are in flight. Without news it yields first and then sleeps, longer each time, so
// that compute gets the core.
//
// How an all-reduce called by a compute thread proceeds:
//   1. The thread sets up the task and calls run(). borrow_token() submits the task; the progress thread sleeps with
//      nothing in flight, so the token is free, and the thread takes it.
//   2. drive() loops over turns. A turn calls advance() on submitted tasks, which posts the first messages; it then
//      asks MPI which messages are done, and calls completed() for each, which adds the chunk and posts the next.
//   3. While nothing arrives, the thread yields the core, then sleeps between turns. Another thread that submits a task
//      wakes it, and its next turn advances that task as well.
//   4. The last completed() calls end(). The thread returns the token and continues; if other tasks are in flight, it
//      wakes the progress thread, which runs turns in the same way.
// If the token is taken in step 1, its holder does steps 2 and 3, and the caller waits on its task's condition
// variable. A stream with its own thread, as used for overlapped communication, makes the same calls on it.
//
// When a task or MPI fails, or halt() is called, the progress thread keeps the token, abandons all tasks and makes no
// MPI call but MPI_Abort; every thread that waits for a task throws.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"
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

  // Called by the token's holder. They throw Error to fail the rank.
  virtual void advance() = 0;
  virtual void completed(int slot, int64_t chunk, int64_t bytes) = 0;  // bytes: size of a received message
  // Called while the task is in flight, when a rank of the world has ended and all its messages have been seen.
  virtual void rank_ended(int) {}

 protected:
  // Called by the thread that waits for the task: moves messages if the token is free, and blocks until end(); throws
  // if the rank has halted.
  void run();
  // Called last by advance() or completed(): releases the waiting thread.
  void end();

  MpiProgress& progress_;

 private:
  friend class MpiProgress;
  bool done();

  std::mutex mutex_;  // guards done_
  std::condition_variable changed_;
  bool done_ = false;
  bool in_flight_ = false;  // accessed only by the token's holder
};

class MpiProgress {
 public:
  MpiProgress();   // returns once MPI is initialised
  ~MpiProgress();  // ends the thread; only finish() finalises MPI
  MpiProgress(const MpiProgress&) = delete;
  MpiProgress& operator=(const MpiProgress&) = delete;

  int rank() const { return mpi_.rank(); }
  int size() const { return mpi_.size(); }
  // For the token's holder; any thread may read its constants.
  MpiEndpoint& mpi() { return mpi_; }

  // Any thread; does not wait. The token's holder will call task.advance().
  void submit(MpiTask& task);
  // Any thread: fails the rank; the first reason is kept.
  void halt(const std::string& why) noexcept;
  bool halted() const { return halted_.load(std::memory_order_acquire); }
  [[noreturn]] void throw_halted();
  Failure failure();  // this rank's

  // For the main thread, at the end of the rank: tells the other ranks, waits until all have ended and finalises MPI.
  void finish();
  // Ends the whole job.
  [[noreturn]] void abort_job(int exit_code);

  // For the token's holder.
  void set_in_flight(MpiTask& task, bool in_flight);

  // How long the progress thread sleeps at least while no task is in flight. Tests lengthen it: a lost wake-up shows.
  static inline std::atomic<std::chrono::nanoseconds> least_idle{std::chrono::microseconds(2)};

 private:
  friend class MpiTask;
  class Shutdown;
  struct Idle;

  void thread_main();
  void loop();
  void stop_thread();
  void notify();

  // For a waiting thread.
  void run(MpiTask& task);
  bool borrow_token(MpiTask& task);
  void drive(MpiTask& task);

  // For the token's holder.
  bool turn(Idle& idle);
  bool run_submitted();
  void report_ended_ranks();
  std::chrono::nanoseconds pause_length(const Idle& idle) const;

  // Guarded by the token.
  MpiEndpoint mpi_;
  int tasks_in_flight_ = 0;
  std::vector<char> ended_;  // [world rank]
  std::vector<MpiTask*> advancing_;

  std::mutex mutex_;                       // guards the members below, down to cause_
  std::condition_variable changed_;        // phase_, halted_
  std::condition_variable news_;           // for the progress thread: notified_, or the token is free
  std::condition_variable borrower_news_;  // for the token's borrower: notified_
  std::vector<MpiTask*> submitted_;
  enum class Phase { starting, running, finishing, ended } phase_ = Phase::starting;
  enum class Token { progress_thread, free, borrowed } token_ = Token::progress_thread;
  std::atomic<bool> notified_ = false;  // there is news for the token's holder; set under mutex_
  int abort_code_ = -1;
  std::string why_;
  std::exception_ptr cause_;  // null: no exception in this process
  std::atomic<bool> halt_wanted_ = false, halted_ = false;
  std::mutex tasks_mutex_;
  std::vector<MpiTask*> tasks_;  // all tasks, for a halt to wake
  std::unique_ptr<Shutdown> shutdown_;
  std::thread thread_;  // last, because it uses the others
};

}  // namespace trivet
