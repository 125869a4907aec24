#include "parallel/comm/link.h"

#include <cerrno>
#include <ctime>
#include <functional>
#include <string>
#include <sys/prctl.h>

#include "base/host.h"
#include "parallel/comm/host_world.h"

namespace trivet {
namespace {

constexpr double kLongest = 1e15;  // ns: eleven days, and far from the end of the clock

int64_t nanoseconds(double ns) { return static_cast<int64_t>(std::min(ns, kLongest)); }

// Sent before each transfer, in a message of its own.
struct Stamp {
  int64_t sent_ns = 0, arrival_ns = 0;
  Tensor tensor() { return {this, DType::i64, {2}}; }
};
static_assert(sizeof(Stamp) == 2 * sizeof(int64_t));

}  // namespace

// The thread's timer slack, 50 us by default, would delay the wake-up by as much as a link's latency.
void sleep_until(int64_t ns) {
  if (ns <= now_ns()) return;
  const int slack = prctl(PR_GET_TIMERSLACK);
  prctl(PR_SET_TIMERSLACK, 1);
  const timespec time{.tv_sec = ns / 1'000'000'000, .tv_nsec = ns % 1'000'000'000};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, nullptr) == EINTR) {
  }
  if (slack > 0) prctl(PR_SET_TIMERSLACK, slack);
}

int64_t EmulatedLinks::perform(const Link& link, HostBackEnd& back_end, const Call& call, SpanClock& clock) {
  LinkPort& port = ports_.at(class_of(back_end.group.category));
  const WireTime wire = wire_time(link, call.kind, call.whole().bytes(), back_end.group.size());
  if (call.kind != CommCall::transfer) {
    back_end.perform(call, clock);
    return port.send(clock.matched_ns(), wire.busy_ns) + wire.latency_ns;
  }
  Stamp stamp;
  Call stamped = call;
  (call.sends ? stamped.in : stamped.out) = stamp.tensor();
  if (call.sends) {
    stamp.sent_ns = now_ns();
    stamp.arrival_ns = port.send(stamp.sent_ns, wire.busy_ns) + wire.latency_ns;
  }
  back_end.perform(stamped, clock);
  back_end.perform(call, clock);
  if (call.sends) return 0;
  clock.matched(stamp.sent_ns);
  return stamp.arrival_ns;
}

WireTime wire_time(const Link& link, CommCall call, int64_t bytes, int ranks) {
  const double b = static_cast<double>(bytes), n = ranks, part = b * (n - 1) / n;
  const auto cost = [&](int latencies, double bytes_out) {
    return WireTime{.busy_ns = nanoseconds(8 * bytes_out / link.gbps),
                    .latency_ns = nanoseconds(latencies * 1e3 * link.latency_us)};
  };
  switch (call) {
    case CommCall::reduce_scatter:
    case CommCall::all_gather:
    case CommCall::all_to_all: return cost(1, part);
    case CommCall::all_reduce: return cost(2, 2 * part);
    case CommCall::broadcast: return cost(1, b * (n - 1));
    case CommCall::transfer: return cost(1, b);
    case CommCall::barrier:
    case CommCall::split: break;
  }
  return {};
}

// Ranks that see the same boot id share a host, and so its clock.
void check_one_host(Communicator& world) {
  const auto hash = static_cast<int64_t>(std::hash<std::string>{}(boot_id()) >> 1);
  HostWorld host(world);
  if (host.max(hash) != -host.max(-hash))
    throw ConfigError("a link can be emulated on one host only, and the ranks are on several", Lack::links);
}

}  // namespace trivet
