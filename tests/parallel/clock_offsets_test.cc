#include "parallel/comm/clock_offsets.h"

#include <atomic>
#include <gtest/gtest.h>

#include "parallel/comm/call.h"
#include "parallel/comm/world.h"

namespace trivet {
namespace {

// Ranks 2 and 3 share a clock that is an hour ahead; between two measurements it gains a second.
TEST(ClockOffsets, AreWithinHalfARoundTrip) {
  constexpr int64_t kHour = 3'600'000'000'000, kSecond = 1'000'000'000;
  std::atomic<int64_t> ahead = kHour;
  run_thread_ranks(4, [&](Communicator& world) {
    HostWorld host(world);
    const bool other = world.rank() >= 2;
    ClockOffsets clocks(host, other ? 7 : 5, [&ahead, other] { return now_ns() + (other ? ahead.load() : 0); });
    EXPECT_FALSE(clocks.one_clock());
    const int64_t at = now_ns() + (other ? kHour : 0), first = clocks.offset(at), error = clocks.round_trip() / 2 + 1;
    EXPECT_LE(std::abs(first + (other ? kHour : 0)), error);
    const std::vector<int64_t> all = host.gather(first);
    EXPECT_EQ(all[2], all[3]);
    EXPECT_EQ(all[1], 0);

    world.barrier();
    if (world.rank() == 0) ahead += kSecond;
    world.barrier();
    clocks.measure();
    EXPECT_EQ(clocks.offset(0), first);
    EXPECT_LE(std::abs(clocks.offset(INT64_MAX) + (other ? kHour + kSecond : 0)), clocks.round_trip() / 2 + 1);
    if (!other) return;
    // The time at which the clock gained the second is unknown.
    const int64_t middle = clocks.offset(at + kSecond / 2);
    EXPECT_GT(middle, clocks.offset(INT64_MAX));
    EXPECT_LT(middle, first);
  });
}

// Three hosts, whose clocks are hours apart. (Round trips take far less than half an hour.)
TEST(ClockOffsets, EachHostHasItsOwn) {
  constexpr int64_t kHour = 3'600'000'000'000;
  run_thread_ranks(4, [](Communicator& world) {
    HostWorld host(world);
    const int64_t hours = world.rank() == 3 ? 1 : world.rank();  // ranks 1 and 3 share a host
    const int64_t ahead = hours * kHour;
    ClockOffsets clocks(host, 5 + hours, [ahead] { return now_ns() + ahead; });
    EXPECT_LE(std::abs(clocks.offset(now_ns() + ahead) + ahead), kHour / 2) << "rank " << world.rank();
  });
}

// Monotonic clocks count from each host's boot: another host's time says nothing here, be it ahead or behind.
TEST(Transfer, MovesByTheReceiversClock) {
  constexpr int64_t kHour = 3'600'000'000'000;
  EXPECT_EQ(both_called_ns(true, 100, 150, 170), 150);
  EXPECT_EQ(both_called_ns(true, 150, 100, 170), 150);
  for (const int64_t ahead : {-kHour, int64_t{0}, kHour}) EXPECT_EQ(both_called_ns(false, 0, 150 + ahead, 170), 170);
}

TEST(ClockOffsets, OneClockIsNotMeasured) {
  run_thread_ranks(2, [](Communicator& world) {
    HostWorld host(world);
    ClockOffsets clocks(host);
    clocks.measure();
    EXPECT_TRUE(clocks.one_clock());
    EXPECT_EQ(clocks.offset(now_ns()), 0);
  });
}

}  // namespace
}  // namespace trivet
