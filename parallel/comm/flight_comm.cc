#include "parallel/comm/flight_comm.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/base/device.h"

namespace trivet {
namespace {

// What all groups of one rank share.
struct Shared {
  FlightRecorder& recorder;
  CallFaults* faults;
  int world_rank;
};

class FlightCommunicator : public Communicator {
 public:
  FlightCommunicator(std::unique_ptr<Communicator> owned, Communicator& inner, std::shared_ptr<Shared> shared,
                     const std::string& name, Category category)
      : owned_(std::move(owned)),
        inner_(inner),
        shared_(std::move(shared)),
        category_(category),
        device_(create_cpu_device()),
        inner_stream_(device_->create_compute_stream()) {
    inner_stream_->set_trace_row(&inner_row_);
    std::vector<int64_t> members(static_cast<size_t>(size()));
    int64_t mine = shared_->world_rank;
    inner_.all_gather({&mine, DType::i64, {1}}, {members.data(), DType::i64, {size()}}, *inner_stream_);
    inner_row_.take(inner_spans_);
    group_ = shared_->recorder.add_group(name, {members.begin(), members.end()}, rank());
  }

  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }

  void all_reduce(Tensor full, Reduce op, Stream& stream) override {
    if (size() == 1) return inner_.all_reduce(full, op, stream);
    const CallFault fault = prepare(stream);
    if (fault == CallFault::skip) return;
    full = changed(full, fault, 1);
    run(stream, "all_reduce", {CommCall::all_reduce, full.dtype, op, -1, full.numel()}, full.bytes(),
        [this, full, op](Stream& s) { inner_.all_reduce(full, op, s); });
  }
  void reduce_scatter(Tensor full, Tensor shard, Reduce op, Stream& stream) override {
    check_shards("reduce_scatter", full, shard, rank(), size());
    if (size() == 1) return inner_.reduce_scatter(full, shard, op, stream);
    const CallFault fault = prepare(stream);
    if (fault == CallFault::skip) return;
    full = changed(full, fault, size());
    shard = changed_shard(shard, full, fault, rank());
    run(stream, "reduce_scatter", {CommCall::reduce_scatter, full.dtype, op, -1, full.numel()}, full.bytes(),
        [this, full, shard, op](Stream& s) { inner_.reduce_scatter(full, shard, op, s); });
  }
  void all_gather(Tensor shard, Tensor full, Stream& stream) override {
    check_shards("all_gather", full, shard, rank(), size());
    if (size() == 1) return inner_.all_gather(shard, full, stream);
    const CallFault fault = prepare(stream);
    if (fault == CallFault::skip) return;
    full = changed(full, fault, size());
    shard = changed_shard(shard, full, fault, rank());
    run(stream, "all_gather", {CommCall::all_gather, full.dtype, Reduce::sum, -1, full.numel()}, full.bytes(),
        [this, shard, full](Stream& s) { inner_.all_gather(shard, full, s); });
  }
  void broadcast(Tensor data, int root, Stream& stream) override {
    check(root >= 0 && root < size(), "broadcast from a rank outside the group");
    if (size() == 1) return inner_.broadcast(data, root, stream);
    const CallFault fault = prepare(stream);
    if (fault == CallFault::skip) return;
    data = changed(data, fault, 1);
    run(stream, "broadcast", {CommCall::broadcast, data.dtype, Reduce::sum, root, data.numel()}, data.bytes(),
        [this, data, root](Stream& s) { inner_.broadcast(data, root, s); });
  }

  void send(Tensor data, int to, Stream& stream) override {
    check(to >= 0 && to < size() && to != rank(), "send to a rank outside the group, or to itself");
    run(
        stream, "send", {CommCall::transfer, data.dtype, Reduce::sum, -1, data.numel()}, data.bytes(),
        [this, data, to](Stream& s) { inner_.send(data, to, s); }, to, true);
  }
  void recv(Tensor data, int from, Stream& stream) override {
    check(from >= 0 && from < size() && from != rank(), "recv from a rank outside the group, or from itself");
    run(
        stream, "recv", {CommCall::transfer, data.dtype, Reduce::sum, -1, data.numel()}, data.bytes(),
        [this, data, from](Stream& s) { inner_.recv(data, from, s); }, from, false);
  }

  void barrier() override {
    if (size() == 1) return inner_.barrier();
    recorded(enqueue({CommCall::barrier}), [this] { inner_.barrier(); });
  }
  std::unique_ptr<Communicator> split(int color, int key, std::string name, Category category) override {
    std::unique_ptr<Communicator> group;
    recorded(enqueue({CommCall::split}), [&] { group = inner_.split(color, key, name, category); });
    Communicator& inner = *group;
    return std::make_unique<FlightCommunicator>(std::move(group), inner, shared_, name, category);
  }
  void abort(const std::string& why) noexcept override { inner_.abort(why); }
  Failure failure() const override { return inner_.failure(); }

 private:
  int enqueue(const CallSignature& call, int peer = -1, bool sends = false) {
    return shared_->recorder.enqueue(group_, call, peer, sends);
  }

  template <class F>
  void recorded(int slot, F&& f) {
    shared_->recorder.start(slot);
    try {
      f();
    } catch (...) {
      shared_->recorder.finish(slot, true);
      throw;
    }
    shared_->recorder.finish(slot, false);
  }

  // The span is the outer stream's; its times of matching and its number are those of the call below.
  template <class Call>
  void run(Stream& stream, const char* name, const CallSignature& signature, int64_t bytes, Call call, int peer = -1,
           bool sends = false) {
    const int slot = enqueue(signature, peer, sends);
    stream.run({name, category_, bytes}, [this, slot, call](SpanClock& clock) {
      recorded(slot, [&] { call(*inner_stream_); });
      inner_row_.take(inner_spans_);
      if (inner_spans_.empty()) return;
      clock.matched(inner_spans_.back().matched_ns);
      clock.set_transfer_id(inner_spans_.back().transfer_id);
    });
  }

  CallFault prepare(Stream& stream) {
    const CallFault fault = shared_->faults ? shared_->faults->next_call() : CallFault::none;
    if (fault == CallFault::extra)
      run(stream, "all_reduce", {CommCall::all_reduce, DType::i64, Reduce::sum, -1, 1}, 8, [this](Stream& s) {
        inner_.all_reduce({&extra_, DType::i64, {1}}, Reduce::sum, s);
      });
    return fault;
  }

  std::unique_ptr<Communicator> owned_;
  Communicator& inner_;
  std::shared_ptr<Shared> shared_;
  const Category category_;
  int group_ = 0;
  int64_t extra_ = 0;
  // What the inner calls run on, and the row that tells when they were matched; nobody else reads it.
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> inner_stream_;
  TraceRow inner_row_{"inner"};
  std::vector<Span> inner_spans_;
};

}  // namespace

std::unique_ptr<Communicator> with_flight_recorder(Communicator& world, FlightRecorder& recorder, CallFaults* faults) {
  auto shared = std::make_shared<Shared>(Shared{recorder, faults, world.rank()});
  return std::make_unique<FlightCommunicator>(nullptr, world, std::move(shared), "world", Category::comm_data);
}

}  // namespace trivet
