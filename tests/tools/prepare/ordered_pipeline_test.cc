#include "tools/prepare/ordered_pipeline.h"

#include <atomic>
#include <gtest/gtest.h>
#include <stdexcept>

namespace trivet {
namespace {

TEST(OrderedPipeline, WritesInTheOrderOfReading) {
  for (const size_t threads : {1, 2, 7}) {
    // given: items, some of which take much longer than others
    int next = 0;
    std::atomic<int> in_flight = 0, most = 0;
    std::vector<int> written;
    ordered_pipeline<int>(
        threads,
        [&](int& item) {
          const int now = ++in_flight;
          for (int seen = most; now > seen && !most.compare_exchange_weak(seen, now);) continue;
          item = next++;
          return item < 300;
        },
        [](int& item) {
          if (item % 17 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
          item *= 3;
        },
        [&](int item) {
          written.push_back(item);
          --in_flight;
        });
    // then: they come in order, and few were in flight at a time
    ASSERT_EQ(written.size(), 300u);
    for (int i = 0; i < 300; ++i) EXPECT_EQ(written[static_cast<size_t>(i)], 3 * i);
    EXPECT_LE(most, static_cast<int>(2 * threads) + 1);  // plus the read that finds the end
  }
}

TEST(OrderedPipeline, EndsWithTheFirstFailureOfAnyStage) {
  for (int run = 0; run < 150; ++run) {  // because thread timing varies
    const int stage = run % 3;
    const auto fail_at = [&](int which, int item) {
      if (which == stage && item == 40) throw std::runtime_error("stage " + std::to_string(stage));
    };
    int next = 0, written = 0;
    try {
      ordered_pipeline<int>(
          3,
          [&](int& item) {
            fail_at(0, item = next++);
            return item < 10'000;
          },
          [&](int& item) { fail_at(1, item); },
          [&](int item) {
            fail_at(2, item);
            ++written;
          });
      ADD_FAILURE() << "no exception";
    } catch (const std::runtime_error& error) {
      EXPECT_EQ(error.what(), "stage " + std::to_string(stage));
    }
    EXPECT_LE(written, 40);
  }
}

}  // namespace
}  // namespace trivet
