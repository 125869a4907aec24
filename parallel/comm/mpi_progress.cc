#include "parallel/comm/mpi_progress.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <sched.h>
#include <sys/prctl.h>

namespace trivet {
namespace {

using namespace std::chrono_literals;

// A thread without news yields for this long before it sleeps: a message is usually about to arrive, and waking up is
// slow.
constexpr auto kYields = 500us;
constexpr auto kLongestPause = 50us;
// With no task in flight, a turn only lets MPI finish a buffered message or accept a connection.
constexpr auto kLongestIdle = 10000us;
constexpr unsigned long kTimerSlack = 1000;  // nanoseconds; the default would add 50 microseconds to each sleep
// After this many turns without news, all messages that a rank had sent before its shutdown message have arrived.
constexpr int kTurnsToSeeAll = 20;
constexpr auto kUnreceivedSends = 10s;  // how long an ending rank waits for its sends to be received
constexpr int kShutdownTag = 0;

}  // namespace

// The turns and the time since the last news.
struct MpiProgress::Idle {
  int turns = 0;
  std::chrono::steady_clock::time_point since = std::chrono::steady_clock::now();

  void count(bool news) {
    if (news) *this = {};
    else ++turns;
  }
  std::chrono::nanoseconds length() const { return std::chrono::steady_clock::now() - since; }
};

// Tells all other ranks that this one has ended, and listens for the same from them. Never "in flight", because
// their messages may arrive at any time.
class MpiProgress::Shutdown : public MpiTask {
 public:
  explicit Shutdown(MpiProgress& progress) : MpiTask(progress) {}
  void listen() {
    for (int r = 0; r < progress_.size(); ++r)
      if (r != progress_.rank()) progress_.mpi().post_recv(*this, r, 0, nullptr, 0, r, kShutdownTag);
    to_hear_ = progress_.size() - 1;
  }
  void say() {
    for (int r = 0; r < progress_.size(); ++r)
      if (r != progress_.rank()) progress_.mpi().post_send(*this, -1, 0, nullptr, 0, r, kShutdownTag);
    to_send_ = progress_.size() - 1;
    deadline_ = std::chrono::steady_clock::now() + kUnreceivedSends;
  }
  void advance() override {}
  void completed(int slot, int64_t, int64_t) override {
    if (slot < 0) {
      --to_send_;
      return;
    }
    --to_hear_;
    progress_.ended_[static_cast<size_t>(slot)] = 1;
    deadline_ = std::chrono::steady_clock::now() + kUnreceivedSends;
  }
  bool any_ended() const { return to_hear_ < progress_.size() - 1; }
  bool all_ended() const { return to_hear_ == 0 && to_send_ == 0; }
  bool overdue() const { return to_hear_ == 0 && std::chrono::steady_clock::now() > deadline_; }

 private:
  int to_hear_ = 0, to_send_ = 0;
  std::chrono::steady_clock::time_point deadline_;
};

MpiTask::MpiTask(MpiProgress& progress) : progress_(progress) {
  std::lock_guard lock(progress_.tasks_mutex_);
  progress_.tasks_.push_back(this);
}

MpiTask::~MpiTask() {
  std::lock_guard lock(progress_.tasks_mutex_);
  std::erase(progress_.tasks_, this);
}

bool MpiTask::done() {
  std::lock_guard lock(mutex_);
  return done_;
}

void MpiTask::run() {
  {
    std::lock_guard lock(mutex_);
    done_ = false;
  }
  progress_.run(*this);
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return done_ || progress_.halted(); });
  if (done_) return;
  lock.unlock();
  progress_.throw_halted();
}

void MpiTask::end() {
  std::lock_guard lock(mutex_);
  done_ = true;
  changed_.notify_all();
}

// ---- any thread

MpiProgress::MpiProgress() : shutdown_(std::make_unique<Shutdown>(*this)) {
  thread_ = std::thread([this] { thread_main(); });
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return phase_ != Phase::starting || halted(); });
  lock.unlock();
  if (halted()) {
    stop_thread();
    throw_halted();
  }
}

MpiProgress::~MpiProgress() { stop_thread(); }

void MpiProgress::stop_thread() {
  {
    std::lock_guard lock(mutex_);
    phase_ = Phase::ended;
    notify();
  }
  if (thread_.joinable()) thread_.join();
}

// REQUIRES: mutex_.
void MpiProgress::notify() {
  notified_ = true;
  (token_ == Token::borrowed ? borrower_news_ : news_).notify_one();
}

void MpiProgress::submit(MpiTask& task) {
  std::lock_guard lock(mutex_);
  submitted_.push_back(&task);
  notify();
}

void MpiProgress::halt(const std::string& why) noexcept {
  std::lock_guard lock(mutex_);
  if (why_.empty()) {
    why_ = why;
    cause_ = std::current_exception();
  }
  halt_wanted_.store(true, std::memory_order_release);
  notify();
}

void MpiProgress::throw_halted() {
  std::lock_guard lock(mutex_);
  if (cause_) std::rethrow_exception(cause_);
  throw Error(why_);
}

Failure MpiProgress::failure() {
  if (!halted()) return {};
  std::lock_guard lock(mutex_);
  return {rank(), why_};
}

void MpiProgress::finish() {
  {
    std::lock_guard lock(mutex_);
    phase_ = Phase::finishing;
    notify();
  }
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return phase_ == Phase::ended || halted(); });
  lock.unlock();
  if (halted()) throw_halted();
}

void MpiProgress::abort_job(int exit_code) {
  {
    std::lock_guard lock(mutex_);
    abort_code_ = exit_code;
    halt_wanted_.store(true, std::memory_order_release);
    notify();
    changed_.notify_all();
  }
  thread_.join();  // that thread does not return from MPI_Abort
  std::_Exit(exit_code);
}

// ---- a thread that waits

// Returns when the task is done, or immediately if another thread holds the token.
void MpiProgress::run(MpiTask& task) {
  if (!borrow_token(task)) return;
  bool others_in_flight = false;
  try {
    drive(task);
    others_in_flight = tasks_in_flight_ > 0;
  } catch (const std::exception& e) {
    halt(e.what());
  }
  std::lock_guard lock(mutex_);
  token_ = Token::free;
  if (others_in_flight || !submitted_.empty() || phase_ != Phase::running || halt_wanted_) notify();
}

// Submits the task whether or not it gets the token.
bool MpiProgress::borrow_token(MpiTask& task) {
  std::lock_guard lock(mutex_);
  submitted_.push_back(&task);
  const bool borrowed = token_ == Token::free && !halt_wanted_;
  if (borrowed) token_ = Token::borrowed;
  else notify();
  return borrowed;
}

void MpiProgress::drive(MpiTask& task) {
  Idle idle;
  run_submitted();
  while (!task.done() && !halt_wanted_) {
    if (turn(idle)) continue;
    if (idle.length() < kYields) {
      sched_yield();
    } else {
      prctl(PR_SET_TIMERSLACK, kTimerSlack);
      std::unique_lock lock(mutex_);
      borrower_news_.wait_for(lock, pause_length(idle), [&] { return notified_.load(); });
    }
  }
}

// ---- with the token

void MpiProgress::set_in_flight(MpiTask& task, bool in_flight) {
  if (task.in_flight_ == in_flight) return;
  task.in_flight_ = in_flight;
  tasks_in_flight_ += in_flight ? 1 : -1;
}

void MpiProgress::thread_main() {
  prctl(PR_SET_TIMERSLACK, kTimerSlack);
  try {
    mpi_.start();
    ended_.assign(static_cast<size_t>(size()), 0);
    shutdown_->listen();
    {
      std::lock_guard lock(mutex_);
      phase_ = Phase::running;
    }
    changed_.notify_all();
    loop();
    if (!halt_wanted_) {
      mpi_.stop();
      std::lock_guard lock(mutex_);
      phase_ = Phase::ended;
      changed_.notify_all();
      return;
    }
  } catch (const std::exception& e) {
    halt(e.what());
  }
  // From here on owners may destroy their tasks: this thread touches only those still registered.
  halted_.store(true, std::memory_order_release);
  {
    std::lock_guard lock(tasks_mutex_);
    for (MpiTask* task : tasks_) {
      { std::lock_guard task_lock(task->mutex_); }
      task->changed_.notify_all();
    }
  }
  std::unique_lock lock(mutex_);
  changed_.notify_all();
  changed_.wait(lock, [&] { return abort_code_ >= 0 || phase_ == Phase::ended; });
  if (abort_code_ >= 0) mpi_.abort(abort_code_);
}

void MpiProgress::loop() {
  bool sent_shutdown = false;
  for (Idle idle;;) {
    bool finishing;
    {
      std::unique_lock lock(mutex_);
      // A borrower that returns the token with nothing in flight does not wake this thread.
      while (token_ == Token::borrowed)
        news_.wait_for(lock, std::max<std::chrono::nanoseconds>(kLongestIdle, least_idle));
      token_ = Token::progress_thread;
      if (notified_) idle = {};
      if (halt_wanted_) return;
      if (phase_ == Phase::ended) fail("the MPI rank ends without MpiProgress::finish");
      finishing = phase_ == Phase::finishing;
    }
    if (finishing && !sent_shutdown) {
      shutdown_->say();
      sent_shutdown = true;
    }
    const bool news = turn(idle);
    if (sent_shutdown && shutdown_->all_ended() && tasks_in_flight_ == 0) return;
    if (sent_shutdown && shutdown_->overdue()) fail("the rank has ended, but what it sent was never received");
    if (news) continue;

    const bool yields = tasks_in_flight_ > 0 && idle.length() < kYields;
    const auto length = pause_length(idle);
    std::unique_lock lock(mutex_);
    token_ = Token::free;
    if (yields) {
      lock.unlock();
      sched_yield();
    } else {
      news_.wait_for(lock, length, [&] { return notified_ && token_ == Token::free; });
    }
  }
}

// Returns whether there was news.
bool MpiProgress::turn(Idle& idle) {
  bool news = run_submitted();
  news |= mpi_.poll();
  if (idle.turns == kTurnsToSeeAll && shutdown_->any_ended()) report_ended_ranks();
  idle.count(news);
  return news;
}

bool MpiProgress::run_submitted() {
  {
    std::lock_guard lock(mutex_);
    advancing_.swap(submitted_);
    notified_ = false;
  }
  const bool any = !advancing_.empty();
  for (MpiTask* task : advancing_) task->advance();
  advancing_.clear();
  return any;
}

std::chrono::nanoseconds MpiProgress::pause_length(const Idle& idle) const {
  if (tasks_in_flight_ > 0) return std::clamp<std::chrono::nanoseconds>(idle.length() / 2, 2us, kLongestPause);
  return std::max(std::min<std::chrono::nanoseconds>(idle.length() / 2, kLongestIdle), least_idle.load());
}

void MpiProgress::report_ended_ranks() {
  std::lock_guard lock(tasks_mutex_);
  for (MpiTask* task : tasks_)
    if (task->in_flight_)
      for (int rank = 0; rank < size(); ++rank)
        if (ended_[static_cast<size_t>(rank)]) task->rank_ended(rank);
}

}  // namespace trivet
