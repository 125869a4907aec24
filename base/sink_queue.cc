#include "base/sink_queue.h"

#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <ctime>
#include <deque>
#include <filesystem>
#include <fmt/chrono.h>
#include <mutex>
#include <sys/ioctl.h>
#include <unistd.h>
#include <utility>

#include "base/check.h"
#include "base/files.h"
#include "base/host.h"
#include "base/stop_signal.h"

namespace trivet {
namespace {

// While forwarding thousands of short writes per second, a launcher (Open MPI 4.1) was seen to forward a signal up to
// 40 s late, so pieces that arrive faster than one per kPause are written together.
constexpr std::chrono::milliseconds kPause{20};
constexpr size_t kTogether = 64 << 10;  // bytes; a pipe's capacity

}  // namespace

struct SinkQueue::State {
  explicit State(Sink s) : sink(std::move(s)) {}
  const Sink sink;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::string> pieces;  // kept until they have been written
  size_t bytes = 0;
  int64_t dropped = 0;
  double accepted = now_seconds();  // when the last piece was accepted, or the queue was last empty
  int64_t unread = 0;               // sink.unread() when last called
  bool hurried = false;             // a thread is waiting for everything to be written
  double stop_waits = 0;            // deadline of the waits after a stop signal; 0: none has begun
  bool closed = false;

  void add(std::string piece) {
    if (pieces.empty()) accepted = now_seconds();
    bytes += piece.size();
    pieces.push_back(std::move(piece));
    changed.notify_all();
  }
  void add_gap() {
    if (const int64_t gone = std::exchange(dropped, 0); gone > 0 && sink.gap) add(sink.gap(gone));
  }
  // A slow reader that is still reading changes the count of unread bytes.
  double stalled_s() {
    if (pieces.empty()) return 0;
    const int64_t before = std::exchange(unread, sink.unread ? sink.unread() : 0);
    if (unread != before) accepted = now_seconds();
    return now_seconds() - accepted;
  }
  void write_pieces() {
    std::unique_lock lock(mutex);
    while (changed.wait(lock, [&] { return closed || !pieces.empty(); }), !closed) {
      std::string together = pieces.front();
      size_t count = 1;
      while (count < pieces.size() && together.size() + pieces[count].size() <= kTogether) together += pieces[count++];
      lock.unlock();
      const bool taken = sink.write(together);
      lock.lock();
      if (taken) {
        bytes -= together.size();
        pieces.erase(pieces.begin(), pieces.begin() + static_cast<std::ptrdiff_t>(count));
        accepted = now_seconds();
        changed.notify_all();
      }
      changed.wait_for(lock, taken ? kPause : 5 * kPause,
                       [&] { return closed || (taken && (hurried || bytes >= kTogether)); });
    }
  }
};

SinkQueue::SinkQueue(Sink sink) : state_(std::make_shared<State>(std::move(sink))) {}

void SinkQueue::push(std::string piece) {
  State& s = *state_;
  std::unique_lock lock(s.mutex);
  const auto full = [&] { return !s.pieces.empty() && s.bytes + piece.size() > kBytes; };
  while (s.stalled_s() < s.sink.patience_s && full() && stop_signal() == 0)
    s.changed.wait_for(lock, std::chrono::milliseconds(50));
  if (full()) return void(++s.dropped);
  s.add_gap();
  s.add(std::move(piece));
  if (!thread_.joinable()) thread_ = std::thread([state = state_] { state->write_pieces(); });
}

bool SinkQueue::drain(double seconds) {
  State& s = *state_;
  std::unique_lock lock(s.mutex);
  s.add_gap();
  s.stalled_s();
  s.hurried = true;
  s.changed.notify_all();
  if (stop_signal() != 0) {
    if (s.stop_waits == 0) s.stop_waits = now_seconds() + kWaitAfterStop;
    seconds = s.stop_waits - now_seconds();
  }
  s.changed.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return s.pieces.empty(); });
  s.hurried = false;
  return s.pieces.empty();
}

std::vector<std::string> SinkQueue::close() {
  while (!drain() && stalled_s() < kWait && stop_signal() == 0) continue;
  std::unique_lock lock(state_->mutex);
  const std::vector<std::string> lost(state_->pieces.begin(), state_->pieces.end());
  state_->closed = true;
  state_->changed.notify_all();
  lock.unlock();
  if (thread_.joinable()) lost.empty() ? thread_.join() : thread_.detach();
  return lost;
}

double SinkQueue::stalled_s() const {
  const std::lock_guard lock(state_->mutex);
  return state_->stalled_s();
}

namespace {

std::atomic<const SinkQueue*> output;

int64_t unread_output() {
  int bytes = 0;
  if (ioctl(STDOUT_FILENO, TIOCOUTQ, &bytes) != 0) ioctl(STDOUT_FILENO, FIONREAD, &bytes);  // on a terminal; on a pipe
  return bytes;
}

std::mutex log_mutex;
std::shared_ptr<OutputLog> log_of_output;

std::shared_ptr<OutputLog> current_log() {
  const std::lock_guard lock(log_mutex);
  return log_of_output;
}

constexpr std::string_view kRedraw = "\r\033[K";  // clears a line to be redrawn (console.h)

// The last state that a self-redrawing text leaves on the terminal.
std::string_view last_drawn(std::string_view line) {
  const size_t at = line.rfind(kRedraw);
  return at == std::string_view::npos ? line : line.substr(at + kRedraw.size());
}

}  // namespace

// ---- OutputLog

void OutputLog::add(std::string_view text) {
  const std::lock_guard lock(mutex_);
  std::string lines;
  for (size_t end; (end = text.find('\n')) != std::string_view::npos; text.remove_prefix(end + 1)) {
    line_ += text.substr(0, end + 1);
    lines += last_drawn(line_);
    line_.clear();
  }
  line_ = last_drawn(line_ += text);
  if (queue_ && !lines.empty()) queue_->push(std::move(lines));
  else if (early_.size() + lines.size() <= SinkQueue::kBytes) early_ += lines;
}

void OutputLog::open(const std::string& path) {
  const std::lock_guard lock(mutex_);
  path_ = path;
  const auto write = [path, most = most_bytes_,
                      file = std::shared_ptr<AppendFile>()](const std::string& lines) mutable {
    try {
      std::error_code ignored;
      if (file && std::filesystem::file_size(path, ignored) + lines.size() > most) {
        file.reset();
        std::rename(path.c_str(), (path + ".1").c_str());
      }
      if (!file) file = std::make_shared<AppendFile>(path, AppendFile::Start::keep, nullptr);
      return file->append(lines, true);
    } catch (const std::exception&) {
      return false;
    }
  };
  queue_.emplace(SinkQueue::Sink{.write = write, .gap = [](int64_t n) {
                                   return fmt::format("{} pieces of output are missing: not accepted\n", n);
                                 }});
  const std::time_t now = std::time(nullptr);
  queue_->push(fmt::format("---- {:%Y-%m-%dT%H:%M:%SZ}, {}, process {}\n", fmt::gmtime(now), host_name(), getpid()) +
               std::exchange(early_, {}));
}

std::string OutputLog::path() const {
  const std::lock_guard lock(mutex_);
  return path_;
}

bool OutputLog::drain() {
  const std::lock_guard lock(mutex_);
  return !queue_ || queue_->drain();
}

void OutputLog::close() {
  const std::lock_guard lock(mutex_);
  if (queue_ && !line_.empty()) queue_->push(std::exchange(line_, {}) + '\n');
  queue_.reset();
}

void start_log(const std::string& path) {
  if (const auto log = current_log()) log->open(path);
}

void add_to_log(std::string_view text) {
  if (const auto log = current_log()) log->add(text);
}

// ---- QueuedOutput

QueuedOutput::QueuedOutput()
    : std::ostream(static_cast<std::stringbuf*>(this)),
      log_(std::make_shared<OutputLog>()),
      queue_({.write =
                  [log = log_, gone = false](const std::string& piece) mutable {
                    if (gone || write_all(STDOUT_FILENO, piece) == piece.size()) return true;
                    gone = true;
                    const std::string what =
                        fmt::format("standard output is gone: {}; training continues, and its output goes to {}\n",
                                    error_text(errno), log->path().empty() ? "RUN_DIR/log" : log->path());
                    log->add(what);
                    write_stderr("trivet: " + what);
                    return true;
                  },
              .gap = [](int64_t n) { return fmt::format("\n{} lines are missing: they were not accepted\n", n); },
              .unread = unread_output}) {
  output = &queue_;
  const std::lock_guard lock(log_mutex);
  log_of_output = log_;
}

QueuedOutput::~QueuedOutput() {
  output = nullptr;
  const std::vector<std::string> lost = queue_.close();
  {
    const std::lock_guard lock(log_mutex);
    log_of_output = nullptr;
  }
  log_->close();
  if (lost.empty()) return;
  write_stderr(fmt::format("trivet: standard output accepts no data; the last {} lines are {}\n", lost.size(),
                           log_->path().empty() ? "lost" : "in " + log_->path()));
}

int QueuedOutput::sync() {
  if (!str().empty()) log_->add(str()), queue_.push(str());
  str("");
  return 0;
}

std::string output_stall() {
  const SinkQueue* const queue = output;
  const double seconds = queue ? queue->stalled_s() : 0;
  return seconds < 1 ? "" : fmt::format("; standard output has accepted no data for {:.1f} s", seconds);
}

}  // namespace trivet
