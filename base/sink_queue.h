// Outputs of a run that may stop accepting: a paused pager, a launcher that reads no more, a full or hung disk.
//
// SinkQueue: up to kBytes of pieces wait in memory, and a thread of its own writes them in order. Pieces that find the
// queue full are dropped and counted, and the sink is told when it accepts again. Used by one thread.
//
// QueuedOutput: standard output through such a queue; each flush makes a piece. From start_log() on, a file gets the
// same lines through its own queue, earlier ones included, whatever happens to standard output.
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
  static constexpr double kWait = 2;  // seconds: of a save, and of the end of the program
  // In all after a stop signal: Open MPI kills the ranks two seconds after it.
  static constexpr double kWaitAfterStop = 1;

  struct Sink {
    // Writes a piece, or several in one, wholly. False: not now; it is called with them again. Owns all that it uses: a
    // thread that is stuck in a write outlives the queue.
    std::function<bool(const std::string& pieces)> write;
    std::function<std::string(int64_t pieces)> gap = nullptr;  // stands in for `pieces` dropped pieces
    // A full queue drops nothing until its sink has accepted nothing for this long, or a stop signal came.
    double patience_s = 0;
    // Bytes written but not yet read; if they change, the sink accepts. Any thread.
    std::function<int64_t()> unread = nullptr;
  };
  explicit SinkQueue(Sink sink);
  ~SinkQueue() { close(); }
  SinkQueue(const SinkQueue&) = delete;
  SinkQueue& operator=(const SinkQueue&) = delete;

  void push(std::string piece);
  // False: not everything was written within `seconds`, or what is left of kWaitAfterStop.
  bool drain(double seconds = kWait);
  // The last call. Waits while the sink accepts something every kWait, after a stop signal not longer. Returns
  // the pieces that may not have been written: of the first, a part may have been.
  std::vector<std::string> close();
  double stalled_s() const;  // how long the sink has accepted nothing; 0: nothing waits for it. Any thread

 private:
  struct State;
  std::shared_ptr<State> state_;
  std::thread thread_;  // from the first piece on
};

// OutputLog: the lines of a terminal in a file, without those that redraw themselves. Beyond kBytes it becomes
// PATH.1, and a new one begins. A file that cannot be written ends nothing. Any thread.
class OutputLog {
 public:
  static constexpr size_t kBytes = 16 << 20;

  explicit OutputLog(size_t most_bytes = kBytes) : most_bytes_(most_bytes) {}
  ~OutputLog() { close(); }
  void add(std::string_view text);
  void open(const std::string& path);  // gets earlier lines, too
  std::string path() const;            // "": it is not open
  bool drain();
  void close();

 private:
  mutable std::mutex mutex_;
  const size_t most_bytes_;
  std::string path_;
  std::string line_;   // unfinished
  std::string early_;  // before the file is open
  std::optional<SinkQueue> queue_;
};

// One at a time.
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

// If a QueuedOutput exists, its lines also go to this file, as do lines that it does not print.
void start_log(const std::string& path);
void add_to_log(std::string_view text);

// For a report of a hang: that standard output accepts nothing; else "". Any thread.
std::string output_stall();

}  // namespace trivet
