#include "docs/course/exercises/exposed_time.h"

#include "docs/course/exercises/support/testing.h"

namespace trivet::exercise {
namespace {

TEST(exposed_time, of_one_transfer) {
  EXPECT_DOUBLE_EQ(exposed_time({{2, 7}}, {}), 5) << "nothing is computed";
  EXPECT_DOUBLE_EQ(exposed_time({{2, 7}}, {{0, 3}, {6, 9}}), 3) << "computed before and after";
  EXPECT_DOUBLE_EQ(exposed_time({{2, 7}}, {{0, 9}}), 0) << "hidden";
  EXPECT_DOUBLE_EQ(exposed_time({}, {{0, 9}}), 0) << "no transfer";
}

TEST(exposed_time, counts_no_instant_twice) {
  EXPECT_DOUBLE_EQ(exposed_time({{0, 4}, {1, 6}}, {}), 6) << "two transfers on the wire together";
  EXPECT_DOUBLE_EQ(exposed_time({{0, 6}}, {{1, 4}, {2, 3}}), 3) << "two kernels on two streams";
}

TEST(exposed_time, equals_a_count_of_ticks) {
  for (uint64_t draw = 0; draw < 50; ++draw) {
    std::vector<Span> spans[2];
    bool busy[2][40] = {};
    for (uint64_t i = 0; i < 12; ++i) {
      const uint64_t random = mixed(100 * draw + i), begin = random % 30, end = begin + random / 64 % 9;
      spans[i % 2].push_back({static_cast<double>(begin), static_cast<double>(end)});
      for (uint64_t tick = begin; tick < end; ++tick) busy[i % 2][tick] = true;
    }
    int expected = 0;
    for (int tick = 0; tick < 40; ++tick) expected += busy[0][tick] && !busy[1][tick];
    ASSERT_DOUBLE_EQ(exposed_time(spans[0], spans[1]), expected) << "of random spans, draw " << draw;
  }
}

}  // namespace
}  // namespace trivet::exercise
