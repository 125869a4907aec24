// The example of docs/extending.md for a schedule: one micro-batch goes through all stages and back before the next one
// begins, as without pipelining. A schedule is data, so the checker, the simulator and the executor take it as it is.
#include <gtest/gtest.h>

#include "parallel/pipeline/check.h"
#include "parallel/pipeline/simulate.h"
#include "tests/support/temp_dir.h"
#include "tests/support/training.h"

namespace trivet::test {
namespace {

// p ranks, m micro-batches, one chunk per rank: F0 B0 F1 B1 … on every rank.
Schedule one_at_a_time(int p, int m) {
  Schedule schedule{.kind = "one-at-a-time", .p = p, .m = m};
  Program program;
  for (int micro_batch = 0; micro_batch < m; ++micro_batch) {
    program.push_back({OpKind::forward, micro_batch});
    program.push_back({OpKind::backward, micro_batch});
  }
  schedule.programs.assign(static_cast<size_t>(p), program);
  return schedule;
}

TEST(ExtendingSchedule, IsSoundAndHasTheBubbleOfItsClosedForm) {
  for (const int p : {1, 2, 4})
    for (const int m : {1, 3, 8}) {
      const Schedule schedule = one_at_a_time(p, m);
      EXPECT_TRUE(find_problems(schedule).empty());
      EXPECT_TRUE(gradients_in_order(schedule));
      EXPECT_EQ(parse_schedule(to_text(schedule), "text").programs, schedule.programs);
      EXPECT_EQ(peaks_of(schedule.programs, 1), std::vector<Peak>(static_cast<size_t>(p), {1, 0}));
      // T = 3 per micro-batch and stage; each rank idles for m (p-1) T
      const Bubble bubble = bubble_of(simulate(schedule, {}));
      EXPECT_EQ(bubble.time(), 3.0 * m * (p - 1));
    }
}

TEST(ExtendingSchedule, TrainsToTheLossesOfOneRank) {
  // given: the schedule in a file, which the key accepts like a built-in kind
  const TempDir dir;
  const std::string file = dir / "one-at-a-time.txt";
  Config config = tiny_config();
  config.model.untie_embeddings_and_output_weights = true;
  write_text(file, to_text(one_at_a_time(2, 4)));
  // when
  constexpr int kSteps = 2;
  const Curve one = train_on_threads(config, 1, kSteps);
  const Curve two = train_on_threads(cut(config, {.p = 2, .schedule = file.c_str()}), 2, kSteps, true);
  // then
  expect_equal(two, one);
}

}  // namespace
}  // namespace trivet::test
