// Shared by the emulated runtime's files: streams, events, captures, and the checks for refused calls.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "tests/emulation/driver.h"
#include "tests/emulation/runtime.h"

namespace trivet::emulation {

using Work = std::function<void()>;

// Work recorded instead of queued, in the order of the calls, from all streams that take part.
struct Capture {
  std::vector<Work> work;
  std::vector<cudaStream_t> streams;  // the first one began the capture
  bool strict = false;                // the capturing thread may not make calls that cannot be captured
  bool refused = false;               // a call that cannot be captured was made: the capture yields no graph
};

struct EventState {
  std::mutex mutex;
  std::condition_variable happened;
  uint64_t recorded = 0, complete = 0;  // number of records; the last record that a stream has reached
  int64_t at_ns = 0;                    // time at which that record was reached
  bool timed = true, blocks = false;
  std::weak_ptr<Capture> captured;       // the last record was captured
  std::weak_ptr<class Channel> channel;  // of the last record
  uint64_t piece = 0;                    // the record is among the channel's first `piece` pieces of work

  void wait_for(uint64_t record);
  void hurry();  // something waits for the last record
};

// Pieces of work of all channels: begun so far, and running now.
extern std::atomic<uint64_t> pieces_begun, pieces_running;

// A hardware queue, for one stream or several, and the thread that serves it.
class Channel {
 public:
  explicit Channel(uint64_t number);  // among the device's channels, for Driver::late_channels
  ~Channel();
  void queue(Work work, int64_t entries, int64_t& of_stream);  // of_stream: counts the stream's unfinished entries
  void drain(const int64_t& of_stream, Waiting::Kind kind, const std::string& why);
  void finish_running(const std::string& why);
  void set_runs(bool runs);
  uint64_t queued();            // number of pieces of work so far
  void hurry(uint64_t pieces);  // something waits for that many pieces of work to be finished

 private:
  void serve();
  void hold_back(std::unique_lock<std::mutex>& lock);

  struct Entry {
    Work work;
    int64_t entries;
    int64_t* of_stream;
  };
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Entry> work_;                           // including the running entry
  int64_t entries_ = 0;                              // in all of work_
  uint64_t queued_ = 0, finished_ = 0, wanted_ = 0;  // numbers of pieces of work; wanted: that something waits for
  bool runs_ = false, ends_ = false;
  const uint64_t number_;
  std::thread thread_;
};

class Stream {
 public:
  explicit Stream(int device);
  ~Stream();  // waits for the work

  int device() const { return device_; }
  void queue(Work work, int64_t entries) { channel_->queue(std::move(work), entries, entries_); }
  // Waits until the stream is empty.
  void drain(Waiting::Kind kind = Waiting::plain, const std::string& why = "a call waits for a stream") {
    const bool shares = channel_.use_count() > 1;
    channel_->drain(entries_, shares ? Waiting::strict : kind, shares ? why + ", which shares its channel" : why);
  }
  const std::shared_ptr<Channel>& channel() const { return channel_; }
  std::shared_ptr<Capture> capture;

 private:
  const int device_;
  const std::shared_ptr<Channel> channel_;
  int64_t entries_ = 0;  // under the channel's mutex
};

Stream& of(cudaStream_t stream);
// Waits for all work on the device. Until it returns, other threads' calls that add work wait.
void drain_all(int device, const std::string& why);
// With the strict driver: as drain_all, but waits only for running work.
void may_wait(const char* call);
// During its lifetime this thread's channel waits for an event or a word in memory: it runs no work.
class RunsNothing {
 public:
  RunsNothing();
  ~RunsNothing();
  RunsNothing(const RunsNothing&) = delete;
};
// With the strict driver and lazy loading, loads `what` at its first use.
void load(int device, uint64_t what, const char* kind);

// Success if this thread may make a call that is allowed neither during the thread's own capture (unless relaxed) nor,
// like any call, in a host function.
cudaError_t allowed();
// The same for a call that is allowed during captures.
cudaError_t allowed_anywhere();
// Adds to the stream, as `entries` entries of its queue, or to the capture that it takes part in.
cudaError_t add(cudaStream_t stream, Work work, int64_t entries = 1);

int current_device();

}  // namespace trivet::emulation
