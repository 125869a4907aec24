// Host tensors for a communicator of a device: each call copies its tensors there, makes the call, and copies all of
// them back. So the common cases (comm_cases.h) can be run over back ends whose tensors the host cannot touch.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "kernels/base/device.h"
#include "parallel/comm/comm.h"

namespace trivet {

// Memory of a device for one call after the other. It goes back when all calls are over: giving memory back waits for
// the whole GPU, also for the stream of a rank beside this one that waits for this one's next call.
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

class CommThroughDevice : public Communicator {
 public:
  CommThroughDevice(Communicator& comm, Device& device)
      : comm_(comm), device_(device), memory_(std::make_shared<TwinMemory>(device)) {}
  CommThroughDevice(std::unique_ptr<Communicator> comm, Device& device, std::shared_ptr<TwinMemory> memory = nullptr)
      : owned_(std::move(comm)),
        comm_(*owned_),
        device_(device),
        memory_(memory ? std::move(memory) : std::make_shared<TwinMemory>(device)) {}

  int rank() const override { return comm_.rank(); }
  int size() const override { return comm_.size(); }
  void all_reduce(Tensor full, Reduce op, Stream& stream) override {
    run(stream, [=, this](Twins& on, Stream& s) { comm_.all_reduce(on(full), op, s); });
  }
  void reduce_scatter(Tensor full, Tensor shard, Reduce op, Stream& stream) override {
    run(stream, [=, this](Twins& on, Stream& s) {
      const Tensor all = on(full);  // first: the shard may be a part of it
      comm_.reduce_scatter(all, on(shard), op, s);
    });
  }
  void all_gather(Tensor shard, Tensor full, Stream& stream) override {
    run(stream, [=, this](Twins& on, Stream& s) {
      const Tensor all = on(full);
      comm_.all_gather(on(shard), all, s);
    });
  }
  void broadcast(Tensor data, int root, Stream& stream) override {
    run(stream, [=, this](Twins& on, Stream& s) { comm_.broadcast(on(data), root, s); });
  }
  void send(Tensor data, int to, Stream& stream) override {
    run(stream, [=, this](Twins& on, Stream& s) { comm_.send(on(data), to, s); });
  }
  void recv(Tensor data, int from, Stream& stream) override {
    run(stream, [=, this](Twins& on, Stream& s) { comm_.recv(on(data), from, s); });
  }
  void exchange(Tensor out, int to, Tensor in, int from, Stream& stream) override {
    run(stream, [=, this](Twins& on, Stream& s) { comm_.exchange(on(out), to, on(in), from, s); });
  }
  void barrier() override { comm_.barrier(); }
  std::unique_ptr<Communicator> split(int color, int key, std::string name, Category category) override {
    return std::make_unique<CommThroughDevice>(comm_.split(color, key, std::move(name), category), device_, memory_);
  }
  void abort(const std::string& why) noexcept override { comm_.abort(why); }

 private:
  // The tensors of one call, on the device.
  class Twins {
   public:
    Twins(Device& device, TwinMemory& memory, Stream& stream) : device_(device), memory_(memory), stream_(stream) {}
    ~Twins() {
      try {
        stream_.synchronize();
      } catch (...) {  // run() has thrown it
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

  template <class Call>
  void run(Stream& stream, const Call& call) {
    stream.run({"through the device", Category::host}, [this, call, row = stream.trace_row()] {
      stream_->set_trace_row(row);
      Twins twins(device_, *memory_, *stream_);
      call(twins, *stream_);
      twins.bring_back();
    });
  }

  const std::unique_ptr<Communicator> owned_;
  Communicator& comm_;
  Device& device_;
  const std::shared_ptr<TwinMemory> memory_;  // also of the groups that are split from this one
  const std::unique_ptr<Stream> stream_ = device_.create_side_stream(StreamPriority::normal);
};

}  // namespace trivet
