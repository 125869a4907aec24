// The emulated link: the conformance cases over it, its formulas, and the guarantee that no message arrives too early.
#include <algorithm>
#include <ctime>
#include <gtest/gtest.h>

#include "parallel/comm/world.h"
#include "tests/support/comm_cases.h"
#include "tests/support/rank_values.h"

namespace trivet {
namespace {

// ---- the cases that every communicator passes

class LinkComm : public testing::TestWithParam<std::tuple<int, CommCase>> {};

TEST_P(LinkComm, conforms) {
  const auto& [ranks, the_case] = GetParam();
  run_thread_ranks(ranks, [&](Communicator& world) {
    const Link link{.latency_us = 3, .gbps = 400};
    const auto linked = with_links(world, {{"tensor", link}, {"pipeline", {.latency_us = 5}}, {"data", link}});
    const auto all = linked->twin("all", comm_of("data"));
    the_case.body(*all);
  });
}

INSTANTIATE_TEST_SUITE_P(ranks, LinkComm, testing::Combine(testing::Values(1, 2, 4), testing::ValuesIn(comm_cases())),
                         [](const auto& info) {
                           return std::string(std::get<1>(info.param).name) + "_on_" +
                                  std::to_string(std::get<0>(info.param));
                         });

// ---- formulas

TEST(Link, WireTimes) {
  const Link link{.latency_us = 10, .gbps = 8};  // a byte per nanosecond
  const auto time = [&](CommCall call, int ranks) { return wire_time(link, wire_cost(call, 4000, ranks)); };
  EXPECT_EQ(time(CommCall::reduce_scatter, 4).busy_ns, 3000);
  EXPECT_EQ(time(CommCall::reduce_scatter, 4).total(), 13000);
  EXPECT_EQ(time(CommCall::all_gather, 2).total(), 12000);
  EXPECT_EQ(time(CommCall::all_reduce, 4).total(), 26000);
  EXPECT_EQ(time(CommCall::broadcast, 4).total(), 22000);
  EXPECT_EQ(time(CommCall::transfer, 4).total(), 14000);
  EXPECT_EQ(wire_time({.latency_us = 7}, wire_cost(CommCall::all_gather, 1 << 30, 4)).total(), 7000)
      << "no limit of bandwidth";
  EXPECT_EQ(wire_time({.gbps = 8}, wire_cost(CommCall::transfer, 4000, 2)).total(), 4000) << "no latency";
  EXPECT_EQ(wire_time({}, wire_cost(CommCall::all_reduce, 1 << 30, 8)).total(), 0);
  EXPECT_GT(wire_time({.gbps = 1e-300}, wire_cost(CommCall::transfer, 1 << 30, 2)).total(), 0) << "no overflow";
}

TEST(Link, GoesByTheClassOfAGroup) {
  const EmulatedLinks links({{"tensor", {.latency_us = 1}}, {"data", {.gbps = 3}}}, false);
  EXPECT_EQ(links.of(comm_of("tensor")).latency_us, 1);
  EXPECT_EQ(links.of(comm_of("data")).gbps, 3);
  EXPECT_TRUE(links.of(comm_of("pipeline")).none());
}

// ---- time. On a busy machine calls end later, never earlier.

constexpr Link kSlow{.latency_us = 500, .gbps = 8};  // a byte per nanosecond

int64_t cpu_ns() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return t.tv_sec * 1'000'000'000 + t.tv_nsec;
}

struct Traced : RankStreams {
  TraceRow row{"row"};
  std::vector<Span> spans;
  Traced() { stream->set_trace_row(&row); }
  const std::vector<Span>& taken() {
    row.take(spans);
    return spans;
  }
};

TEST(Link, CollectivesTakeTheirWireTimeAndTheWaiterSleeps) {
  run_thread_ranks(3, [](Communicator& world) {
    constexpr Link kSlower{.latency_us = 100'000, .gbps = 8};  // so that the arithmetic is negligible
    const auto linked = with_links(world, {{"data", kSlower}});
    const auto group = linked->twin("group", comm_of("data"));
    Traced rank;
    std::vector<float> full(60000), shard(20000);
    const auto timed = [&](CommCall call, int64_t least, auto&& f) {
      EXPECT_EQ(wire_time(kSlower, wire_cost(call, tensor_of(full).bytes(), 3)).total(), least);
      const int64_t before = cpu_ns();
      f();
      const int64_t busy = cpu_ns() - before;
      const Span span = rank.taken().back();
      EXPECT_GE(span.wire_end_ns - span.wire_start_ns, least) << span.info.name;
      EXPECT_LT(busy, least / 2) << "a call that spins is busy all the time";
    };
    timed(CommCall::all_reduce, 2 * (100'000'000 + 160'000),
          [&] { group->all_reduce(tensor_of(full), Reduce::sum, *rank.stream); });
    timed(CommCall::reduce_scatter, 100'000'000 + 160'000,
          [&] { group->reduce_scatter(tensor_of(full), tensor_of(shard), Reduce::sum, *rank.stream); });
    timed(CommCall::all_gather, 100'000'000 + 160'000,
          [&] { group->all_gather(tensor_of(shard), tensor_of(full), *rank.stream); });
    timed(CommCall::broadcast, 100'000'000 + 480'000, [&] { group->broadcast(tensor_of(full), 1, *rank.stream); });
  });
}

// Two receivers, in two groups of one category: rank 0's messages leave through one port, one after another.
TEST(Link, SendsOfARankShareItsPort) {
  constexpr int kSends = 6;
  constexpr int64_t kFloats = 50'000, kBusy = 4 * kFloats;
  std::vector<Span> received[3];
  std::vector<Span> sent;
  run_thread_ranks(3, [&](Communicator& world) {
    const auto linked = with_links(world, {{"pipeline", kSlow}});
    std::unique_ptr<Communicator> pairs[3];  // [1], [2]: rank 0 and that rank
    for (int to = 1; to <= 2; ++to) pairs[to] = linked->split({0, to}, "pair", comm_of("pipeline"));
    Traced rank;
    std::vector<float> x(kFloats);
    if (world.rank() == 0) {
      for (int i = 0; i < kSends; ++i) pairs[1 + i % 2]->send(tensor_of(x), 1, *rank.stream);
      sent = rank.taken();
    } else {
      for (int i = 0; i < kSends / 2; ++i) pairs[world.rank()]->recv(tensor_of(x), 0, *rank.stream);
      received[world.rank()] = rank.taken();
    }
  });
  ASSERT_EQ(sent.size(), static_cast<size_t>(kSends));
  for (int i = 0; i < kSends; ++i) {
    // The i-th send: the i / 2-th message to one of the receivers.
    const Span& arrival = received[1 + i % 2][static_cast<size_t>(i / 2)];
    EXPECT_EQ(arrival.transfer_id, sent[static_cast<size_t>(i)].transfer_id);
    EXPECT_GE(arrival.end_ns - sent[0].start_ns, (i + 1) * kBusy + 500'000) << "transfer " << i;
    EXPECT_GE(arrival.end_ns - sent[static_cast<size_t>(i)].start_ns, kBusy + 500'000) << "transfer " << i;
  }
}

TEST(Link, NoSpanIsShorterThanItsFloor) {
  for (const int ranks : {2, 3})
    run_thread_ranks(ranks, [](Communicator& world) {
      const Link link{.latency_us = 300, .gbps = 1};
      const auto linked = with_links(world, {{"data", link}});
      spans_keep_to_their_floors(*linked->twin("group", comm_of("data")), link, true, 0.01);
    });
}

TEST(Link, AMeasuredLinkIsNoFasterThanItIs) {
  run_thread_ranks(2, [](Communicator& world) {
    const Link link{.latency_us = 2000, .gbps = 4};
    const auto linked = with_links(world, {{"data", link}});
    RankStreams rank;
    const Link found = measure_link(*linked->twin("group", comm_of("data")), *rank.device, *rank.stream);
    const WireCost whole = wire_cost(CommCall::all_gather, 8 << 20, 2);
    EXPECT_GE(found.latency_us, 2000);
    EXPECT_GE(wire_time(found, whole).total() + 1000, wire_time(link, whole).total());
    EXPECT_GT(found.gbps, 0);
  });
}

// The best of five takes at most a fifth of the total.
TEST(Link, AMeasuredLinkIsAsFastAsItsCallsWere) {
  run_thread_ranks(2, [](Communicator& world) {
    const auto linked = with_links(world, {{"data", {.latency_us = 10, .gbps = 4}}});
    RankStreams rank;
    const auto group = linked->twin("group", comm_of("data"));
    const int64_t begin = now_ns();
    const Link found = measure_link(*group, *rank.device, *rank.stream);
    const double fifth = static_cast<double>(now_ns() - begin) / 5;
    EXPECT_GE(found.gbps, 8 * static_cast<double>(wire_cost(CommCall::all_gather, 8 << 20, 2).bytes) / fifth);
  });
}

// A shard goes to three peers.
TEST(Link, AMeasuredLinkCarriesTheShardToEveryPeer) {
  run_thread_ranks(4, [](Communicator& world) {
    const auto linked = with_links(world, {{"data", {.latency_us = 10, .gbps = 1}}});
    RankStreams rank;
    const auto group = linked->twin("group", comm_of("data"));
    const int64_t begin = now_ns();
    const Link found = measure_link(*group, *rank.device, *rank.stream);
    const double fifth = static_cast<double>(now_ns() - begin) / 5;
    EXPECT_GE(found.gbps, 8 * static_cast<double>(wire_cost(CommCall::all_gather, 8 << 20, 4).bytes) / fifth);
  });
}

// Rank 0 sends to rank 1, then both gather: on a shared port rank 0's shard leaves after its message.
TEST(Link, ClassesMayShareAPort) {
  for (const bool shared : {true, false})
    run_thread_ranks(2, [&](Communicator& world) {
      const auto linked = with_links(world, {{"data", kSlow}, {"pipeline", kSlow}}, shared);
      const auto data = linked->twin("data", comm_of("data")), pipeline = linked->twin("p", comm_of("pipeline"));
      Traced rank;
      constexpr int64_t kMegabytes = 80'000'000;  // at a byte per nanosecond
      std::vector<std::byte> message(world.rank() == 0 ? kMegabytes : 0), full(2'000'000);
      const int64_t before = now_ns();
      if (world.rank() == 0) pipeline->send({message.data(), DType::u8, {kMegabytes}}, 1, *rank.stream);
      data->all_gather({full.data() + world.rank() * 1'000'000, DType::u8, {1'000'000}},
                       {full.data(), DType::u8, {2'000'000}}, *rank.stream);
      const Span span = rank.taken().back();
      if (shared) {
        EXPECT_GE(span.wire_end_ns - before, kMegabytes + 1'000'000 + 500'000) << "on both ranks";
      }
      EXPECT_GE(span.wire_end_ns - span.wire_start_ns, 1'500'000);
      std::vector<std::byte> arrived(kMegabytes);
      if (world.rank() == 1) pipeline->recv({arrived.data(), DType::u8, {kMegabytes}}, 0, *rank.stream);
    });
}

// If a send waited for its transfer, the test would exceed its time limit.
TEST(Link, ASendDoesNotWait) {
  run_thread_ranks(2, [](Communicator& world) {
    const auto linked = with_links(world, {{"pipeline", {.latency_us = 1e10, .gbps = 1e-6}}});
    const auto group = linked->twin("group", comm_of("pipeline"));
    Traced rank;
    std::vector<float> x(1000);
    for (int i = 0; i < 3; ++i) group->send(tensor_of(x), 1 - world.rank(), *rank.stream);
    EXPECT_EQ(rank.taken().size(), 3u);
  });
}

TEST(Link, AGroupWithoutALinkIsAsBefore) {
  run_thread_ranks(2, [](Communicator& world) {
    const auto linked = with_links(world, {{"data", {.latency_us = 1e9}}});
    const auto tensor = linked->twin("tensor", comm_of("tensor"));
    const auto alone = linked->split({world.rank()}, "alone", comm_of("data"));
    Traced rank;
    std::vector<float> x(10, 1.0f);
    tensor->all_reduce(tensor_of(x), Reduce::sum, *rank.stream);
    EXPECT_EQ(x[3], 2.0f);
    EXPECT_EQ(rank.taken().size(), 1u);
    alone->all_reduce(tensor_of(x), Reduce::sum, *rank.stream);   // a group of one
    linked->all_reduce(tensor_of(x), Reduce::sum, *rank.stream);  // the world
    EXPECT_EQ(rank.taken().size(), 1u);
    EXPECT_EQ(x[3], 4.0f);
  });
}

TEST(Link, ErrorsPassThrough) {
  try {
    run_thread_ranks(2, [](Communicator& world) {
      const auto linked = with_links(world, {{"data", kSlow}});
      const auto group = linked->twin("group", comm_of("data"));
      Traced rank;
      std::vector<float> x(10);
      group->all_reduce(part_of(x, 0, world.rank() == 0 ? 10 : 9), Reduce::sum, *rank.stream);
    });
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("rank 0 calls all_reduce(sum) of 10 fp32"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace trivet
