// What the spans of calls tell: when all ranks had made the call, and which send belongs to which receive.
#include <algorithm>
#include <set>

#include "tests/support/comm_cases.h"
#include "tests/support/rank_values.h"

namespace trivet {
namespace {

// Everybody's number, by rank.
std::vector<int64_t> everybodys(Communicator& world, int64_t mine) {
  RankStreams rank;
  std::vector<int64_t> all(static_cast<size_t>(world.size()));
  std::vector<int64_t> one = {mine};
  world.all_gather(tensor_of(one), tensor_of(all), *rank.stream);
  return all;
}

Span only_span(TraceRow& row) {  // but for those of copies, of a back end that has any
  std::vector<Span> spans;
  row.take(spans);
  std::erase_if(spans, [](const Span& span) { return !is_comm(span.info.category); });
  EXPECT_EQ(spans.size(), 1u);
  return spans.empty() ? Span{} : spans.back();
}

void collectives_are_matched_when_all_have_called(Communicator& world) {
  if (world.size() == 1) return;
  TraceRow row("row");  // before the streams: they tell it what they know to their end
  RankStreams rank;
  rank.stream->set_trace_row(&row);
  const int64_t n = world.size();
  for (const int64_t length : {1, 50003})
    for (int call = 0; call < 5; ++call) {
      std::vector<float> full(static_cast<size_t>(length * n), 1.0f), shard(static_cast<size_t>(length)), to(full);
      switch (call) {
        case 0: world.all_reduce(tensor_of(full), Reduce::sum, *rank.stream); break;
        case 1: world.reduce_scatter(tensor_of(full), tensor_of(shard), Reduce::sum, *rank.stream); break;
        case 2: world.all_gather(tensor_of(shard), tensor_of(full), *rank.stream); break;
        case 3: world.all_to_all(tensor_of(full), tensor_of(to), *rank.stream); break;
        case 4: world.broadcast(tensor_of(full), static_cast<int>(n) - 1, *rank.stream); break;
      }
      const Span span = only_span(row);
      const std::vector<int64_t> starts = everybodys(world, span.start_ns);
      EXPECT_GE(span.matched_ns, *std::max_element(starts.begin(), starts.end())) << span.info.name;
      EXPECT_LE(span.matched_ns, span.end_ns) << span.info.name;
      EXPECT_EQ(span.transfer_id, 0u);
    }
}

// A ring of transfers over two groups of the same ranks: no two transfers have the same number.
void both_ends_of_a_transfer_have_its_number(Communicator& world) {
  if (world.size() == 1) return;
  TraceRow row("row");  // before the streams: they tell it what they know to their end
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
      EXPECT_EQ(sent.matched_ns, 0);
      EXPECT_GE(received.matched_ns, std::max(received.start_ns, starts[static_cast<size_t>(previous)]));
      EXPECT_LE(received.matched_ns, received.end_ns);
      for (const int64_t id : ids) {
        EXPECT_NE(id, 0);
        EXPECT_TRUE(seen.insert(static_cast<uint64_t>(id)).second);
      }
    }
}

}  // namespace

std::vector<CommCase> trace_cases() {
  return {{"collectives_are_matched_when_all_have_called", collectives_are_matched_when_all_have_called},
          {"both_ends_of_a_transfer_have_its_number", both_ends_of_a_transfer_have_its_number}};
}

}  // namespace trivet
