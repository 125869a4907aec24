// DeviceCalls: the calls of one rank that are on its device's streams, each between two events. The streams are not
// stopped for it: the flight recorder is told what has begun and ended when it is asked.
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
  // Both outlive it.
  DeviceCalls(FlightRecorder& recorder, Device& device);
  ~DeviceCalls();
  DeviceCalls(const DeviceCalls&) = delete;
  DeviceCalls& operator=(const DeviceCalls&) = delete;

  // Queues call() on the stream and follows it; `slot` is FlightRecorder::enqueue's.
  void run(int slot, Stream& stream, const std::function<void()>& call);
  // What an injected call too many is made with.
  Tensor extra();
  // Names the call that has been under way for longest. Whatever is queued counts as failed from here on. Any thread.
  std::string end_calls();

 private:
  struct Followed {
    int slot = -1;
    bool started = false, queued = false;  // queued: all of it, `ended` too
    std::unique_ptr<Event> begun, ended;
  };

  // Tells the recorder what has begun or ended since the last look. Any thread.
  void look();
  bool is_over(Followed& call);

  FlightRecorder& recorder_;
  Device& device_;
  void* extra_ = nullptr;
  std::mutex mutex_;
  std::map<const Stream*, std::deque<Followed>> under_way_;  // in the order in which they were queued
  std::vector<Followed> free_;
};

}  // namespace trivet
