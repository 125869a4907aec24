// The streams of a split device (split_device.h): work is held back here, and released to a stream of the CPU device
// when something waits for it.
#pragma once

#include <algorithm>
#include <atomic>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "kernels/base/device.h"
#include "tests/support/split_device.h"

namespace trivet::test {

class LazyStream;

// A recorded event to wait for.
struct Record {
  std::shared_ptr<Event> event;  // of the CPU device
  LazyStream* holder = nullptr;  // null: released
  int64_t number = 0;            // the holder's items up to and including it
};

// Shared by the streams of a device. One lock for all: releasing one stream's items releases what these wait for.
struct Streams {
  explicit Streams(const Hostility& given) : hostile(given) {}
  const Hostility hostile;
  const std::unique_ptr<Device> cpu = create_cpu_device();
  std::atomic<int> captures = 0;  // in progress
  std::mutex mutex;
  std::vector<LazyStream*> all;  // in order of creation; guarded by `mutex`
  size_t made = 0;

  bool skips(void* caller) const { return hostile.skips && hostile.skips(caller); }
  // Releases the work that one stream holds back; false: no stream holds any.
  bool release_one();
};

class LazyEvent : public Event {
 public:
  explicit LazyEvent(Streams& streams) : streams_(streams) {}
  void synchronize() override {
    if (streams_.skips(__builtin_return_address(0))) return;
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
  std::shared_ptr<Record> last_;  // guarded by the lock
};

// The content of a graph: host functions, each of which can be called repeatedly.
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
  LazyStream(Streams& streams, bool computes)
      : streams_(streams), cpu_(streams.cpu->create_side_stream(StreamPriority::normal)) {
    std::lock_guard lock(streams_.mutex);
    const size_t number = streams_.made++;
    lazy_ = streams_.hostile.holds_back(number, computes);
    rests_ = streams_.hostile.rests && streams_.hostile.rests(number, computes);
    streams_.all.push_back(this);
  }
  ~LazyStream() override {
    std::lock_guard lock(streams_.mutex);
    std::erase(streams_.all, this);
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
    if (streams_.skips(__builtin_return_address(0))) return;
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
    if (streams_.skips(__builtin_return_address(0))) return;
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
  // Where operations are queued: here, or, during capture, in the recording.
  Stream& target() {
    flush();
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
  // Releases everything held back; false: nothing was held back. REQUIRES: the lock.
  bool release() {
    if (items_.empty()) return false;
    hand_on(queued_);
    return true;
  }
  // Releases everything up to the record. REQUIRES: the lock.
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
        if (rests_) cpu_->run({"rest"}, [] { std::this_thread::sleep_for(std::chrono::microseconds(30)); });
        cpu_->run({"handed on"}, std::move(work));
      } catch (...) {  // earlier work threw
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
    flush();
  }
  void push(std::function<void()> item) {
    items_.push_back(std::move(item));
    ++queued_;
    if (!lazy_) hand_on(queued_);
  }
  void hand_on(int64_t number) {
    while (queued_ - static_cast<int64_t>(items_.size()) < number) {
      const auto item = std::move(items_.front());
      items_.pop_front();
      item();
    }
  }

  Streams& streams_;
  bool lazy_, rests_;
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

// A gate of the CPU device whose wait can be skipped.
class LazyGate : public Gate {
 public:
  explicit LazyGate(Streams& streams) : streams_(streams), gate_(streams.cpu->create_gate()) {}
  void wait(Stream& stream) override {
    if (!streams_.skips(__builtin_return_address(0))) gate_->wait(stream);  // queues a host function
  }
  void open() override { gate_->open(); }

 private:
  Streams& streams_;
  const std::unique_ptr<Gate> gate_;
};

inline bool Streams::release_one() {
  std::lock_guard lock(mutex);
  return std::ranges::any_of(all, [](LazyStream* stream) { return stream->release(); });
}

inline std::shared_ptr<Record> LazyEvent::demand() {
  std::lock_guard lock(streams_.mutex);
  if (last_) LazyStream::demand(*last_);
  return last_;
}

}  // namespace trivet::test
