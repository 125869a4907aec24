#include "docs/course/exercises/learning_rate.h"

#include "docs/course/exercises/support/testing.h"
#include "engine/train/lr_schedule.h"

namespace trivet::exercise {
namespace {

TEST(learning_rate, has_its_three_corners) {
  const RateSchedule schedule{.warmup = 10, .decay = 110, .peak = 6e-4, .least = 6e-5};
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 1), 6e-5) << "a tenth of the way up";
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 10), 6e-4) << "the peak";
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 60), 3.3e-4) << "half of the way down";
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 110), 6e-5) << "the end of the decay";
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 1000), 6e-5) << "long after the decay";
}

TEST(learning_rate, is_the_engines_at_every_step) {
  const RateSchedule schedule{.warmup = 7, .decay = 100, .peak = 3e-4, .least = 1e-5};
  OptimizerConfig config;
  config.lr_decay_style = LrDecay::cosine;
  for (int64_t step = 1; step <= 120; ++step)
    ASSERT_NEAR(learning_rate(schedule, step),
                trivet::learning_rate(config, {.warmup = 7, .decay = 100}, step, 3e-4, 1e-5), 1e-15)
        << "at step " << step;
}

}  // namespace
}  // namespace trivet::exercise
