// Host tensors for a device's communicator: each call copies its tensors to the device, makes the call, and copies all
// of them back. So the common cases (comm_cases.h) run on back ends whose tensors the host cannot access.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "kernels/base/device.h"
#include "parallel/comm/comm.h"

namespace trivet {

// Device memory reused from call to call. It is freed after all calls: freeing waits for the whole GPU, including a
// stream on which another rank waits for this rank's next call.
class TwinMemory {
 public:
  explicit TwinMemory(Device& device) : device_(device) {}
  ~TwinMemory() {
    for (const auto& [bytes, data] : free_) device_.deallocate(data, bytes);
  }
  TwinMemory(const TwinMemory&) = delete;

  void* take(int64_t bytes) {
    {
      std::lock_guard lock(mutex_);
      if (const auto found = free_.find(bytes); found != free_.end()) {
        void* const data = found->second;
        free_.erase(found);
        return data;
      }
    }
    return device_.allocate(bytes);
  }
  void give_back(void* data, int64_t bytes) {
    std::lock_guard lock(mutex_);
    free_.emplace(bytes, data);
  }

 private:
  Device& device_;
  std::mutex mutex_;
  std::multimap<int64_t, void*> free_;  // by size
};

class ThroughDevice : public HostBackEnd {
 public:
  ThroughDevice(Communicator& comm, std::unique_ptr<Communicator> owned, Device& device,
                std::shared_ptr<TwinMemory> memory)
      : HostBackEnd(comm.group()), owned_(std::move(owned)), comm_(comm), device_(device), memory_(std::move(memory)) {
    stream_->set_trace_row(&row_);
  }

  void barrier() override { comm_.barrier(); }
  std::shared_ptr<CommBackEnd> split(const std::vector<int>& members, CommGroup part) override {
    auto group = comm_.split(members, part.name, part.category);
    if (!group) return nullptr;
    Communicator& comm = *group;
    return std::make_shared<ThroughDevice>(comm, std::move(group), device_, memory_);
  }
  void abort(const std::string& why) noexcept override { comm_.abort(why); }
  Failure failure() const override { return comm_.failure(); }

 protected:
  void move(const Call& call, const CallSignature&, SpanClock& clock) override {
    Twins on(device_, *memory_, *stream_);
    Call there = call;
    const bool out_first = call.kind == CommCall::all_gather;  // `in` may be a part of it
    if (out_first) there.out = on(call.out);
    if (call.in) there.in = on(call.in);
    if (call.out && !out_first) there.out = on(call.out);
    comm_.call(there, *stream_);
    on.bring_back();
    row_.take(spans_);
    for (const Span& span : spans_)
      if (is_comm(span.info.category)) {
        if (span.wire_end_ns > span.wire_start_ns) clock.set_wire(span.wire_start_ns, span.wire_end_ns);
        clock.set_transfer_id(span.transfer_id);
      }
  }
  void failed(const std::exception&) noexcept override {}

 private:
  // Device copies of one call's tensors.
  class Twins {
   public:
    Twins(Device& device, TwinMemory& memory, Stream& stream) : device_(device), memory_(memory), stream_(stream) {}
    ~Twins() {
      try {
        stream_.synchronize();
      } catch (...) {  // bring_back() has thrown already
      }
      for (const Twin& twin : twins_) memory_.give_back(twin.device.data, twin.host.bytes());
    }
    Twins(const Twins&) = delete;
    Twins& operator=(const Twins&) = delete;

    Tensor operator()(const Tensor& host) {
      if (host.bytes() == 0) return host;
      const auto bytes_of = [](const Tensor& t) { return static_cast<std::byte*>(t.data); };
      for (const Twin& twin : twins_) {
        const auto offset = bytes_of(host) - bytes_of(twin.host);
        if (offset >= 0 && offset + host.bytes() <= twin.host.bytes())
          return {bytes_of(twin.device) + offset, host.dtype, host.shape};
      }
      const Tensor device{memory_.take(host.bytes()), host.dtype, host.shape};
      device_.copy_to_device(host.data, device, stream_);
      return twins_.push_back({host, device}), device;
    }
    void bring_back() {
      for (const Twin& twin : twins_) device_.copy_to_host(twin.device, twin.host.data, stream_);
      stream_.synchronize();
    }

   private:
    struct Twin {
      Tensor host, device;
    };
    Device& device_;
    TwinMemory& memory_;
    Stream& stream_;
    std::deque<Twin> twins_;
  };

  const std::unique_ptr<Communicator> owned_;
  Communicator& comm_;
  Device& device_;
  const std::shared_ptr<TwinMemory> memory_;  // shared with groups split from this one
  TraceRow row_{"on the device"};
  std::vector<Span> spans_;
  const std::unique_ptr<Stream> stream_ = device_.create_side_stream(StreamPriority::normal);
};

// Wraps `comm`, which must outlive the result.
inline Communicator through_device(Communicator& comm, Device& device) {
  return Communicator(std::make_shared<ThroughDevice>(comm, nullptr, device, std::make_shared<TwinMemory>(device)));
}

}  // namespace trivet
