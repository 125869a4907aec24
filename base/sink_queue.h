// Outputs of a run that may stop accepting data: a paused pager, a launcher that stopped reading, a full or hung disk.
//
// SinkQueue: holds up to kBytes of pieces in memory, and its own thread writes them in order. Pieces that arrive when
// the queue is full are dropped and counted; the sink gets the count once it accepts data again. Used by one thread.
//
// QueuedOutput: standard output through a SinkQueue; each flush makes a piece. From start_log() on, a file gets the
// same lines through its own queue, including earlier ones, whatever happens to standard output.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <ostream>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace trivet {

class SinkQueue {
 public:
  static constexpr size_t kBytes = 4 << 20;
  static constexpr double kWait = 2;  // seconds that a save, and program exit, wait
  // Total of the waits after a stop signal: Open MPI kills the ranks two seconds after it.
  static constexpr double kWaitAfterStop = 1;

  struct Sink {
    // Writes one piece, or several joined, in full. False: not now; the call is repeated later. Must own everything it
    // uses, because a thread stuck in a write outlives the queue.
    std::function<bool(const std::string& pieces)> write;
    std::function<std::string(int64_t pieces)> gap = nullptr;  // stands in for `pieces` dropped pieces
    // A full queue drops nothing until its sink has accepted nothing for this long, or a stop signal arrives.
    double patience_s = 0;
    // Bytes written but not yet read; a change shows that the sink is accepting data. Any thread.
    std::function<int64_t()> unread = nullptr;
  };
  explicit SinkQueue(Sink sink);
  ~SinkQueue() { close(); }
  SinkQueue(const SinkQueue&) = delete;
  SinkQueue& operator=(const SinkQueue&) = delete;

  void push(std::string piece);
  // False: not everything was written within `seconds`, or within the rest of kWaitAfterStop.
  bool drain(double seconds = kWait);
  // Must be the last call. Waits while the sink accepts data at least every kWait, but only for one drain() after a
  // stop signal. Returns the pieces that may not have been written; part of the first one may have been.
  std::vector<std::string> close();
  double stalled_s() const;  // how long the sink has accepted nothing; 0: nothing is queued. Any thread

 private:
  struct State;
  std::shared_ptr<State> state_;
  std::thread thread_;  // started by the first piece
};

// OutputLog: writes a terminal's lines to a file, and for a line that redraws itself only its last state. At kBytes the
// file becomes PATH.1, and a new file begins. A file that cannot be written does not end the run. Any thread.
class OutputLog {
 public:
  static constexpr size_t kBytes = 16 << 20;

  explicit OutputLog(size_t most_bytes = kBytes) : most_bytes_(most_bytes) {}
  ~OutputLog() { close(); }
  void add(std::string_view text);
  void open(const std::string& path);  // writes the earlier lines too
  std::string path() const;            // "": no file is open
  bool drain();
  void close();

 private:
  mutable std::mutex mutex_;
  const size_t most_bytes_;
  std::string path_;
  std::string line_;   // unfinished
  std::string early_;  // lines from before the file was open
  std::optional<SinkQueue> queue_;
};

// Only one may exist at a time.
class QueuedOutput : private std::stringbuf, public std::ostream {
 public:
  QueuedOutput();
  ~QueuedOutput() override;
  bool drain() { return queue_.drain() && log_->drain(); }

 private:
  int sync() override;
  const std::shared_ptr<OutputLog> log_;
  SinkQueue queue_;
};

// If a QueuedOutput exists, its lines also go to this file, as do those of add_to_log(), which it does not print.
void start_log(const std::string& path);
void add_to_log(std::string_view text);

// For a hang report: a message if standard output accepts nothing; else "". Any thread.
std::string output_stall();

}  // namespace trivet
