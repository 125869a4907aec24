#include "parallel/pipeline/schedule.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <gtest/gtest.h>
#include <map>
#include <utility>

#include "base/check.h"
#include "parallel/pipeline/timeline.h"
#include "tests/parallel/pipeline/says.h"

namespace trivet {
namespace {

std::string line_of(const Schedule& schedule, int rank) {
  std::string line;
  for (const Op& op : schedule.programs[static_cast<size_t>(rank)]) {
    if (!line.empty()) line += ' ';
    line += to_string(op, schedule.v > 1);
  }
  return line;
}

// ---- the rules, on cases small enough to check by hand against the papers' figures

TEST(Schedules, OneForwardOneBackward) {
  const Schedule schedule = make_schedule({.kind = "1f1b", .p = 4, .m = 4});
  EXPECT_EQ(line_of(schedule, 0), "F0 F1 F2 F3 B0 B1 B2 B3");
  EXPECT_EQ(line_of(schedule, 1), "F0 F1 F2 B0 F3 B1 B2 B3");
  EXPECT_EQ(line_of(schedule, 3), "F0 B0 F1 B1 F2 B2 F3 B3");
}

TEST(Schedules, EagerWarmsUpTwice) {
  const Schedule schedule = make_schedule({.kind = "1f1b-eager", .p = 3, .m = 6});
  EXPECT_EQ(line_of(schedule, 0), "F0 F1 F2 F3 F4 B0 F5 B1 B2 B3 B4 B5");
  EXPECT_EQ(line_of(schedule, 1), "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 B4 B5");
}

TEST(Schedules, GPipe) { EXPECT_EQ(line_of(make_schedule({.kind = "gpipe", .p = 2, .m = 3}), 0), "F0 F1 F2 B0 B1 B2"); }

TEST(Schedules, InterleavedTakesGroupsThroughTheChunks) {
  const Schedule schedule = make_schedule({.kind = "interleaved", .p = 2, .m = 4, .v = 2});
  EXPECT_EQ(schedule.group_size, 2);
  EXPECT_EQ(line_of(schedule, 1), "F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 F2.0 B0.0 F3.0 B1.0 F2.1 B2.1 F3.1 B3.1 B2.0 B3.0");
}

TEST(Schedules, InterleavedChoosesTheSmallestGroupThatWorks) {
  const auto group = [](int p, int m) { return *make_schedule({.kind = "interleaved", .p = p, .m = m}).group_size; };
  EXPECT_EQ(group(4, 8), 4);
  EXPECT_EQ(group(4, 9), 5);   // 9 = 5 + 4
  EXPECT_EQ(group(4, 11), 6);  // 11 = 6 + 5; 4 and 5 would leave 3 and 1
  EXPECT_EQ(group(4, 5), 5);
}

TEST(Schedules, BreadthFirstFinishesAChunkFirst) {
  EXPECT_EQ(line_of(make_schedule({.kind = "interleaved-bfs", .p = 2, .m = 2, .v = 2}), 0),
            "F0.0 F1.0 F0.1 F1.1 B0.1 B1.1 B0.0 B1.0");
}

TEST(Schedules, ZeroBubbleHDelaysWeightHalvesByRank) {
  const Schedule h1 = make_schedule({.kind = "zb-h1", .p = 3, .m = 4});
  EXPECT_EQ(line_of(h1, 0), "F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3");
  EXPECT_EQ(line_of(h1, 2), "F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3");
  EXPECT_EQ(line_of(make_schedule({.kind = "zb-h2", .p = 2, .m = 4}), 0), "F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3");
}

TEST(Schedules, ZeroBubbleVTurnsOnTheLastRank) {
  const Schedule schedule = make_schedule({.kind = "zb-v", .p = 2, .m = 3});
  EXPECT_EQ(line_of(schedule, 1),
            "F0.0 F0.1 F1.0 F1.1 I0.1 W0.1 F2.0 I0.0 W0.0 F2.1 I1.1 W1.1 I1.0 I2.1 I2.0 W1.0 W2.1 W2.0");
}

// ---- stage maps

TEST(StageMap, InterleavedGoesRoundAndVGoesUpAndDown) {
  Schedule schedule{.p = 3, .v = 2};
  EXPECT_EQ(schedule.stage_of(1, 1), 4);
  EXPECT_EQ(schedule.rank_of(4), 1);
  schedule.map = StageMap::v_shaped;
  EXPECT_EQ(schedule.stage_of(1, 1), 4);
  EXPECT_EQ(schedule.stage_of(0, 1), 5);
  EXPECT_EQ(schedule.stage_of(2, 1), 3);
  for (StageMap map : {StageMap::interleaved, StageMap::v_shaped}) {
    schedule.map = map;
    for (int stage = 0; stage < schedule.stages(); ++stage)
      EXPECT_EQ(schedule.stage_of(schedule.rank_of(stage), schedule.chunk_of(stage)), stage);
  }
}

TEST(StageMap, ChannelsFollowFromOpsAndMap) {
  Schedule ring{.p = 3, .v = 2};
  EXPECT_EQ(ring.receives(0, {OpKind::forward, 0, 0}), std::nullopt);
  EXPECT_EQ(ring.sends(2, {OpKind::forward, 0, 0}), (Channel{2, 0, Payload::activation}));
  EXPECT_EQ(ring.receives(0, {OpKind::forward, 0, 1}), (Channel{2, 0, Payload::activation}));
  EXPECT_EQ(ring.sends(0, {OpKind::backward_input, 0, 1}), (Channel{0, 2, Payload::gradient}));
  EXPECT_EQ(ring.sends(2, {OpKind::forward, 0, 1}), std::nullopt);
  EXPECT_EQ(ring.sends(1, {OpKind::backward_weight, 0, 1}), std::nullopt);

  Schedule fold{.p = 3, .v = 2, .map = StageMap::v_shaped};
  EXPECT_EQ(fold.sends(2, {OpKind::forward, 0, 0}), std::nullopt);  // the turning point: a local hand-off
  EXPECT_EQ(fold.sends(2, {OpKind::forward, 0, 1}), (Channel{2, 1, Payload::activation}));
  EXPECT_EQ(fold.receives(1, {OpKind::backward, 0, 1}), (Channel{0, 1, Payload::gradient}));
}

// ---- text

TEST(ScheduleText, WhatIsWrittenIsRead) {
  for (const ScheduleKind& kind : schedule_kinds()) {
    const Schedule schedule = make_schedule({.kind = std::string(kind.name), .p = 3, .m = 7});
    EXPECT_EQ(parse_schedule(to_text(schedule), "text"), schedule) << kind.name;
  }
}

TEST(ScheduleText, HeaderPrefixesAndChunksMayBeLeftOut) {
  const Schedule schedule = parse_schedule("# mine\nF0 F1.1 B0   # two\n\n1: I0 W0\r\n", "text");
  EXPECT_EQ(schedule.kind, "custom");
  EXPECT_EQ(schedule.p, 2);
  EXPECT_EQ(schedule.m, 2);
  EXPECT_EQ(schedule.v, 2);
  EXPECT_EQ(line_of(schedule, 0), "F0.0 F1.1 B0.0");
  EXPECT_EQ(line_of(schedule, 1), "I0.0 W0.0");
}

TEST(ScheduleText, ErrorsPointAtTheToken) {
  const auto error = [](std::string_view text) { return config_error_of([&] { parse_schedule(text, "my.txt"); }); };
  EXPECT_TRUE(says(error("F0 B0\nF0  X7 B0\n"), {"my.txt:2:5: 'X7': expected F, B, I or W"}));
  EXPECT_TRUE(says(error("F0 F"), {"my.txt:1:4: 'F'"}));
  EXPECT_TRUE(says(error("F0 F1."), {"my.txt:1:4: 'F1.'"}));
  EXPECT_TRUE(says(error("F0 F1,B0"), {"my.txt:1:4: 'F1,B0'"}));
  EXPECT_TRUE(says(error("F99999999999"), {"my.txt:1:1: 'F99999999999'"}));
  EXPECT_TRUE(says(error("F-1"), {"my.txt:1:1: 'F-1'"}));
  EXPECT_TRUE(says(error("schedule m=2\nF0 F2"), {"my.txt:2:4: 'F2': the header says m=2, so 0 to 1"}));
  EXPECT_TRUE(says(error("schedule v=1\nF0.1"), {"my.txt:2:1: 'F0.1': the header says v=1"}));
  EXPECT_TRUE(says(error("schedule map=x\nF0"), {"my.txt:1:10: 'map=x'"}));
  EXPECT_TRUE(says(error("schedule p=0\nF0"), {"my.txt:1:10: 'p=0'"}));
  EXPECT_TRUE(says(error("schedule p=2\nF0 B0"), {"my.txt: the header says p=2, but 1 lines"}));
  EXPECT_TRUE(says(error("0: F0 B0\n2: F0 B0"), {"my.txt:2:1: '2:': expected '1:'"}));
  EXPECT_TRUE(says(error("F0\nschedule p=1"), {"my.txt:2:1: 'schedule'"}));
  EXPECT_TRUE(says(error("# nothing\n"), {"no line with ops"}));
}

TEST(ScheduleText, FileErrorsNameTheFile) {
  EXPECT_THROW(read_schedule_file("/nonexistent/schedule.txt"), IoError);
  EXPECT_THROW(read_schedule_file("/dev/zero"), DataError);
  const std::string path = ::testing::TempDir() + "schedule_test.txt";
  std::ofstream(path) << to_text(make_schedule({.kind = "zb-v", .p = 2, .m = 4}));
  EXPECT_EQ(read_schedule_file(path), make_schedule({.kind = "zb-v", .p = 2, .m = 4}));
  std::remove(path.c_str());
}

// ---- invalid requests

TEST(Requests, SayWhichNumbersDisagreeAndWhatWouldWork) {
  const auto error = [](ScheduleRequest request) { return config_error_of([&] { make_schedule(request); }); };
  EXPECT_TRUE(says(error({.kind = "2f2b"}), {"'2f2b'", "1f1b-eager", "zb-v"}));
  EXPECT_TRUE(says(error({.p = 0}), {"p = 0"}));
  EXPECT_TRUE(says(error({.p = 2, .m = 0}), {"m = 0"}));
  EXPECT_TRUE(says(error({.kind = "1f1b", .p = 2, .m = 2, .v = 2}), {"v = 2", "interleaved"}));
  EXPECT_TRUE(says(error({.kind = "interleaved", .p = 2, .m = 2, .v = 1}), {"v = 1", "1f1b"}));
  EXPECT_TRUE(says(error({.kind = "zb-v", .p = 2, .m = 2, .v = 3}), {"v = 2", "v = 3"}));
  EXPECT_TRUE(says(error({.kind = "zb-h1", .p = 2, .m = 2, .group_size = 2}), {"no group size"}));
  EXPECT_TRUE(says(error({.kind = "interleaved", .p = 4, .m = 3}), {"m = 3 and p = 4", "1f1b"}));
  EXPECT_TRUE(
      says(error({.kind = "interleaved", .p = 4, .m = 8, .group_size = 3}), {"from p = 4 to m = 8", "4 works"}));
  EXPECT_TRUE(says(error({.kind = "interleaved", .p = 4, .m = 8, .group_size = 9}), {"from p = 4 to m = 8"}));
  EXPECT_TRUE(says(error({.kind = "interleaved", .p = 4, .m = 9, .group_size = 4}),
                   {"last group of 1", "group size of 5 works"}));
  EXPECT_TRUE(says(error({.kind = "dualpipe-v", .p = 4, .m = 7}), {"2 p = 8", "m = 7"}));
}

// ---- slots

TEST(Slots, NoTwoMicroBatchesShareASlotAtATime) {
  for (const ScheduleKind& kind : schedule_kinds())
    for (SlotPool pool : {SlotPool::per_chunk, SlotPool::shared}) {
      const Schedule schedule = make_schedule({.kind = std::string(kind.name), .p = 3, .m = 9});
      for (const Program& program : schedule.programs) {
        const SlotPlan plan = plan_slots(program, schedule.v, pool);
        // Owner of each (pool, slot) and (pool, stash) while the program runs: {micro-batch, chunk}.
        using Owner = std::pair<int, int>;
        std::map<std::pair<int, int>, Owner> slots, stashes;
        for (size_t i = 0; i < program.size(); ++i) {
          const Op& op = program[i];
          const int in = pool == SlotPool::per_chunk ? op.chunk : 0;
          const Owner owner{op.microbatch, op.chunk};
          ASSERT_LT(plan.slot[i], plan.slots[static_cast<size_t>(in)]);
          if (op.kind == OpKind::forward) {
            ASSERT_TRUE(slots.emplace(std::pair{in, plan.slot[i]}, owner).second);
          }
          ASSERT_EQ(slots.at({in, plan.slot[i]}), owner);
          if (op.kind == OpKind::backward_input) {
            ASSERT_TRUE(stashes.emplace(std::pair{in, plan.stash[i]}, owner).second);
          }
          if (op.kind == OpKind::backward_weight) {
            ASSERT_EQ(stashes.at({in, plan.stash[i]}), owner);
            stashes.erase({in, plan.stash[i]});
          }
          if (op.kind == OpKind::backward || op.kind == OpKind::backward_weight) slots.erase({in, plan.slot[i]});
        }
        ASSERT_TRUE(slots.empty() && stashes.empty());
      }
    }
}

TEST(Slots, PoolsAreAsLargeAsTheirPeaks) {
  // Two micro-batches of chunk 0 in flight, later two of chunk 1: two slots if shared, else two for each chunk.
  const Program program = parse_schedule("F0.0 F1.0 B0.0 B1.0 F0.1 F1.1 B0.1 I1.1 W1.1", "text").programs[0];
  EXPECT_EQ(plan_slots(program, 2, SlotPool::shared).slots, std::vector<int>{2});
  EXPECT_EQ(plan_slots(program, 2, SlotPool::per_chunk).slots, (std::vector<int>{2, 2}));
  EXPECT_EQ(plan_slots(program, 2, SlotPool::per_chunk).stashes, (std::vector<int>{0, 1}));
}

TEST(Slots, ABrokenProgramIsABug) {
  EXPECT_THROW(plan_slots({{OpKind::backward, 0, 0}}, 1, SlotPool::shared), Error);
  EXPECT_THROW(plan_slots({{OpKind::forward, 0, 0}, {OpKind::backward_weight, 0, 0}}, 1, SlotPool::shared), Error);
}

}  // namespace
}  // namespace trivet
