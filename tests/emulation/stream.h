// What the emulated runtime's files share: streams, events, captures, and which calls are refused where.
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

// Work that is recorded instead of queued, in the order of the calls, of all streams that take part.
struct Capture {
  std::vector<Work> work;
  std::vector<cudaStream_t> streams;  // the first one has begun it
  bool strict = false;                // its thread may not call what cannot be captured
  bool refused = false;               // something that cannot be captured was called: nothing comes of it
};

struct EventState {
  std::mutex mutex;
  std::condition_variable happened;
  uint64_t recorded = 0, complete = 0;  // so many records; the last one that a stream has come to
  int64_t at_ns = 0;                    // when
  bool timed = true, blocks = false;
  std::weak_ptr<Capture> captured;  // the last record was captured

  void wait_for(uint64_t record);
};

// A queue of the hardware, of one stream or of several, and the thread that serves it.
class Channel {
 public:
  Channel();
  ~Channel();
  void queue(Work work, int64_t entries, int64_t& of_stream);  // of_stream: entries, counted until they are done
  void drain(const int64_t& of_stream, Waiting::Kind kind, const std::string& why);
  void finish_running(const std::string& why);
  void set_runs(bool runs);

 private:
  void serve();

  struct Entry {
    Work work;
    int64_t entries;
    int64_t* of_stream;
  };
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Entry> work_;  // with what is done now
  int64_t entries_ = 0;     // of all these
  int64_t finished_ = 0;    // pieces of work
  bool runs_ = false, ends_ = false;
  std::thread thread_;
};

class Stream {
 public:
  explicit Stream(int device);
  ~Stream();  // when the work is through

  int device() const { return device_; }
  void queue(Work work, int64_t entries) { channel_->queue(std::move(work), entries, entries_); }
  // Until it is empty.
  void drain(Waiting::Kind kind = Waiting::plain, const std::string& why = "a call waits for a stream") {
    const bool shares = channel_.use_count() > 1;
    channel_->drain(entries_, shares ? Waiting::strict : kind, shares ? why + ", which shares its channel" : why);
  }
  std::shared_ptr<Capture> capture;

 private:
  const int device_;
  const std::shared_ptr<Channel> channel_;
  int64_t entries_ = 0;  // under the channel's mutex
};

Stream& of(cudaStream_t stream);
// Waits for all that the device has to do. Meanwhile nobody else gives it more: their calls wait.
void drain_all(int device, const std::string& why);
// The strict driver: as drain_all, but waits only for what runs.
void may_wait(const char* call);
// This thread's channel waits, while it lives, for an event or a word in memory: nothing of it runs.
class RunsNothing {
 public:
  RunsNothing();
  ~RunsNothing();
  RunsNothing(const RunsNothing&) = delete;
};
// The strict driver, where it loads lazily, does so for the first use of what this names.
void load(int device, uint64_t what, const char* kind);

// Success where this thread may make a call that does not go with a capture of its own (unless a relaxed one), nor, as
// no call does, with being a host function.
cudaError_t allowed();
// Of any call.
cudaError_t allowed_anywhere();
// To the stream, as so many entries of its queue, or to the capture that it takes part in.
cudaError_t add(cudaStream_t stream, Work work, int64_t entries = 1);

int current_device();

}  // namespace trivet::emulation
