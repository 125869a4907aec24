#include "tools/plan/due_queue.h"

#include <gtest/gtest.h>
#include <map>
#include <random>

namespace trivet::test {
namespace {

// Items are taken in the order of their times, also those that are added for the time that it is.
TEST(DueQueue, TakesTheEarliest) {
  std::mt19937 random(7);
  DueQueue queue;
  std::multimap<int64_t, uint32_t> expected;
  int64_t now = 0;
  for (uint32_t i = 0; i < 20'000; ++i) {
    const int64_t time = now + static_cast<int64_t>(random() % 40) * (i % 3 == 0 ? 1'000'003 : 1);
    queue.add(time, {.what = i, .version = i + 1});
    expected.emplace(time, i);
    for (auto takes = random() % 3; takes > 0 && !queue.empty(); --takes) {
      now = queue.time();
      ASSERT_EQ(now, expected.begin()->first);
      const DueQueue::Item item = queue.take();
      EXPECT_EQ(item.version, item.what + 1);
      const auto [first, end] = expected.equal_range(now);
      const auto taken = std::find_if(first, end, [&](const auto& one) { return one.second == item.what; });
      ASSERT_NE(taken, end);
      expected.erase(taken);
    }
  }
  EXPECT_EQ(queue.empty(), expected.empty());
}

}  // namespace
}  // namespace trivet::test
