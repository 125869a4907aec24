// What call spans record: when the calls were on the wire, equal on all ranks, and which send belongs to which receive.
#include <algorithm>
#include <chrono>
#include <set>
#include <thread>

#include "tests/support/comm_cases.h"
#include "tests/support/rank_values.h"

namespace trivet {
namespace {

// Every rank's `mine`, by rank.
std::vector<int64_t> everybodys(Communicator& world, int64_t mine) {
  RankStreams rank;
  std::vector<int64_t> all(static_cast<size_t>(world.size()));
  std::vector<int64_t> one = {mine};
  world.all_gather(tensor_of(one), tensor_of(all), *rank.stream);
  return all;
}

Span only_span(TraceRow& row) {  // not counting copies, which some back ends make
  std::vector<Span> spans;
  row.take(spans);
  std::erase_if(spans, [](const Span& span) { return !is_comm(span.info.category); });
  EXPECT_EQ(spans.size(), 1u);
  return spans.empty() ? Span{} : spans.back();
}

void collectives_are_on_the_wire_once_all_have_called(Communicator& world) {
  if (world.size() == 1) return;
  TraceRow row("row");  // outlives the streams, which report to it until they end
  RankStreams rank;
  rank.stream->set_trace_row(&row);
  const int64_t n = world.size();
  for (const int64_t length : {1, 50003})
    for (int call = 0; call < 4; ++call) {
      std::vector<float> full(static_cast<size_t>(length * n), 1.0f), shard(static_cast<size_t>(length));
      switch (call) {
        case 0: world.all_reduce(tensor_of(full), Reduce::sum, *rank.stream); break;
        case 1: world.reduce_scatter(tensor_of(full), tensor_of(shard), Reduce::sum, *rank.stream); break;
        case 2: world.all_gather(tensor_of(shard), tensor_of(full), *rank.stream); break;
        case 3: world.broadcast(tensor_of(full), static_cast<int>(n) - 1, *rank.stream); break;
      }
      const Span span = only_span(row);
      const std::vector<int64_t> starts = everybodys(world, span.start_ns);
      EXPECT_GE(span.wire_start_ns, *std::max_element(starts.begin(), starts.end())) << span.info.name;
      EXPECT_LE(span.wire_start_ns, span.wire_end_ns) << span.info.name;
      EXPECT_LE(span.wire_start_ns, span.end_ns) << span.info.name;
      for (const int64_t other : everybodys(world, span.wire_start_ns)) EXPECT_EQ(span.wire_start_ns, other);
      EXPECT_EQ(span.transfer_id, 0u);
    }
}

// A ring of transfers over two groups of the same ranks: no two transfers have the same number.
void both_ends_of_a_transfer_have_its_number(Communicator& world) {
  if (world.size() == 1) return;
  TraceRow row("row");  // outlives the streams, which report to it until they end
  RankStreams rank;
  rank.stream->set_trace_row(&row);
  const auto other = world.twin("other", comm_of("pipeline"));
  const int next = (world.rank() + 1) % world.size(), previous = (world.rank() + world.size() - 1) % world.size();
  std::set<uint64_t> seen;
  for (int number = 0; number < 5; ++number)
    for (Communicator* group : {&world, other.get()}) {
      std::vector<float> x(1000), y(1000);
      group->send(tensor_of(x), next, *rank.stream);
      const Span sent = only_span(row);
      group->recv(tensor_of(y), previous, *rank.stream);
      const Span received = only_span(row);
      const auto ids = everybodys(world, static_cast<int64_t>(sent.transfer_id));
      const auto starts = everybodys(world, sent.start_ns);
      EXPECT_EQ(received.transfer_id, static_cast<uint64_t>(ids[static_cast<size_t>(previous)]));
      EXPECT_EQ(sent.wire_start_ns, sent.wire_end_ns) << "a buffered send";
      EXPECT_GE(received.wire_start_ns, starts[static_cast<size_t>(previous)]);
      EXPECT_LE(received.wire_start_ns, received.wire_end_ns);
      EXPECT_LE(received.wire_end_ns, received.end_ns);
      for (const int64_t id : ids) {
        EXPECT_NE(id, 0);
        EXPECT_TRUE(seen.insert(static_cast<uint64_t>(id)).second);
      }
    }
}

int64_t floor_of(const Link& link, const Span& span) { return wire_time(link, span.info.cost).total(); }

// In each call, a different rank arrives so late that the others' data could already have arrived. Over a real link,
// each of them may send a chunk (at most half a MiB) to the late rank before it has called.
void collectives_keep_to_their_floors(Communicator& group, const Link& link, bool emulated, int64_t length) {
  TraceRow row("row");
  RankStreams rank;
  rank.stream->set_trace_row(&row);
  std::vector<float> shard(static_cast<size_t>(length)), full(shard.size() * static_cast<size_t>(group.size()));
  for (int call = 0; call < 4; ++call) {
    if (group.rank() == call % group.size())
      std::this_thread::sleep_for(std::chrono::nanoseconds(
          wire_time(link, wire_cost(CommCall::all_gather, tensor_of(full).bytes(), group.size())).total()));
    switch (call) {
      case 0: group.reduce_scatter(tensor_of(full), tensor_of(shard), Reduce::sum, *rank.stream); break;
      case 1: group.all_gather(tensor_of(shard), tensor_of(full), *rank.stream); break;
      case 2: group.all_reduce(tensor_of(full), Reduce::sum, *rank.stream); break;
      case 3: group.broadcast(tensor_of(full), 0, *rank.stream); break;
    }
    const Span span = only_span(row);
    const int64_t wire = span.wire_end_ns - span.wire_start_ns, floor = floor_of(link, span);
    const int64_t early = emulated ? 0 : (group.size() - 1) * wire_time(link, {512 << 10, 0, true}).total();
    // The root of a broadcast has handed over data that its peers have yet to receive; each of them waits for its own.
    const int64_t least = call < 3 || emulated ? floor : floor / (group.size() - 1);
    if (call < 3 || group.rank() > 0 || emulated) {
      EXPECT_GE(static_cast<double>(wire), 0.95 * static_cast<double>(least - early)) << span.info.name;
    }
    EXPECT_LE(span.wire_end_ns, span.end_ns);
    for (const int64_t other : everybodys(group, span.wire_start_ns)) EXPECT_EQ(span.wire_start_ns, other);
    if (!emulated) continue;
    EXPECT_EQ(wire, floor) << span.info.name;
    for (const int64_t other : everybodys(group, span.wire_end_ns)) EXPECT_EQ(span.wire_end_ns, other);
  }
}

// A receive takes at least the floor of its message, even if it is posted late.
void transfers_keep_to_their_floors(Communicator& group, const Link& link, bool emulated, int64_t length) {
  TraceRow row("row");
  RankStreams rank;
  rank.stream->set_trace_row(&row);
  std::vector<float> x(static_cast<size_t>(length)), y(x);
  const int n = group.size();
  for (int i = 0; i < 2; ++i) {
    group.send(tensor_of(x), (group.rank() + 1) % n, *rank.stream);
    const Span sent = only_span(row);
    EXPECT_EQ(sent.info.cost.bytes, 0);
    EXPECT_EQ(sent.wire_start_ns, sent.wire_end_ns);
    if (group.rank() == i)
      std::this_thread::sleep_for(std::chrono::nanoseconds(
          2 * wire_time(link, wire_cost(CommCall::transfer, tensor_of(x).bytes(), n)).total()));
    group.recv(tensor_of(y), (group.rank() + n - 1) % n, *rank.stream);
    const Span span = only_span(row);
    const int64_t wire = span.wire_end_ns - span.wire_start_ns, floor = floor_of(link, span);
    EXPECT_EQ(span.info.cost.bytes, tensor_of(x).bytes());
    EXPECT_GE(static_cast<double>(wire), 0.95 * static_cast<double>(floor));
    if (emulated) {
      EXPECT_EQ(wire, floor);
    }
    everybodys(group, 0);  // so that no rank gets two transfers ahead
  }
}

}  // namespace

void spans_keep_to_their_floors(Communicator& group, const Link& link, bool emulated, double seconds) {
  const auto length = static_cast<int64_t>(link.gbps * 1e9 / 32 * seconds);
  collectives_keep_to_their_floors(group, link, emulated, length);
  transfers_keep_to_their_floors(group, link, emulated, length);
}

std::vector<CommCase> trace_cases() {
  return {{"collectives_are_on_the_wire_once_all_have_called", collectives_are_on_the_wire_once_all_have_called},
          {"both_ends_of_a_transfer_have_its_number", both_ends_of_a_transfer_have_its_number}};
}

}  // namespace trivet
