#include "parallel/comm/staged_comm.h"

#include <algorithm>
#include <mutex>
#include <vector>

#include "base/piece.h"

namespace trivet {
namespace {

// Elements [first, first + count), as a 1-D tensor.
Tensor flat(const Tensor& whole, int64_t first, int64_t count) {
  return {static_cast<std::byte*>(whole.data) + first * size_of(whole.dtype), whole.dtype, {count}};
}

// Pinned memory for a group and all groups split from it, freed when the last of them ends. Freeing it synchronises
// all streams of the GPU, and allocating it may too (CUDA's guide: implicit synchronization). During a run that could
// deadlock: another rank's stream on the same GPU may wait for work that this rank or a third one has yet to queue.
class Pinned {
 public:
  HostBuffer& add_buffer(Device& device, int64_t bytes) {
    std::lock_guard lock(mutex_);
    return *buffers_.emplace_back(std::make_unique<HostBuffer>(device, bytes));
  }
  Gate& add_gate(Device& device) {
    std::lock_guard lock(mutex_);
    return *gates_.emplace_back(device.create_gate());
  }

 private:
  std::mutex mutex_;  // groups may be used by different threads
  std::vector<std::unique_ptr<HostBuffer>> buffers_;
  std::vector<std::unique_ptr<Gate>> gates_;
};

class StagedBackEnd : public DeviceBackEnd {
 public:
  StagedBackEnd(std::shared_ptr<Communicator> inner, Device& device, std::shared_ptr<Pinned> pinned)
      : DeviceBackEnd(inner->group(), device), inner_(std::move(inner)), pinned_(std::move(pinned)) {
    if (group.size() > 1) buffer(kFirstBytes);
  }

  void enqueue(std::span<const Call> calls, Stream& stream) override {
    for (const Call& call : calls) enqueue(call, stream);
  }

  void prepare(const Call& call) override { buffer(call.whole().bytes()); }

  void barrier() override {
    worker_->synchronize();  // one thread at a time uses inner_
    inner_->barrier();
  }
  std::shared_ptr<CommBackEnd> split(const std::vector<int>& members, CommGroup part) override {
    worker_->synchronize();
    auto inner = inner_->split(members, part.name, part.category);
    return inner ? std::make_shared<StagedBackEnd>(std::move(inner), device, pinned_) : nullptr;
  }
  void abort(const std::string& why) noexcept override { inner_->abort(why); }
  Failure failure() const override { return inner_->failure(); }

 private:
  // The first error: shared with work still queued on streams.
  struct Outcome {
    std::mutex mutex;
    std::exception_ptr error;

    void fail(std::exception_ptr failure) {
      std::lock_guard lock(mutex);
      if (!error) error = failure;
    }
    void rethrow() {
      std::lock_guard lock(mutex);
      if (error) std::rethrow_exception(error);
    }
  };

  // Host memory, shared by all calls: on a stream, a call's first copy starts after the previous call's copy back.
  void* buffer(int64_t bytes) {
    if (!buffer_ || buffer_->bytes() < bytes)
      buffer_ = &pinned_->add_buffer(device, std::max(bytes, buffer_ ? 2 * buffer_->bytes() : 0));
    return buffer_->data();
  }

  // The same call on host memory, where a shard lies at its place within the whole tensor.
  Call on_host(const Call& call) {
    Call host = call;
    const bool reduces = call.kind == CommCall::reduce_scatter, gathers = call.kind == CommCall::all_gather;
    auto* const memory = static_cast<std::byte*>(buffer(call.whole().bytes()));
    const auto shard = [&](const Tensor& x) { return memory + group.rank * x.bytes(); };
    if (call.in) host.in.data = gathers ? shard(call.in) : memory;
    if (call.out) host.out.data = reduces ? shard(call.out) : memory;
    return host;
  }

  // Skips what the call did not change: a rank's own shard in an in-place gather, and the root's tensor in a broadcast.
  void copy_back(const Call& call, const Call& host, Stream& stream) {
    const auto copy = [&](int64_t first, int64_t count) {
      const Tensor from = flat(host.out, first, count), to = flat(call.out, first, count);
      if (to.bytes() > 0) device.copy_to_device(from.data, to, stream);
    };
    if (!call.out || (call.kind == CommCall::broadcast && group.rank == call.peer)) return;
    const int64_t whole = call.out.numel(), own = call.in.numel(), before = group.rank * own;
    const bool in_place = call.kind == CommCall::all_gather && call.in.data == flat(call.out, before, own).data;
    if (!in_place) return copy(0, whole);
    copy(0, before);
    copy(before + own, whole - before - own);
  }

  // Copies the input to the host, makes the call on the worker, and copies the output back.
  void enqueue(const Call& call, Stream& stream) {
    outcome_->rethrow();
    const Call host = on_host(call);
    const bool goes_out = call.in && (call.kind != CommCall::broadcast || group.rank == call.peer);
    if (goes_out && call.in.bytes() > 0) device.copy_to_host(call.in, host.in.data, stream);
    // One event per call: if it were recorded again, the worker would wait for the next call.
    std::shared_ptr<Event> arrived = device.create_event();
    stream.record(*arrived);
    worker_->run(span_of(call), [this, arrived, host, row = stream.trace_row(), label = stream.label()] {
      try {
        arrived->synchronize();
        inner_stream_->set_trace_row(row);  // records the call's own span, which tells when it was on the wire
        inner_stream_->label() = label;
        inner_->call(host, *inner_stream_);
      } catch (...) {
        outcome_->fail(std::current_exception());
      }
      gate_.open();  // after errors too: a stream that waits forever would hang its process
    });
    gate_.wait(stream);
    copy_back(call, host, stream);
    stream.run({"staged", Category::host}, [outcome = outcome_] { outcome->rethrow(); });
  }

  const std::shared_ptr<Communicator> inner_;
  static constexpr int64_t kFirstBytes = piece(1 << 20, 64);
  const std::shared_ptr<Pinned> pinned_;
  HostBuffer* buffer_ = nullptr;  // outgrown buffers stay in pinned_: queued copies may still use them
  const std::shared_ptr<Outcome> outcome_ = std::make_shared<Outcome>();
  Gate& gate_ = pinned_->add_gate(device);
  const std::unique_ptr<Device> host_ = create_cpu_device();
  const std::unique_ptr<Stream> inner_stream_ = host_->create_compute_stream();  // the worker's
  // Last: its destructor waits for the calls in flight.
  const std::unique_ptr<Stream> worker_ = host_->create_side_stream(StreamPriority::normal);
};

}  // namespace

std::unique_ptr<Communicator> create_staged_communicator(Communicator& world, Device& device) {
  return std::make_unique<Communicator>(
      std::make_shared<StagedBackEnd>(unowned(world), device, std::make_shared<Pinned>()));
}

}  // namespace trivet
