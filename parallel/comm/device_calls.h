// DeviceCalls: tracks the calls on a device's streams with an event before and after each, for the flight recorder,
// which polls the events when it is read.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kernels/base/device.h"
#include "parallel/comm/flight_recorder.h"

namespace trivet {

class DeviceCalls {
 public:
  // Both must outlive this.
  DeviceCalls(FlightRecorder& recorder, Device& device);
  ~DeviceCalls();
  DeviceCalls(const DeviceCalls&) = delete;
  DeviceCalls& operator=(const DeviceCalls&) = delete;

  // Queues call() on the stream and tracks it. slot: returned by FlightRecorder::enqueue().
  void run(int slot, Stream& stream, const std::function<void()>& call);
  // The operand of an injected extra call.
  Tensor extra();
  // Names the call that has been running the longest, and marks all calls as failed. Any thread.
  std::string end_calls();

 private:
  struct Followed {
    int slot = -1;
    bool started = false, queued = false;  // queued: the whole call, including the event `ended`
    std::unique_ptr<Event> begun, ended;
  };

  // Tells the recorder which calls have begun or ended since the last poll. Any thread.
  void poll();
  bool is_over(Followed& call);

  FlightRecorder& recorder_;
  Device& device_;
  void* extra_ = nullptr;
  std::mutex mutex_;
  std::map<const Stream*, std::deque<Followed>> under_way_;  // in the order in which they were queued
  std::vector<Followed> free_;
};

}  // namespace trivet
