#include "parallel/comm/link.h"

#include <array>
#include <cerrno>
#include <ctime>
#include <limits>
#include <sys/prctl.h>

#include "base/host.h"
#include "kernels/base/arena.h"
#include "parallel/comm/host_world.h"

namespace trivet {
namespace {

constexpr double kLongest = 1e15;  // ns: eleven days, far from overflowing the clock

int64_t nanoseconds(double ns) { return static_cast<int64_t>(std::min(ns, kLongest)); }

// Sent before each transfer, as a separate message.
struct Stamp {
  int64_t start_ns = 0, arrival_ns = 0;  // when the first byte leaves; when the last byte arrives
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
  const WireTime wire = wire_time(link, wire_cost(call.kind, call.whole().bytes(), back_end.group.size()));
  if (call.kind == CommCall::transfer) return transfer(wire, back_end, call, clock);
  return collective(wire, back_end, call, clock);
}

// Each rank's data leaves through its own port, so the ranks exchange their times. The copy in memory, on cores that
// others may be using, does not count as wire time.
int64_t EmulatedLinks::collective(const WireTime& wire, HostBackEnd& back_end, const Call& call, SpanClock& clock) {
  back_end.perform(call, clock);
  const int64_t left_ns = port_of(back_end.group.category).send(clock.wire_start_ns(), wire.busy_ns);
  std::array<int64_t, 2> latest = {-(left_ns - wire.busy_ns), left_ns + wire.latency_ns};
  const Tensor times{latest.data(), DType::i64, {static_cast<int64_t>(latest.size())}};
  SpanClock unused;
  back_end.perform({.kind = CommCall::all_reduce, .in = times, .out = times, .op = Reduce::max}, unused);
  clock.set_wire(-latest[0], latest[1]);
  return latest[1];
}

int64_t EmulatedLinks::transfer(const WireTime& wire, HostBackEnd& back_end, const Call& call, SpanClock& clock) {
  Stamp stamp;
  Call stamped = call;
  (call.sends ? stamped.in : stamped.out) = stamp.tensor();
  if (call.sends) {
    const int64_t left_ns = port_of(back_end.group.category).send(now_ns(), wire.busy_ns);
    stamp = {left_ns - wire.busy_ns, left_ns + wire.latency_ns};
  }
  back_end.perform(stamped, clock);
  back_end.perform(call, clock);
  if (call.sends) return 0;
  clock.set_wire(stamp.start_ns, stamp.arrival_ns);
  return stamp.arrival_ns;
}

WireTime wire_time(const Link& link, const WireCost& cost) {
  return {.busy_ns = nanoseconds(8 * static_cast<double>(cost.bytes) / link.gbps),
          .latency_ns = nanoseconds(cost.hops * 1e3 * link.latency_us)};
}

Link measure_link(Communicator& group, Device& device, Stream& stream) {
  constexpr int64_t kMeasuredBytes = 8 << 20;  // size of the gathered tensor
  constexpr int kTimes = 5;
  const int64_t n = group.size();
  Arena arena(device, "link");
  const Tensor memory = arena.allocate(DType::u8, {kMeasuredBytes / n * n});
  const auto best_ns = [&](int64_t shard_bytes) {
    const Tensor full = memory.slice(0, n * shard_bytes);
    int64_t best = std::numeric_limits<int64_t>::max();
    for (int i = 0; i < kTimes; ++i) {
      group.barrier();
      const int64_t start = now_ns();
      group.all_gather(full.slice(group.rank() * shard_bytes, shard_bytes), full, stream);
      stream.synchronize();
      best = std::min(best, now_ns() - start);
    }
    return static_cast<double>(best);
  };
  const double latency_ns = best_ns(1), large_ns = best_ns(kMeasuredBytes / n);
  const WireCost cost = wire_cost(CommCall::all_gather, memory.bytes(), group.size());
  return {.latency_us = 1e-3 * latency_ns,
          .gbps = 8 * static_cast<double>(cost.bytes) / std::max(large_ns - latency_ns, 1.0)};
}

// Ranks on one host share a clock.
void check_one_host(Communicator& world) {
  const int64_t hash = clock_number();
  HostWorld host(world);
  if (host.max(hash) != -host.max(-hash))
    throw ConfigError("links can only be emulated on one host, but the ranks are on several", Lack::links);
}

}  // namespace trivet
