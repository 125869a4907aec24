#include <algorithm>
#include <deque>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "parallel/comm/flight_comm.h"

namespace trivet {
namespace {

// The calls of one rank that are on its device's streams, each between two events.
class DeviceCalls {
 public:
  DeviceCalls(FlightRecorder& recorder, Device& device, CallFaults* faults)
      : recorder_(recorder), device_(device), faults_(faults) {
    recorder_.set_source([this] { look(); });
  }
  ~DeviceCalls() {
    recorder_.set_source(nullptr);
    if (extra_) device_.deallocate(extra_, kExtraBytes);
  }
  DeviceCalls(const DeviceCalls&) = delete;
  DeviceCalls& operator=(const DeviceCalls&) = delete;

  // Queues call() and follows it.
  template <class Call>
  void run(int slot, Stream& stream, const Call& call) {
    look();
    Followed followed;
    {
      std::lock_guard lock(mutex_);
      if (!free_.empty()) {
        followed = std::move(free_.back());
        free_.pop_back();
      }
    }
    followed.slot = slot;
    followed.started = followed.queued = false;
    for (std::unique_ptr<Event>* event : {&followed.begun, &followed.ended})
      if (!*event) *event = device_.create_event();
    Event& ended = *followed.ended;
    try {
      stream.record(*followed.begun);
      {
        std::lock_guard lock(mutex_);  // before the call: it may begin, and fail, before the host is back from it
        under_way_[&stream].push_back(std::move(followed));
      }
      call();
      stream.record(ended);
    } catch (...) {
      recorder_.finish(slot, true);
      std::lock_guard lock(mutex_);
      std::erase_if(under_way_[&stream], [&](const Followed& other) { return other.slot == slot; });
      throw;
    }
    std::lock_guard lock(mutex_);
    std::deque<Followed>& calls = under_way_[&stream];
    const auto mine = std::find_if(calls.rbegin(), calls.rend(), [&](const Followed& c) { return c.slot == slot; });
    if (mine != calls.rend()) mine->queued = true;
  }

  CallFault next_fault() { return faults_ ? faults_->next_call() : CallFault::none; }
  // What a call too many is made with.
  Tensor extra() {
    if (!extra_) extra_ = device_.allocate(kExtraBytes);
    return {extra_, DType::i64, {1}};
  }

  // Tells the recorder what has begun or ended since the last look. Calls on a stream begin in their order: behind the
  // first that has not, no event is asked, and there may be a step's worth of them. Any thread.
  void look() {
    std::lock_guard lock(mutex_);
    for (auto& [stream, calls] : under_way_)
      for (auto call = calls.begin(); call != calls.end();) {
        if (!is_over(*call)) {
          if (!call->started) break;
          ++call;  // the two calls of an exchange are under way at once
          continue;
        }
        free_.push_back(std::move(*call));
        call = calls.erase(call);
      }
  }

  // Names the call that has been under way for longest. Whatever is queued counts as failed from here on.
  std::string end_calls() {
    const FlightLog log = recorder_.log();
    const FlightRecord* first = nullptr;
    for (const FlightRecord& record : log.records)
      if (record.state == FlightState::started && (!first || record.started_ns < first->started_ns)) first = &record;
    std::lock_guard lock(mutex_);
    for (auto& [stream, calls] : under_way_)
      for (Followed& call : calls) {
        recorder_.finish(call.slot, true);
        free_.push_back(std::move(call));
      }
    under_way_.clear();
    if (!first) return {};
    const FlightGroup& group = log.groups[static_cast<size_t>(first->group)];
    std::string text = to_string(*first);
    if (first->peer >= 0)
      text += (first->sends ? " to rank " : " from rank ") +
              std::to_string(group.world_ranks[static_cast<size_t>(first->peer)]);
    return "call " + std::to_string(first->call.sequence) + " of group '" + group.name + "', " + text;
  }

 private:
  struct Followed {
    int slot = -1;
    bool started = false, queued = false;  // queued: all of it, `ended` too
    std::unique_ptr<Event> begun, ended;
  };
  static constexpr int64_t kExtraBytes = 8;

  bool is_over(Followed& call) {
    try {
      if (!call.started && call.begun->done()) {
        recorder_.start(call.slot);
        call.started = true;
      }
      if (!call.started || !call.queued || !call.ended->done()) return false;
      recorder_.finish(call.slot, false);
    } catch (...) {  // the device has failed: whoever waits for its stream hears why
      recorder_.finish(call.slot, true);
    }
    return true;
  }

  FlightRecorder& recorder_;
  Device& device_;
  CallFaults* const faults_;
  void* extra_ = nullptr;
  std::mutex mutex_;
  std::map<const Stream*, std::deque<Followed>> under_way_;  // in the order in which they were queued
  std::vector<Followed> free_;
};

class FlightDeviceCommunicator : public Communicator {
 public:
  FlightDeviceCommunicator(std::unique_ptr<Communicator> inner, std::unique_ptr<Communicator> owned_host,
                           Communicator& host, std::shared_ptr<DeviceCalls> calls, FlightRecorder& recorder,
                           int world_rank, const std::string& name)
      : owned_host_(std::move(owned_host)),
        host_(host),
        recorder_(recorder),
        world_rank_(world_rank),
        calls_(std::move(calls)),
        inner_(std::move(inner)) {
    const auto cpu = create_cpu_device();
    const auto stream = cpu->create_compute_stream();
    std::vector<int64_t> members(static_cast<size_t>(size()));
    int64_t mine = world_rank;
    host_.all_gather({&mine, DType::i64, {1}}, {members.data(), DType::i64, {size()}}, *stream);
    group_ = recorder_.add_group(name, {members.begin(), members.end()}, rank());
  }

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }

  void all_reduce(Tensor full, Reduce op, Stream& stream) override {
    const CallFault fault = prepare(stream);
    if (fault == CallFault::skip) return;
    full = changed(full, fault, 1);
    run({CommCall::all_reduce, full.dtype, op, -1, full.numel()}, stream,
        [&] { inner_->all_reduce(full, op, stream); });
  }
  void reduce_scatter(Tensor full, Tensor shard, Reduce op, Stream& stream) override {
    const CallFault fault = prepare(stream);
    if (fault == CallFault::skip) return;
    full = changed(full, fault, size());
    shard = changed_shard(shard, full, fault, rank());
    run({CommCall::reduce_scatter, full.dtype, op, -1, full.numel()}, stream,
        [&] { inner_->reduce_scatter(full, shard, op, stream); });
  }
  void all_gather(Tensor shard, Tensor full, Stream& stream) override {
    const CallFault fault = prepare(stream);
    if (fault == CallFault::skip) return;
    full = changed(full, fault, size());
    shard = changed_shard(shard, full, fault, rank());
    run({CommCall::all_gather, full.dtype, Reduce::sum, -1, full.numel()}, stream,
        [&] { inner_->all_gather(shard, full, stream); });
  }
  void broadcast(Tensor data, int root, Stream& stream) override {
    const CallFault fault = prepare(stream);
    if (fault == CallFault::skip) return;
    data = changed(data, fault, 1);
    run({CommCall::broadcast, data.dtype, Reduce::sum, root, data.numel()}, stream,
        [&] { inner_->broadcast(data, root, stream); });
  }
  void send(Tensor data, int to, Stream& stream) override {
    run(
        {CommCall::transfer, data.dtype, Reduce::sum, -1, data.numel()}, stream,
        [&] { inner_->send(data, to, stream); }, to, true);
  }
  void recv(Tensor data, int from, Stream& stream) override {
    run(
        {CommCall::transfer, data.dtype, Reduce::sum, -1, data.numel()}, stream,
        [&] { inner_->recv(data, from, stream); }, from, false);
  }
  void exchange(Tensor out, int to, Tensor in, int from, Stream& stream) override {
    const auto both = [&] { inner_->exchange(out, to, in, from, stream); };
    const auto receive = [&] {
      run({CommCall::transfer, in.dtype, Reduce::sum, -1, in.numel()}, stream, both, from, false);
    };
    run({CommCall::transfer, out.dtype, Reduce::sum, -1, out.numel()}, stream, receive, to, true);
  }
  Memory* buffer_memory() override { return inner_->buffer_memory(); }
  std::shared_ptr<void> register_buffer(Tensor memory) override { return inner_->register_buffer(memory); }
  void barrier() override { inner_->barrier(); }
  std::unique_ptr<Communicator> split(int color, int key, std::string name, Category category) override {
    auto host = host_.split(color, key, name + " (host)", category);
    auto group = inner_->split(color, key, name, category);
    Communicator& host_group = *host;
    return std::make_unique<FlightDeviceCommunicator>(std::move(group), std::move(host), host_group, calls_, recorder_,
                                                      world_rank_, name);
  }
  void abort(const std::string& why) noexcept override { inner_->abort(why); }
  Failure failure() const override { return inner_->failure(); }

 private:
  CallFault prepare(Stream& stream) {
    const CallFault fault = size() == 1 ? CallFault::none : calls_->next_fault();
    if (fault == CallFault::extra) {
      const Tensor extra = calls_->extra();
      run({CommCall::all_reduce, extra.dtype, Reduce::sum, -1, extra.numel()}, stream,
          [&] { inner_->all_reduce(extra, Reduce::sum, stream); });
    }
    return fault;
  }

  template <class Call>
  void run(const CallSignature& signature, Stream& stream, const Call& call, int peer = -1, bool sends = false) {
    if (size() == 1) return call();
    calls_->run(recorder_.enqueue(group_, signature, peer, sends), stream, call);
  }

  const std::unique_ptr<Communicator> owned_host_;
  Communicator& host_;
  FlightRecorder& recorder_;
  const int world_rank_;
  int group_ = 0;
  const std::shared_ptr<DeviceCalls> calls_;
  const std::unique_ptr<Communicator> inner_;
};

}  // namespace

std::unique_ptr<Communicator> with_flight_recorder(std::unique_ptr<Communicator> exchange, Device& device,
                                                   Communicator& host, FlightRecorder& recorder, CallFaults* faults) {
  auto calls = std::make_shared<DeviceCalls>(recorder, device, faults);
  exchange->set_witness([calls] { return calls->end_calls(); });
  const int rank = exchange->rank();
  return std::make_unique<FlightDeviceCommunicator>(std::move(exchange), nullptr, host, std::move(calls), recorder,
                                                    rank, "world (devices)");
}

}  // namespace trivet
