#include "kernels/base/device.h"

namespace trivet {
namespace {

class PlanningEvent : public Event {
 public:
  void synchronize() override {}
  bool done() override { return true; }
};

class PlanningStream : public Stream {
 public:
  void record(Event&) override {}
  void wait(Event&) override {}
  void synchronize() override {}

 protected:
  void enqueue(std::function<void()>) override {}
};

class PlanningDevice : public Device {
 public:
  DeviceKind kind() const override { return DeviceKind::cuda; }  // not host memory: nothing may touch it
  std::string name() const override { return "plan"; }
  int64_t memory_bytes() const override { return 0; }
  void* allocate(int64_t bytes) override {
    void* const address = reinterpret_cast<void*>(next_);
    next_ += (static_cast<uintptr_t>(bytes) + kAlignment - 1) / kAlignment * kAlignment;
    return address;
  }
  void deallocate(void*, int64_t) noexcept override {}
  void* allocate_host(int64_t bytes) override { return allocate(bytes); }
  void deallocate_host(void*, int64_t) noexcept override {}
  std::unique_ptr<Stream> create_compute_stream() override { return std::make_unique<PlanningStream>(); }
  std::unique_ptr<Stream> create_side_stream(StreamPriority) override { return std::make_unique<PlanningStream>(); }
  std::unique_ptr<Event> create_event() override { return std::make_unique<PlanningEvent>(); }
  void copy_to_device(const void*, Tensor, Stream&) override {}
  void copy_to_host(Tensor, void*, Stream&) override { fail("a planning device holds nothing"); }

 private:
  static constexpr uintptr_t kAlignment = 256;
  uintptr_t next_ = kAlignment;
};

}  // namespace

std::unique_ptr<Device> create_planning_device() { return std::make_unique<PlanningDevice>(); }

}  // namespace trivet
