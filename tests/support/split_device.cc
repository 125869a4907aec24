#include "tests/support/split_device.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <unistd.h>

#include "tests/support/lazy_stream.h"
#include "tests/support/mapped_ops.h"
#include "tests/support/split_memory.h"

namespace trivet::test {
namespace {

// True if all other threads of the process sleep.
bool others_sleep() {
  const std::string me = std::to_string(gettid());
  std::error_code gone;  // set if a thread ends during the check
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", gone)) {
    if (task.path().filename() == me) continue;
    std::ifstream file(task.path() / "stat");
    std::string text;
    if (!std::getline(file, text)) continue;  // the thread has ended
    const size_t name_end = text.rfind(')');
    if (name_end == std::string::npos || name_end + 2 >= text.size() || text[name_end + 2] != 'S') return false;
  }
  return true;
}

// Once nothing else runs, releases work that nothing waits for: a GPU's streams run without host waits, too.
class Releaser {
 public:
  explicit Releaser(Streams& streams) : thread_([this, &streams](std::stop_token stop) { serve(streams, stop); }) {}

 private:
  void serve(Streams& streams, const std::stop_token& stop) {
    static std::mutex one_at_a_time;
    while (pause(stop)) {
      const std::unique_lock lock(one_at_a_time, std::try_to_lock);
      if (lock && others_sleep() && pause(stop) && others_sleep()) streams.release_one();
    }
  }
  bool pause(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, stop, std::chrono::milliseconds(2), [] { return false; });
    return !stop.stop_requested();
  }

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::jthread thread_;  // last: it starts when all other members exist
};

class SplitDevice : public Device {
 public:
  explicit SplitDevice(bool lazy) : streams_({[lazy](size_t, bool) { return lazy; }}) {}
  explicit SplitDevice(const Hostility& hostility) : streams_(hostility) { releaser_.emplace(streams_); }
  DeviceKind kind() const override { return DeviceKind::cuda; }
  std::string name() const override { return "split-memory test device"; }
  int64_t memory_bytes() const override { return SplitMemory::kBytes; }

  void* allocate(int64_t bytes) override {
    expect_no_capture();
    return memory_.allocate(bytes);
  }
  void deallocate(void* data, int64_t) noexcept override { memory_.deallocate(data); }
  void* allocate_host(int64_t bytes) override {
    expect_no_capture();
    void* const data = Device::allocate_host(bytes);
    spoil(data, bytes);
    return data;
  }
  void deallocate_host(void* data, int64_t bytes) noexcept override {
    spoil(data, bytes);
    Device::deallocate_host(data, bytes);
  }

  std::unique_ptr<Stream> create_compute_stream() override { return std::make_unique<LazyStream>(streams_, true); }
  std::unique_ptr<Stream> create_side_stream(StreamPriority) override {
    return std::make_unique<LazyStream>(streams_, false);
  }
  std::unique_ptr<Event> create_event() override { return std::make_unique<LazyEvent>(streams_); }
  std::unique_ptr<Gate> create_gate() override { return std::make_unique<LazyGate>(streams_); }

  void copy_to_device(const void* host, Tensor to, Stream& stream) override {
    const auto bytes = checked_copy("copy_to_device", host, to, stream);
    stream.run({"copy_to_device", Category::host, to.bytes()},
               [=, to = behind("copy_to_device", to, 2)] { std::memcpy(to.data, host, bytes); });
  }
  void copy_to_host(Tensor from, void* host, Stream& stream) override {
    const auto bytes = checked_copy("copy_to_host", host, from, stream);
    stream.run({"copy_to_host", Category::host, from.bytes()},
               [=, from = behind("copy_to_host", from, 1)] { std::memcpy(host, from.data, bytes); });
  }

  bool captures() const override { return true; }
  std::unique_ptr<Graph> capture(Stream& stream, const std::function<void()>& work) override {
    return std::make_unique<LazyGraph>(own("capture", stream).capture(work));
  }

  Tensor behind(const char* call, const Tensor& tensor, int argument) {
    return memory_.behind(tensor, [&] { return std::string(call) + ": argument " + std::to_string(argument); });
  }
  LazyStream& own(const char* call, Stream& stream) const {
    auto* const mine = dynamic_cast<LazyStream*>(&stream);
    if (!mine || &mine->streams() != &streams_) fail(std::string(call) + ": a stream of another device");
    return *mine;
  }

 private:
  void expect_no_capture() const {
    if (streams_.captures > 0) fail("memory is taken while a stream is captured");
  }
  size_t checked_copy(const char* call, const void* host, const Tensor& tensor, Stream& stream) const {
    own(call, stream);
    if (memory_.touches(host, tensor.bytes())) fail(std::string(call) + ": the host's side is memory of the device");
    return static_cast<size_t>(tensor.bytes());
  }

  SplitMemory memory_;
  Streams streams_;
  std::optional<Releaser> releaser_;  // last: it uses the streams
};

class SplitOps : public MappedOps {
 public:
  SplitOps(SplitDevice& device, int threads) : device_(device), cpu_(create_cpu_ops(threads)) {}

 private:
  class SplitCall : public Call {
   public:
    SplitCall(SplitOps& owner, const char* op, Stream& stream) : owner_(owner), op_(op), stream_(stream) {}
    Tensor map(const Tensor& tensor, Role, int argument) override {
      return owner_.device_.behind(op_, tensor, argument);
    }
    Ops& ops() override { return *owner_.cpu_; }
    Stream& stream() override { return owner_.device_.own(op_, stream_).target(); }

   private:
    SplitOps& owner_;
    const char* const op_;
    Stream& stream_;
  };
  std::unique_ptr<Call> begin_call(const char* op, Stream& stream) override {
    device_.own(op, stream);
    return std::make_unique<SplitCall>(*this, op, stream);
  }

  SplitDevice& device_;
  const std::unique_ptr<Ops> cpu_;
};

}  // namespace

std::unique_ptr<Device> create_split_device(bool lazy) { return std::make_unique<SplitDevice>(lazy); }

std::unique_ptr<Device> create_hostile_device(const Hostility& hostility) {
  return std::make_unique<SplitDevice>(hostility);
}

Tensor behind_split_device(Device& device, const Tensor& tensor) {
  return dynamic_cast<SplitDevice&>(device).behind("the memory behind", tensor, 1);
}

std::unique_ptr<Ops> create_split_ops(Device& device, int threads) {
  auto* const split = dynamic_cast<SplitDevice*>(&device);
  check(split, "create_split_ops needs a device of create_split_device");
  return std::make_unique<SplitOps>(*split, threads);
}

}  // namespace trivet::test
