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

class Stream {
 public:
  explicit Stream(int device);
  ~Stream();  // when the work is through

  int device() const { return device_; }
  void queue(Work work, int64_t entries);
  void drain();  // until it is empty
  std::shared_ptr<Capture> capture;

 private:
  void serve();

  const int device_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<Work, int64_t>> work_;
  int64_t entries_ = 0;  // of all that is queued, with what is done now
  bool busy_ = false, ends_ = false;
  std::thread thread_;
};

Stream& of(cudaStream_t stream);
// Waits for all that the device has to do. Meanwhile nobody else gives it more: their calls wait.
void drain_all(int device);

// Success where this thread may make a call that does not go with a capture of its own (unless a relaxed one), nor, as
// no call does, with being a host function.
cudaError_t allowed();
// Of any call.
cudaError_t allowed_anywhere();
// To the stream, as so many entries of its queue, or to the capture that it takes part in.
cudaError_t add(cudaStream_t stream, Work work, int64_t entries = 1);

int current_device();

}  // namespace trivet::emulation
