#include "parallel/comm/device_calls.h"

#include <algorithm>
#include <utility>

namespace trivet {
namespace {

constexpr int64_t kExtraBytes = 8;

}  // namespace

DeviceCalls::DeviceCalls(FlightRecorder& recorder, Device& device) : recorder_(recorder), device_(device) {
  recorder_.set_source([this] { poll(); });
}

DeviceCalls::~DeviceCalls() {
  recorder_.set_source(nullptr);
  if (extra_) device_.deallocate(extra_, kExtraBytes);
}

void DeviceCalls::run(int slot, Stream& stream, const std::function<void()>& call) {
  poll();
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
      std::lock_guard lock(mutex_);  // before the call, which may start and fail before it returns to the host
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

Tensor DeviceCalls::extra() {
  if (!extra_) extra_ = device_.allocate(kExtraBytes);
  return {extra_, DType::i64, {1}};
}

// Calls on a stream begin in order, so polling stops at the first that has not begun: a whole step's may follow it.
void DeviceCalls::poll() {
  std::lock_guard lock(mutex_);
  for (auto& [stream, calls] : under_way_)
    for (auto call = calls.begin(); call != calls.end();) {
      if (!is_over(*call)) {
        if (!call->started) break;
        ++call;  // the two calls of an exchange run concurrently
        continue;
      }
      free_.push_back(std::move(*call));
      call = calls.erase(call);
    }
}

std::string DeviceCalls::end_calls() {
  const std::optional<FlightRecord> first = recorder_.oldest_started();
  const FlightLog log = recorder_.log();  // before taking the lock, because log() polls
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

bool DeviceCalls::is_over(Followed& call) {
  try {
    if (!call.started && call.begun->done()) {
      recorder_.start(call.slot);
      call.started = true;
    }
    if (!call.started || !call.queued || !call.ended->done()) return false;
    recorder_.finish(call.slot, false);
  } catch (...) {  // the device has failed, which its stream reports
    recorder_.finish(call.slot, true);
  }
  return true;
}

}  // namespace trivet
