// The CPU as a Device: host memory, worker threads as streams.
#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <fstream>
#include <new>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>

#include "base/host_memory.h"
#include "kernels/base/device.h"

namespace trivet {
namespace {

// Counts records: `recorded` by the feeding thread, `completed` by the stream that reached them. Queued work shares the
// state, so an event may be destroyed, or recorded again, while a stream has yet to reach it.
struct EventState {
  std::mutex mutex;
  std::condition_variable changed;
  uint64_t recorded = 0, completed = 0;
  std::exception_ptr error;

  uint64_t add_record() {
    std::lock_guard lock(mutex);
    return ++recorded;
  }
  uint64_t last_record() {
    std::lock_guard lock(mutex);
    return recorded;
  }
  void complete(uint64_t ticket, std::exception_ptr failure = nullptr) {
    std::lock_guard lock(mutex);
    completed = std::max(completed, ticket);
    if (failure && !error) error = failure;
    changed.notify_all();
  }
  void wait_for(uint64_t ticket) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return completed >= ticket; });
    if (error) std::rethrow_exception(error);
  }
};

class CpuEvent : public Event {
 public:
  void synchronize() override { state->wait_for(state->last_record()); }
  bool done() override {
    std::lock_guard lock(state->mutex);
    return state->completed >= state->recorded;
  }

  const std::shared_ptr<EventState> state = std::make_shared<EventState>();
};

const std::shared_ptr<EventState>& state_of(Event& event) { return static_cast<CpuEvent&>(event).state; }

class InlineStream : public Stream {
 public:
  InlineStream() { inline_ = true; }
  void record(Event& event) override {
    const auto& state = state_of(event);
    state->complete(state->add_record());
  }
  void wait(Event& event) override { event.synchronize(); }
  void synchronize() override {}

 protected:
  void enqueue(std::function<void()> work) override { work(); }
};

class WorkerStream : public Stream {
 public:
  WorkerStream() : thread_([this] { loop(); }) {}
  ~WorkerStream() override {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  void record(Event& event) override {
    const auto state = state_of(event);
    const uint64_t ticket = state->add_record();
    push([state, ticket](std::exception_ptr error) { state->complete(ticket, error); });
  }
  void wait(Event& event) override {
    const auto state = state_of(event);
    const uint64_t ticket = state->last_record();
    push([state, ticket](std::exception_ptr error) {
      if (!error) state->wait_for(ticket);
    });
  }
  void synchronize() override {
    std::unique_lock lock(mutex_);
    drained_.wait(lock, [&] { return queue_.empty() && !busy_; });
    if (error_) std::rethrow_exception(error_);
  }

 protected:
  void enqueue(std::function<void()> work) override {
    {
      std::lock_guard lock(mutex_);
      if (error_) std::rethrow_exception(error_);
    }
    push([work = std::move(work)](std::exception_ptr error) {
      if (!error) work();
    });
  }

 private:
  using Item = std::function<void(std::exception_ptr)>;  // receives the error that poisons the stream, if any
  void push(Item item) {
    {
      std::lock_guard lock(mutex_);
      queue_.push_back(std::move(item));
    }
    changed_.notify_all();
  }
  void loop() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
      if (queue_.empty()) return;  // stopping, and all work is done
      Item item = std::move(queue_.front());
      queue_.pop_front();
      busy_ = true;
      std::exception_ptr error = error_;
      lock.unlock();
      try {
        item(error);
      } catch (...) {
        error = std::current_exception();
      }
      item = nullptr;
      lock.lock();
      busy_ = false;
      if (error && !error_) error_ = error;
      if (queue_.empty()) drained_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_, drained_;
  std::deque<Item> queue_;
  std::exception_ptr error_;
  bool busy_ = false, stopping_ = false;
  std::thread thread_;  // last, so that it starts once the other members exist
};

class CpuGate : public Gate {
 public:
  void wait(Stream& stream) override {
    stream.run({"gate", Category::host}, [state = state_, turn = ++waits_] { state->wait_for(turn); });
  }
  void open() override { state_->complete(state_->add_record()); }

 private:
  const std::shared_ptr<EventState> state_ = std::make_shared<EventState>();
  uint64_t waits_ = 0;
};

class CpuDevice : public Device {
 public:
  DeviceKind kind() const override { return DeviceKind::cpu; }
  std::string name() const override {
    std::ifstream cpuinfo("/proc/cpuinfo");
    for (std::string line; std::getline(cpuinfo, line);)
      if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
    return "CPU";
  }
  int64_t memory_bytes() const override {
    return static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  }

  void* allocate(int64_t bytes) override {
    // Large blocks ask for huge pages: GEMM walks many rows, and 4 KiB pages cost TLB misses.
    const size_t alignment = bytes >= kHugePage ? kHugePage : 256, size = padded(bytes, alignment);
    void* data = std::aligned_alloc(alignment, size);
    if (!data)
      throw ConfigError(
          "cannot allocate " + std::to_string(bytes) + " bytes of host memory; " + to_string(memory_limit()),
          Lack::memory);
    if (bytes >= kHugePage) {
      madvise(data, size, MADV_HUGEPAGE);
      madvise(data, size, MADV_DONTDUMP);  // core dumps need not contain the weights
    }
    return data;
  }
  void deallocate(void* data, int64_t bytes) noexcept override {
    if (bytes >= kHugePage) madvise(data, padded(bytes, kHugePage), MADV_DODUMP);
    std::free(data);
  }
  void* allocate_host(int64_t bytes) override { return allocate(bytes); }
  void deallocate_host(void* data, int64_t bytes) noexcept override { deallocate(data, bytes); }

  std::unique_ptr<Stream> create_compute_stream() override { return std::make_unique<InlineStream>(); }
  std::unique_ptr<Stream> create_side_stream(StreamPriority) override { return std::make_unique<WorkerStream>(); }
  std::unique_ptr<Event> create_event() override { return std::make_unique<CpuEvent>(); }
  std::unique_ptr<Gate> create_gate() override { return std::make_unique<CpuGate>(); }

  void copy_to_device(const void* host, Tensor to, Stream& stream) override {
    stream.run({"copy_to_device", Category::host, to.bytes()},
               [=] { std::memcpy(to.data, host, static_cast<size_t>(to.bytes())); });
  }
  void copy_to_host(Tensor from, void* host, Stream& stream) override {
    stream.run({"copy_to_host", Category::host, from.bytes()},
               [=] { std::memcpy(host, from.data, static_cast<size_t>(from.bytes())); });
  }

 private:
  static constexpr int64_t kHugePage = 2 << 20;
  static size_t padded(int64_t bytes, size_t alignment) {
    return (static_cast<size_t>(bytes) + alignment - 1) / alignment * alignment;
  }
};

}  // namespace

void* Device::allocate_host(int64_t bytes) {
  return ::operator new (static_cast<size_t>(bytes), std::align_val_t{256});
}
void Device::deallocate_host(void* data, int64_t) noexcept { ::operator delete (data, std::align_val_t{256}); }

std::unique_ptr<Graph> Device::capture(Stream&, const std::function<void()>&) { fail(name() + " has no graphs"); }

std::unique_ptr<Device> create_cpu_device() { return std::make_unique<CpuDevice>(); }

}  // namespace trivet
