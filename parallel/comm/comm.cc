#include "parallel/comm/comm.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <fmt/format.h>
#include <numeric>

#include "parallel/comm/device_calls.h"
#include "parallel/comm/flight_recorder.h"

namespace trivet {
namespace {

void check_shards(const char* call, const Tensor& full, const Tensor& shard, const CommGroup& group) {
  if (full.dtype != shard.dtype || full.numel() != shard.numel() * group.size())
    fail(fmt::format("{}: full has {} {}, shard has {} {}, the group {} ranks", call, full.numel(), name_of(full.dtype),
                     shard.numel(), name_of(shard.dtype), group.size()));
  const auto whole = reinterpret_cast<uintptr_t>(full.data), part = reinterpret_cast<uintptr_t>(shard.data);
  const auto length = static_cast<uintptr_t>(full.bytes()), part_length = static_cast<uintptr_t>(shard.bytes());
  const bool overlap = part < whole + length && whole < part + part_length;
  if (overlap && part != whole + static_cast<uintptr_t>(group.rank) * part_length)
    fail(std::string(call) + ": shard overlaps full, but is not this rank's slice of it");
}

}  // namespace

Communicator::Communicator(std::shared_ptr<CommBackEnd> back_end) : Communicator(std::move(back_end), {}) {}
Communicator::Communicator(std::shared_ptr<CommBackEnd> back_end, Tools tools)
    : back_end_(std::move(back_end)),
      host_(dynamic_cast<HostBackEnd*>(back_end_.get())),
      device_(dynamic_cast<DeviceBackEnd*>(back_end_.get())),
      tools_(std::move(tools)) {}

// ---- the calls

void Communicator::exchange(Tensor out, int to, Tensor in, int from, Stream& stream) {
  const std::array<Call, 2> both{Call{.kind = CommCall::transfer, .in = out, .peer = to, .sends = true},
                                 Call{.kind = CommCall::transfer, .out = in, .peer = from}};
  for (const Call& call : both) check_arguments(call);
  if (prepared(both[0]) && prepared(both[1])) return;
  if (host_) {  // sends are buffered
    for (const Call& call : both) queue(call, stream);
  } else if (tools_.device_calls) {
    DeviceCalls& calls = *tools_.device_calls;
    const int sends = enter(both[0]);
    calls.run(sends, stream, [&] { calls.run(enter(both[1]), stream, [&] { device_->enqueue(both, stream); }); });
  } else {
    device_->enqueue(both, stream);
  }
}

// ---- around each call

void Communicator::check_arguments(const Call& call) const {
  const char* direction = call.sends ? "to" : "from";
  const bool in_group = call.peer >= 0 && call.peer < size();
  switch (call.kind) {
    case CommCall::reduce_scatter: return check_shards(name_of(call), call.in, call.out, group());
    case CommCall::all_gather: return check_shards(name_of(call), call.out, call.in, group());
    case CommCall::broadcast: return check(in_group, "broadcast from a rank outside the group");
    case CommCall::transfer:
      return check(in_group && call.peer != rank(),
                   fmt::format("{} {} a rank outside the group, or {} itself", name_of(call), direction, direction));
    default: return;
  }
}

void Communicator::call(Call call, Stream& stream) {
  check_arguments(call);  // before a fault changes them
  if (size() == 1) return copy_alone(call, stream);
  if (prepared(call)) return;
  if (tools_.faults && call.kind != CommCall::transfer) {
    const CallFault fault = tools_.faults->next_call();
    if (fault == CallFault::skip) return;
    if (fault == CallFault::extra) {
      const Tensor one = device_ ? tools_.device_calls->extra() : Tensor{&extra_, DType::i64, {1}};
      queue({.kind = CommCall::all_reduce, .in = one, .out = one}, stream);
    }
    call = changed(call, fault, rank(), size());
  }
  queue(call, stream);
}

bool Communicator::prepared(const Call& call) {
  if (!device_ || !*tools_.only_prepares) return false;
  device_->prepare(call);
  return true;
}

// A group of one rank.
void Communicator::copy_alone(const Call& call, Stream& stream) {
  const int64_t bytes = call.in.bytes();
  if (call.in.data == call.out.data || bytes == 0) return;
  if (device_) return device_->enqueue({&call, 1}, stream);
  stream.run({name_of(call), group().category, bytes},
             [call, bytes] { std::memcpy(call.out.data, call.in.data, static_cast<size_t>(bytes)); });
}

void Communicator::queue(const Call& call, Stream& stream) {
  const int slot = enter(call);
  if (device_ && tools_.device_calls)
    return tools_.device_calls->run(slot, stream, [&] { device_->enqueue({&call, 1}, stream); });
  if (device_) return device_->enqueue({&call, 1}, stream);
  const SpanInfo info = back_end_->span_of(call);
  stream.run(info, [this, call, slot](SpanClock& clock) {
    // For the watchdog, a call is open until its link has delivered the last byte.
    recorded(slot, [&] {
      if (tools_.link.none()) host_->perform(call, clock);
      else sleep_until(tools_.links->perform(tools_.link, *host_, call, clock));
    });
  });
}

int Communicator::enter(const Call& call) {
  if (!tools_.recorder) return -1;
  const int peer = call.kind == CommCall::transfer ? call.peer : -1;
  return tools_.recorder->enqueue(tools_.recorder_group, signature_of(call), peer, call.sends);
}

template <class F>
void Communicator::recorded(int slot, F&& f) {
  if (!tools_.recorder) return f();
  tools_.recorder->start(slot);
  try {
    f();
  } catch (...) {
    tools_.recorder->finish(slot, true);
    throw;
  }
  tools_.recorder->finish(slot, false);
}

// ---- groups. A device group is created and synchronised over a host group, which records these calls.

void Communicator::barrier() {
  if (device_ || size() == 1) return back_end_->barrier();
  recorded(enter({.kind = CommCall::barrier}), [this] { back_end_->barrier(); });
}

std::unique_ptr<Communicator> Communicator::split(const std::vector<int>& members, std::string name,
                                                  Category category) {
  const CommGroup part = group().part(members, std::move(name), category);
  std::shared_ptr<CommBackEnd> made;
  if (device_) made = back_end_->split(members, part);
  else recorded(enter({.kind = CommCall::split}), [&] { made = back_end_->split(members, part); });
  if (!made) return nullptr;
  Tools tools = tools_;
  if (tools.recorder) tools.recorder_group = tools.recorder->add_group(part.name, part.world_ranks, part.rank);
  if (tools.links) tools.link = tools.links->of(category);
  return std::unique_ptr<Communicator>(new Communicator(std::move(made), std::move(tools)));
}

std::unique_ptr<Communicator> Communicator::twin(std::string name, Category category) {
  std::vector<int> all(static_cast<size_t>(size()));
  std::iota(all.begin(), all.end(), 0);
  return split(all, std::move(name), category);
}

std::unique_ptr<Communicator> with_flight_recorder(Communicator& world, FlightRecorder& recorder, CallFaults* faults) {
  Communicator::Tools tools = world.tools_;
  const CommGroup& group = world.group();
  tools.recorder = &recorder;
  tools.recorder_group =
      recorder.add_group(group.name + (world.device_ ? " (devices)" : ""), group.world_ranks, group.rank);
  tools.faults = faults;
  if (world.device_) {
    tools.device_calls = std::make_shared<DeviceCalls>(recorder, world.device_->device);
    world.device_->set_abort_diagnostics([calls = tools.device_calls] { return calls->end_calls(); });
  }
  return std::unique_ptr<Communicator>(new Communicator(world.back_end_, std::move(tools)));
}

std::unique_ptr<Communicator> with_links(Communicator& world, const Links& links, bool shared_port) {
  Communicator::Tools tools = world.tools_;
  if (std::any_of(links.begin(), links.end(), [](const auto& link) { return !link.second.none(); })) {
    check(world.host_ != nullptr, "links are emulated between ranks whose tensors are in host memory");
    check_one_host(world);
    tools.links = std::make_shared<EmulatedLinks>(links, shared_port);
  }
  return std::unique_ptr<Communicator>(new Communicator(world.back_end_, std::move(tools)));
}

}  // namespace trivet
