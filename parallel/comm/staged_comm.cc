#include "parallel/comm/staged_comm.h"

#include <algorithm>
#include <mutex>
#include <vector>

#include "parallel/comm/call_signature.h"

namespace trivet {
namespace {

// The part of a host buffer that mirrors a tensor.
Tensor at(void* buffer, int64_t offset, const Tensor& like) {
  return {static_cast<std::byte*>(buffer) + offset, like.dtype, like.shape};
}

// Elements [first, first + count), in one row.
Tensor flat(const Tensor& whole, int64_t first, int64_t count) {
  return {static_cast<std::byte*>(whole.data) + first * size_of(whole.dtype), whole.dtype, {count}};
}

// Pinned memory of a group and of all that are split from it. Some of it is taken when a group is made, and it goes
// back when the last group ends. To give it back CUDA waits for all streams of the GPU, and lets no thread queue more
// until then; to take it may hold them up, too (its guide: implicit synchronization). In between, a stream of another
// rank on the same GPU may wait for what this rank or a third one is only about to queue.
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

class StagedCommunicator : public Communicator {
 public:
  StagedCommunicator(Communicator& world, Device& device, Category category)
      : inner_(world), device_(device), category_(category), pinned_(std::make_shared<Pinned>()) {
    if (size() > 1) buffer(kFirstBytes);
  }
  StagedCommunicator(std::unique_ptr<Communicator> group, Device& device, Category category,
                     std::shared_ptr<Pinned> pinned)
      : owned_(std::move(group)), inner_(*owned_), device_(device), category_(category), pinned_(std::move(pinned)) {
    if (size() > 1) buffer(kFirstBytes);
  }

  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }

  void all_reduce(Tensor full, Reduce op, Stream& stream) override {
    if (size() == 1) return;
    const Tensor host = at(buffer(full.bytes()), 0, full);
    run("all_reduce", {full, host}, {{full, host}}, full.bytes(), stream,
        [this, host, op](Stream& s) { inner_.all_reduce(host, op, s); });
  }
  void reduce_scatter(Tensor full, Tensor shard, Reduce op, Stream& stream) override {
    check_shards("reduce_scatter", full, shard, rank(), size());
    if (size() == 1 && shard.data == full.data) return;
    void* const memory = buffer(full.bytes());
    const Tensor host = at(memory, 0, full), own = at(memory, rank() * shard.bytes(), shard);
    run("reduce_scatter", {full, host}, {{shard, own}}, full.bytes(), stream,
        [this, host, own, op](Stream& s) { inner_.reduce_scatter(host, own, op, s); });
  }
  void all_gather(Tensor shard, Tensor full, Stream& stream) override {
    check_shards("all_gather", full, shard, rank(), size());
    if (size() == 1 && shard.data == full.data) return;
    void* const memory = buffer(full.bytes());
    const Tensor host = at(memory, 0, full), own = at(memory, rank() * shard.bytes(), shard);
    const auto gather = [this, host, own](Stream& s) { inner_.all_gather(own, host, s); };
    const int64_t each = shard.numel(), before = rank() * each, behind = full.numel() - before - each;
    if (shard.data != flat(full, before, each).data)
      return run("all_gather", {shard, own}, {{full, host}}, full.bytes(), stream, gather);
    run("all_gather", {shard, own},
        {{flat(full, 0, before), host}, {flat(full, before + each, behind), flat(host, before + each, behind)}},
        full.bytes(), stream, gather);
  }
  void broadcast(Tensor data, int root, Stream& stream) override {
    check(root >= 0 && root < size(), "broadcast from a rank outside the group");
    if (size() == 1) return;
    const Tensor host = at(buffer(data.bytes()), 0, data), none{};
    run("broadcast", {rank() == root ? data : none, host}, {{rank() == root ? none : data, host}}, data.bytes(), stream,
        [this, host, root](Stream& s) { inner_.broadcast(host, root, s); });
  }
  void send(Tensor data, int to, Stream& stream) override {
    check(to >= 0 && to < size() && to != rank(), "send to a rank outside the group, or to itself");
    const Tensor host = at(buffer(data.bytes()), 0, data);
    run("send", {data, host}, {}, data.bytes(), stream, [this, host, to](Stream& s) { inner_.send(host, to, s); });
  }
  void recv(Tensor data, int from, Stream& stream) override {
    check(from >= 0 && from < size() && from != rank(), "recv from a rank outside the group, or from itself");
    const Tensor host = at(buffer(data.bytes()), 0, data);
    run("recv", {}, {{data, host}}, data.bytes(), stream,
        [this, host, from](Stream& s) { inner_.recv(host, from, s); });
  }

  void barrier() override {
    worker_->synchronize();  // the group below is used by one thread at a time
    inner_.barrier();
  }
  std::unique_ptr<Communicator> split(int color, int key, std::string name, Category category) override {
    worker_->synchronize();
    return std::make_unique<StagedCommunicator>(inner_.split(color, key, std::move(name), category), device_, category,
                                                pinned_);
  }
  void abort(const std::string& why) noexcept override { inner_.abort(why); }

 private:
  // How the last calls went: shared with what is still queued on streams.
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

  // Host memory for one call. Calls follow each other on a stream, so they share it: the next one's copy starts after
  // this one's has come back.
  void* buffer(int64_t bytes) {
    if (!buffer_ || buffer_->bytes() < bytes)
      buffer_ = &pinned_->add_buffer(device_, std::max(bytes, buffer_ ? 2 * buffer_->bytes() : 0));
    return buffer_->data();
  }

  // A part of the device's memory, and what mirrors it.
  struct Mirrored {
    Tensor device, host;
    bool any() const { return device && device.bytes() > 0; }
  };

  // Copies `out` to the host, makes `call(stream)` on the worker, and copies `in` back.
  template <class Call>
  void run(const char* name, const Mirrored& out, std::initializer_list<Mirrored> in, int64_t bytes, Stream& stream,
           Call call) {
    outcome_->rethrow();
    if (out.any()) device_.copy_to_host(out.device, out.host.data, stream);
    // An event a call: one that was recorded again for the next call would make the worker wait for that one.
    std::shared_ptr<Event> arrived = device_.create_event();
    stream.record(*arrived);
    worker_->run({name, category_, bytes}, [this, arrived, call, row = stream.trace_row()] {
      try {
        arrived->synchronize();
        inner_stream_->set_trace_row(row);  // the call's own span, which tells when it was matched
        call(*inner_stream_);
      } catch (...) {
        outcome_->fail(std::current_exception());
      }
      gate_.open();  // in any case: a stream that waits for ever would hang its process
    });
    gate_.wait(stream);
    for (const Mirrored& part : in)
      if (part.any()) device_.copy_to_device(part.host.data, part.device, stream);
    stream.run({"staged", Category::host}, [outcome = outcome_] { outcome->rethrow(); });
  }

  std::unique_ptr<Communicator> owned_;
  Communicator& inner_;
  Device& device_;
  const Category category_;
  static constexpr int64_t kFirstBytes = 1 << 20;
  const std::shared_ptr<Pinned> pinned_;
  HostBuffer* buffer_ = nullptr;  // what is too small stays until the end: queued copies may still use it
  const std::shared_ptr<Outcome> outcome_ = std::make_shared<Outcome>();
  Gate& gate_ = pinned_->add_gate(device_);
  const std::unique_ptr<Device> host_ = create_cpu_device();
  const std::unique_ptr<Stream> inner_stream_ = host_->create_compute_stream();  // the worker's
  // Last: its end waits for the calls that are under way.
  const std::unique_ptr<Stream> worker_ = host_->create_side_stream(StreamPriority::normal);
};

}  // namespace

std::unique_ptr<Communicator> create_staged_communicator(Communicator& world, Device& device) {
  return std::make_unique<StagedCommunicator>(world, device, Category::comm_data);
}

}  // namespace trivet
