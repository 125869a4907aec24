#include "engine/metrics/walltime.h"

#include <cmath>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/temp_dir.h"
#include "tests/support/training.h"

namespace trivet::test {
namespace {

Config long_run() {
  Config config = tiny_config();
  config.train.train_iters = 1000;
  config.train.eval_interval = 100;
  config.checkpoint.save_interval = 200;
  return config;
}

nlohmann::ordered_json timed_step(int64_t step, double seconds) { return {{"step", step}, {"step_seconds", seconds}}; }
nlohmann::ordered_json timed_save(int64_t step) {
  return {{"event", "checkpoint"}, {"step", step}, {"stall_seconds", 2}, {"seconds", 10}};
}

TEST(WallTime, AddsUpWhatIsLeftOfAJob) {
  std::vector<WallTimeReport> told;
  WallTime time(long_run(), [&](const WallTimeReport& report) { told.push_back(report); });
  time.record({{"event", "resume"}, {"step", 400}, {"start_seconds", 30}});
  time.record(timed_step(401, 20));  // the first step counts as part of the start
  for (int64_t step = 402; step <= 420; ++step) time.record(timed_step(step, 1));
  EXPECT_TRUE(told.empty());
  time.record(timed_step(421, 4));
  ASSERT_EQ(told.size(), 1u) << "the 20th";
  EXPECT_NE(told[0].text.find("none has been made yet"), std::string::npos) << told[0].text;
  // 95 % of the 20 steps took 1 s or less.
  EXPECT_DOUBLE_EQ(told[0].seconds, 30 + 20 + 579 * 1.0);
  EXPECT_DOUBLE_EQ(told[0].lead_seconds, 6);

  // Once an evaluation and a save have been timed, a report follows with the next step.
  time.record({{"event", "eval"}, {"step", 421}, {"seconds", 7}});
  time.record(timed_save(420));  // recorded a step later
  EXPECT_EQ(told.size(), 1u);
  time.record(timed_step(422, 1));
  ASSERT_EQ(told.size(), 2u);
  // 6 evaluations and 3 saves are left, and the run waits for the last save.
  EXPECT_DOUBLE_EQ(told[1].seconds, 50 + 578 + 6 * 7 + 3 * 2 + 10);
  EXPECT_DOUBLE_EQ(told[1].lead_seconds, 1.5 * (4 + 10));
  EXPECT_NE(told[1].text.find("578 steps left"), std::string::npos) << told[1].text;
  EXPECT_NE(told[1].text.find("11:26"), std::string::npos) << told[1].text;
  time.record(timed_save(422));
  for (int64_t step = 423; step <= 610; ++step) time.record(timed_step(step, 1));
  EXPECT_EQ(told.size(), 2u) << "no news";
  time.record(timed_step(611, 1));
  EXPECT_EQ(told.size(), 3u) << "ten times as many steps as when it was told last";
}

// A chain of jobs writes one file; each starts once.
TEST(WallTime, OfAChainOfJobsIsThatOfTheLast) {
  WallTime last(long_run()), chain(long_run());
  for (int64_t job = 0; job < 3; ++job)
    for (WallTime* time : {&last, &chain}) {
      if (time == &last && job < 2) continue;
      time->record({{"event", job == 0 ? "start" : "resume"}, {"step", 100 * job}, {"start_seconds", 300 >> job}});
      for (int64_t step = 100 * job + 1; step <= 100 * (job + 1); ++step)
        time->record(timed_step(step, step % 100 == 1 ? 40 : 1));
    }
  EXPECT_DOUBLE_EQ(last.report().seconds, 75 + 40 + 700);
  EXPECT_DOUBLE_EQ(chain.report().seconds, last.report().seconds);
  EXPECT_EQ(chain.report().text, last.report().text);
}

// Whether the run has become slower or faster, after many steps only the later ones count.
TEST(WallTime, ForgetsTheFirstStepsOfALongRun) {
  constexpr int64_t kMany = 2000;
  for (const auto& [before, now] : {std::pair{1.0, 3.0}, {3.0, 1.0}}) {
    Config config = long_run();
    config.train.train_iters = 3 * kMany;
    config.train.eval_interval = config.checkpoint.save_interval = 0;
    WallTime time(config);
    time.record({{"event", "start"}, {"step", 0}, {"start_seconds", 0}});
    for (int64_t step = 1; step <= 2 * kMany; ++step) time.record(timed_step(step, step <= kMany ? before : now));
    EXPECT_DOUBLE_EQ(time.report().seconds, before + kMany * now);
    EXPECT_DOUBLE_EQ(time.report().lead_seconds, std::ceil(1.5 * now));
  }
}

TEST(WallTime, IsTheSameByTheRecords) {
  const TempDir dir;
  std::string text = R"({"event":"start","step":0,"start_seconds":3,"time":1})"
                     "\n";
  for (int step = 1; step <= 30; ++step)
    text += fmt::format(R"({{"step":{},"step_seconds":{},"loss":null}})"
                        "\n",
                        step, step == 1 ? 50 : 2);
  text += R"({"event":"eval","step":30,"seconds":5,"validation_loss":3})"
          "\n"
          R"({"event":"checkpoint","step":30,"bytes":1,"stall_seconds":1,"seconds":4})"
          "\n"
          R"({"event":"note","step":30,"text":"x"})"
          "\n"
          R"({"event":null,"step":31,"seconds":1e9})"
          "\n";
  write_text(dir / "metrics.jsonl", text);
  WallTime time(long_run());
  EXPECT_FALSE(time.known());
  time.read(dir / "metrics.jsonl");
  ASSERT_TRUE(time.known());
  EXPECT_DOUBLE_EQ(time.report().seconds, 53 + 970 * 2 + 10 * 5 + 5 * 1 + 4);
}

}  // namespace
}  // namespace trivet::test
