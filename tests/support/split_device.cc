#include "tests/support/split_device.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <sys/mman.h>

#include "tests/support/mapped_ops.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(data, size) ((void)(data), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(data, size) ((void)(data), (void)(size))
#endif

namespace trivet::test {
namespace {

// NaN as fp32 and as bf16, and a large number as an integer.
void spoil(void* data, int64_t bytes) {
  constexpr uint16_t kPattern = 0x7fff;
  std::fill_n(static_cast<uint16_t*>(data), bytes / 2, kPattern);
  if (bytes % 2) static_cast<unsigned char*>(data)[bytes - 1] = 0x7f;
}

// ---- memory

// A range of addresses that nobody can use, and the same number of bytes behind it. Any thread.
class SplitMemory {
 public:
  static constexpr int64_t kBytes = int64_t{1} << 30;

  SplitMemory() {
    void* const both = mmap(nullptr, 2 * kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (both == MAP_FAILED) fail("cannot reserve the addresses of a split-memory device");
    front_ = static_cast<std::byte*>(both);
    if (mprotect(front_ + kBytes, kBytes, PROT_READ | PROT_WRITE) != 0) fail("cannot make its memory writable");
  }
  ~SplitMemory() {
    ASAN_UNPOISON_MEMORY_REGION(front_ + kBytes, static_cast<size_t>(high_water_));
    munmap(front_, 2 * kBytes);
  }
  SplitMemory(const SplitMemory&) = delete;
  SplitMemory& operator=(const SplitMemory&) = delete;

  void* allocate(int64_t bytes) {
    std::lock_guard lock(mutex_);
    const int64_t room = (bytes + kGuard + kAlignment - 1) / kAlignment * kAlignment;
    int64_t begin = 0;  // of the first gap that is large enough
    for (const auto& [at, block] : blocks_) {
      if (at - begin >= room) break;
      begin = at + block.room;
    }
    if (begin + room > kBytes)
      fail("cannot allocate " + std::to_string(bytes) + " bytes on the split-memory test device");
    blocks_[begin] = {bytes, room};
    high_water_ = std::max(high_water_, begin + room);
    std::byte* const behind = front_ + kBytes + begin;
    ASAN_UNPOISON_MEMORY_REGION(behind, static_cast<size_t>(bytes));
    ASAN_POISON_MEMORY_REGION(behind + bytes, static_cast<size_t>(room - bytes));
    spoil(behind, bytes);
    return front_ + begin;
  }

  void deallocate(void* data) noexcept {
    std::lock_guard lock(mutex_);
    const auto block = blocks_.find(static_cast<std::byte*>(data) - front_);
    if (block == blocks_.end()) return;
    std::byte* const behind = static_cast<std::byte*>(data) + kBytes;
    spoil(behind, block->second.bytes);
    ASAN_POISON_MEMORY_REGION(behind, static_cast<size_t>(block->second.bytes));
    blocks_.erase(block);
  }

  // Whether any of these bytes has an address of the device, in a block or not.
  bool touches(const void* data, int64_t bytes) const {
    const auto begin = reinterpret_cast<uintptr_t>(data), front = reinterpret_cast<uintptr_t>(front_);
    return begin < front + 2 * kBytes && begin + static_cast<uintptr_t>(bytes) > front;
  }

  // The tensor behind one of this device. `what` gives its place in the call, for the Error.
  template <class What>
  Tensor behind(const Tensor& tensor, const What& what) {
    std::lock_guard lock(mutex_);
    if (touches(tensor.data, std::max<int64_t>(tensor.bytes(), 1))) {
      const int64_t begin = static_cast<std::byte*>(tensor.data) - front_;
      const auto next = blocks_.upper_bound(begin);
      if (next != blocks_.begin())
        if (const auto& [at, block] = *std::prev(next); begin + tensor.bytes() <= at + block.bytes)
          return {front_ + kBytes + begin, tensor.dtype, tensor.shape};
    }
    fail(what() + ", " + to_string(tensor.shape) + " " + name_of(tensor.dtype) +
         ", is not inside a block of the device's memory");
  }

 private:
  static constexpr int64_t kAlignment = 256, kGuard = 64;
  struct Block {
    int64_t bytes, room;
  };
  std::byte* front_ = nullptr;
  std::mutex mutex_;
  std::map<int64_t, Block> blocks_;  // by offset
  int64_t high_water_ = 0;
};

// ---- streams: what is queued is held back here, and handed on to a stream of the CPU's when somebody waits for it

class LazyStream;

// A record of an event, to wait for.
struct Record {
  std::shared_ptr<Event> event;  // of the CPU's device
  LazyStream* holder = nullptr;  // null: handed on
  int64_t number = 0;            // how many items of the holder end with it
};

// Shared by the streams of a device. One lock for all: handing on one stream's items hands on those of others.
struct Streams {
  explicit Streams(bool hold_back) : lazy(hold_back) {}
  const bool lazy;
  const std::unique_ptr<Device> cpu = create_cpu_device();
  std::atomic<int> captures = 0;  // under way
  std::mutex mutex;
};

class LazyEvent : public Event {
 public:
  explicit LazyEvent(Streams& streams) : streams_(streams) {}
  void synchronize() override {
    if (const auto record = demand()) record->event->synchronize();
  }
  bool done() override {
    const auto record = demand();
    return !record || record->event->done();
  }

 private:
  friend LazyStream;
  std::shared_ptr<Record> demand();

  Streams& streams_;
  std::shared_ptr<Record> last_;  // under the lock
};

// What a graph is made of: host functions, each of which can be called again.
class Recording : public Stream {
 public:
  void record(Event&) override { fail("an event is recorded while its stream is captured"); }
  void wait(Event&) override { fail("an event is waited for while its stream is captured"); }
  void synchronize() override { fail("a stream is waited for while it is captured"); }
  void play() const {
    for (const auto& function : functions_) function();
  }

 protected:
  void enqueue(std::function<void()> work) override { functions_.push_back(std::move(work)); }

 private:
  std::vector<std::function<void()>> functions_;
};

class LazyStream : public Stream {
 public:
  explicit LazyStream(Streams& streams)
      : streams_(streams), cpu_(streams.cpu->create_side_stream(StreamPriority::normal)) {}
  ~LazyStream() override {
    std::lock_guard lock(streams_.mutex);
    hand_on(queued_);
  }

  void record(Event& event) override {
    begin_item();
    LazyEvent& mine = own(event);
    std::lock_guard lock(streams_.mutex);
    const auto record = std::make_shared<Record>(streams_.cpu->create_event(), this, queued_ + 1);
    mine.last_ = record;
    push([this, record] {
      cpu_->record(*record->event);
      record->holder = nullptr;
    });
  }
  void wait(Event& event) override {
    begin_item();
    LazyEvent& theirs = own(event);
    std::lock_guard lock(streams_.mutex);
    if (!theirs.last_) return;
    push([this, record = theirs.last_] {
      demand(*record);
      cpu_->wait(*record->event);
    });
  }
  void synchronize() override {
    begin_item();
    {
      std::lock_guard lock(streams_.mutex);
      hand_on(queued_);
    }
    try {
      cpu_->synchronize();
    } catch (...) {
      std::lock_guard lock(streams_.mutex);
      error_ = std::current_exception();
      throw;
    }
  }

  Streams& streams() const { return streams_; }
  // Where operations are queued: here, or, while the stream is captured, in what keeps them.
  Stream& target() {
    settle();
    return recording_ ? static_cast<Stream&>(*recording_) : *this;
  }
  std::shared_ptr<const Recording> capture(const std::function<void()>& work) {
    begin_item();
    const auto recording = std::make_shared<Recording>();
    recording_ = recording.get();
    ++streams_.captures;
    const auto end = [this] {
      recording_ = nullptr;
      --streams_.captures;
    };
    try {
      work();
    } catch (...) {
      end();
      throw;
    }
    end();
    return recording;
  }
  // Hands on all up to the record. REQUIRES: the lock.
  static void demand(const Record& record) {
    if (record.holder) record.holder->hand_on(record.number);
  }

 protected:
  void enqueue(std::function<void()> work) override {
    begin_item();
    std::lock_guard lock(streams_.mutex);
    if (error_) std::rethrow_exception(error_);
    push([this, work = std::move(work)]() mutable {
      try {
        cpu_->run({"handed on"}, std::move(work));
      } catch (...) {  // earlier work has thrown
        error_ = std::current_exception();
      }
    });
  }

 private:
  LazyEvent& own(Event& event) const {
    auto* const mine = dynamic_cast<LazyEvent*>(&event);
    if (!mine || &mine->streams_ != &streams_) fail("an event of another device");
    return *mine;
  }
  void begin_item() {
    if (recording_) fail("a stream is used while it is captured");
    settle();
  }
  void push(std::function<void()> item) {
    items_.push_back(std::move(item));
    ++queued_;
    if (!streams_.lazy) hand_on(queued_);
  }
  void hand_on(int64_t number) {
    while (queued_ - static_cast<int64_t>(items_.size()) < number) {
      const auto item = std::move(items_.front());
      items_.pop_front();
      item();
    }
  }

  Streams& streams_;
  std::deque<std::function<void()>> items_;
  int64_t queued_ = 0;
  std::exception_ptr error_;
  Recording* recording_ = nullptr;  // while the stream is captured
  const std::unique_ptr<Stream> cpu_;
};

class LazyGraph : public Graph {
 public:
  explicit LazyGraph(std::shared_ptr<const Recording> recording) : recording_(std::move(recording)) {}
  void launch(Stream& stream) override {
    stream.run({"graph"}, [recording = recording_] { recording->play(); });
  }

 private:
  const std::shared_ptr<const Recording> recording_;
};

std::shared_ptr<Record> LazyEvent::demand() {
  std::lock_guard lock(streams_.mutex);
  if (last_) LazyStream::demand(*last_);
  return last_;
}

// ---- the device and its operations

class SplitDevice : public Device {
 public:
  explicit SplitDevice(bool lazy) : streams_(lazy) {}
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

  std::unique_ptr<Stream> create_compute_stream() override { return std::make_unique<LazyStream>(streams_); }
  std::unique_ptr<Stream> create_side_stream(StreamPriority) override { return std::make_unique<LazyStream>(streams_); }
  std::unique_ptr<Event> create_event() override { return std::make_unique<LazyEvent>(streams_); }
  std::unique_ptr<Gate> create_gate() override { return streams_.cpu->create_gate(); }  // it queues a host function

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
};

class SplitOps : public MappedOps {
 public:
  SplitOps(SplitDevice& device, int threads) : device_(device), cpu_(create_cpu_ops(threads)) {}

 private:
  class SplitCall : public Call {
   public:
    SplitCall(SplitOps& owner, const char* op, Stream& stream) : owner_(owner), op_(op), stream_(stream) {}
    Tensor map(const Tensor& tensor, int argument) override { return owner_.device_.behind(op_, tensor, argument); }
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

std::unique_ptr<Ops> create_split_ops(Device& device, int threads) {
  auto* const split = dynamic_cast<SplitDevice*>(&device);
  check(split, "create_split_ops needs a device of create_split_device");
  return std::make_unique<SplitOps>(*split, threads);
}

}  // namespace trivet::test
