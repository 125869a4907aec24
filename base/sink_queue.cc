#include "base/sink_queue.h"

#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <fmt/format.h>
#include <mutex>
#include <unistd.h>
#include <utility>

#include "base/files.h"
#include "base/host.h"
#include "base/stop_signal.h"
#include "kernels/base/check.h"

namespace trivet {

struct SinkQueue::State {
  explicit State(Sink s) : sink(std::move(s)) {}
  const Sink sink;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::string> pieces;  // the first stays until it is written
  size_t bytes = 0;
  int64_t dropped = 0;
  double accepted = now_seconds();  // the last piece, or the queue was empty
  bool closed = false;

  void add(std::string piece) {
    if (pieces.empty()) accepted = now_seconds();
    bytes += piece.size();
    pieces.push_back(std::move(piece));
    changed.notify_all();
  }
  void add_gap() {
    if (dropped > 0) add(sink.gap(std::exchange(dropped, 0)));
  }
  void write_pieces() {
    std::unique_lock lock(mutex);
    while (changed.wait(lock, [&] { return closed || !pieces.empty(); }), !closed) {
      const std::string& piece = pieces.front();
      lock.unlock();
      const bool taken = sink.write(piece);
      lock.lock();
      if (taken) {
        bytes -= piece.size();
        pieces.pop_front();
        accepted = now_seconds();
        changed.notify_all();
      } else {
        changed.wait_for(lock, std::chrono::milliseconds(100), [&] { return closed; });
      }
    }
  }
};

SinkQueue::SinkQueue(Sink sink) : state_(std::make_shared<State>(std::move(sink))) {}

void SinkQueue::push(std::string piece) {
  State& s = *state_;
  std::unique_lock lock(s.mutex);
  const auto full = [&] { return !s.pieces.empty() && s.bytes + piece.size() > kBytes; };
  while (full() && now_seconds() - s.accepted < s.sink.patience_s && stop_signal() == 0)
    s.changed.wait_for(lock, std::chrono::milliseconds(50));
  if (full()) return void(++s.dropped);
  s.add_gap();
  s.add(std::move(piece));
  if (!thread_.joinable()) thread_ = std::thread([state = state_] { state->write_pieces(); });
}

bool SinkQueue::drain() {
  std::unique_lock lock(state_->mutex);
  state_->add_gap();
  return state_->changed.wait_for(lock, std::chrono::duration<double>(kWait), [&] { return state_->pieces.empty(); });
}

int64_t SinkQueue::close() {
  while (!drain() && stalled_s() < kWait && stop_signal() == 0) continue;
  std::unique_lock lock(state_->mutex);
  const auto lost = static_cast<int64_t>(state_->pieces.size());
  state_->closed = true;
  state_->changed.notify_all();
  lock.unlock();
  if (thread_.joinable()) lost == 0 ? thread_.join() : thread_.detach();
  return lost;
}

double SinkQueue::stalled_s() const {
  const std::lock_guard lock(state_->mutex);
  return state_->pieces.empty() ? 0 : now_seconds() - state_->accepted;
}

namespace {

std::atomic<const SinkQueue*> output;

// A piece to standard output or, once that is gone, to `log`, which is open from then on.
bool write_output(const std::string& piece, const std::string& path, std::shared_ptr<AppendFile>& log) {
  if (!log && write_all(STDOUT_FILENO, piece) == piece.size()) return true;
  if (log) return log->append(piece), true;
  const std::string what = "standard output is gone: " + error_text(errno);
  try {
    log = std::make_shared<AppendFile>(path, AppendFile::Start::keep, nullptr);
    log->append(what + "; training goes on, and its output here\n" + piece);
    write_stderr(fmt::format("trivet: {}; it goes on in {}\n", what, path));
  } catch (const IoError&) {  // no such folder yet, or a full disk
  }
  return true;
}

}  // namespace

QueuedOutput::QueuedOutput(const std::string& log)
    : std::ostream(static_cast<std::stringbuf*>(this)),
      queue_({.write = [log, file = std::shared_ptr<AppendFile>()](
                           const std::string& piece) mutable { return write_output(piece, log, file); },
              .gap = [](int64_t n) { return fmt::format("\n{} lines are missing: they were not accepted\n", n); }}) {
  output = &queue_;
}

QueuedOutput::~QueuedOutput() {
  output = nullptr;
  if (const int64_t lost = queue_.close(); lost > 0)
    write_stderr(fmt::format("trivet: the last {} lines are lost, as standard output accepts nothing\n", lost));
}

int QueuedOutput::sync() {
  if (!str().empty()) queue_.push(str());
  str("");
  return 0;
}

std::string output_stall() {
  const SinkQueue* const queue = output;
  const double seconds = queue ? queue->stalled_s() : 0;
  return seconds < 1 ? "" : fmt::format("; standard output has accepted nothing for {:.1f} s", seconds);
}

}  // namespace trivet
