#include "parallel/pipeline/check.h"

#include <deque>
#include <gtest/gtest.h>
#include <map>
#include <set>

#include "base/check.h"
#include "parallel/pipeline/simulate.h"
#include "tests/parallel/pipeline/says.h"
#include "tests/support/temp_dir.h"

namespace trivet {
namespace {

// All requests of a grid that make_schedule accepts.
std::vector<Schedule> many_schedules() {
  std::vector<Schedule> schedules;
  for (const ScheduleKind& kind : schedule_kinds())
    for (int p : {1, 2, 3, 4, 8})
      for (int m : {1, 2, 3, 4, 5, 7, 8, 9, 11, 15, 16, 17})
        for (int v : {1, 2, 3})
          for (int group : {0, p, p + 1, 2 * p, m}) {
            const auto optional_group = group == 0 ? std::nullopt : std::optional(group);
            try {
              schedules.push_back(make_schedule({std::string(kind.name), p, m, v, optional_group}));
            } catch (const ConfigError&) {
            }
          }
  return schedules;
}

// On each rank, weight halves run in the order of their input halves, across all its chunks.
bool weight_halves_in_order(const Schedule& schedule) {
  for (const Program& program : schedule.programs) {
    std::deque<Op> waiting;
    for (const Op& op : program) {
      if (op.kind == OpKind::backward_input) waiting.push_back({OpKind::backward_weight, op.microbatch, op.chunk});
      if (op.kind != OpKind::backward_weight) continue;
      if (waiting.empty() || waiting.front() != op) return false;
      waiting.pop_front();
    }
  }
  return true;
}

TEST(Check, EveryGeneratedScheduleIsGood) {
  const std::vector<Schedule> schedules = many_schedules();
  std::map<std::string, int> kinds;
  for (const Schedule& schedule : schedules) {
    ++kinds[schedule.kind];
    ASSERT_EQ(find_problems(schedule), std::vector<std::string>{}) << to_text(schedule);
    ASSERT_TRUE(weight_halves_in_order(schedule)) << to_text(schedule);
    ASSERT_TRUE(gradients_in_order(schedule)) << to_text(schedule);
  }
  for (const ScheduleKind& kind : schedule_kinds()) EXPECT_GE(kinds[std::string(kind.name)], 20) << kind.name;
}

TEST(Check, OneMessageAChannelIsEnoughButForLargeGroups) {
  for (const Schedule& schedule : many_schedules()) {
    const auto [safe, smooth] = channel_depths(schedule);
    const int ahead = schedule.group_size.value_or(schedule.m) - schedule.p + 1;
    const bool runs_ahead = schedule.kind.starts_with("interleaved") && ahead > 1;
    const int enough = schedule.p == 1 ? 0 : runs_ahead ? ahead : 1;
    EXPECT_LE(smooth, enough) << to_text(schedule);
    EXPECT_LE(safe, smooth);
  }
}

TEST(Check, DepthIsTheSmallestThatRuns) {
  const Schedule schedule = make_schedule({.kind = "interleaved", .p = 4, .m = 40, .v = 2, .group_size = 20});
  const int safe = channel_depths(schedule).safe;
  EXPECT_GT(safe, 1);
  EXPECT_TRUE(find_stuck_ranks(schedule, Costs{.channel_depth = safe}).empty());
  const std::vector<StuckRank> stuck = find_stuck_ranks(schedule, Costs{.channel_depth = safe - 1});
  ASSERT_EQ(stuck.size(), 4u);  // a cycle: rank 3 takes no gradient until rank 2 sends its output, and so on to rank 0
  EXPECT_TRUE(says(to_string(schedule, stuck[0]), {"rank 0 is stuck before", "room for the result of B", "to rank 3"}));
  EXPECT_TRUE(says(to_string(schedule, stuck[1]), {"rank 1 is stuck before", "of rank 0"}));
}

TEST(Check, EvaluationRunsTheForwardsAloneWithTheSameChannels) {
  for (const Schedule& schedule : many_schedules()) {
    Schedule forwards = schedule;
    for (Program& program : forwards.programs)
      std::erase_if(program, [](const Op& op) { return op.kind != OpKind::forward; });
    const Costs costs{.channel_depth = channel_depths(schedule).smooth};
    ASSERT_TRUE(find_stuck_ranks(forwards, costs).empty()) << to_text(schedule);
  }
}

// Whether one queue per directed pair of ranks can carry both payloads, like a single send/receive channel.
bool one_queue_a_pair_is_enough(const Schedule& schedule) {
  using Message = std::tuple<Payload, int, int>;  // payload, receiving stage, micro-batch
  std::map<std::pair<int, int>, std::pair<std::vector<Message>, std::vector<Message>>> pairs;
  for (int rank = 0; rank < schedule.p; ++rank)
    for (const Op& op : schedule.programs[static_cast<size_t>(rank)]) {
      const int stage = schedule.stage_of(rank, op.chunk), step = op.kind == OpKind::forward ? 1 : -1;
      if (const auto to = schedule.sends(rank, op))
        pairs[{to->from, to->to}].first.emplace_back(to->payload, stage + step, op.microbatch);
      if (const auto from = schedule.receives(rank, op))
        pairs[{from->from, from->to}].second.emplace_back(from->payload, stage, op.microbatch);
    }
  for (const auto& [pair, messages] : pairs)
    if (messages.first != messages.second) return false;
  return true;
}

TEST(Check, PayloadsNeedQueuesOfTheirOwnWhereAPairCarriesBoth) {
  std::set<std::string> mixed;
  for (const Schedule& schedule : many_schedules())
    if (!one_queue_a_pair_is_enough(schedule)) {
      mixed.insert(schedule.kind);
      // In a ring of two ranks, the next rank is also the previous one.
      EXPECT_TRUE(schedule.map == StageMap::v_shaped || (schedule.p == 2 && schedule.group_size > 2))
          << to_text(schedule);
    }
  EXPECT_EQ(mixed, (std::set<std::string>{"dualpipe-v", "interleaved", "zb-v"}));
}

// ---- broken schedules

std::vector<std::string> problems_of(std::string_view text) { return find_problems(parse_schedule(text, "text")); }

TEST(Check, EachOpOnce) {
  EXPECT_TRUE(says(problems_of("F0 B0 F1\n F0 B0 F1 B1"), {"rank 0 (stage 0), micro-batch 1: 1 F, 0 B"}));
  EXPECT_TRUE(says(problems_of("F0 F0 B0"), {"2 F, 1 B"}));
  EXPECT_TRUE(says(problems_of("F0 B0 W0"), {"1 F, 1 B, 0 I, 1 W"}));
  EXPECT_TRUE(says(problems_of("F0 I0"), {"0 B, 1 I, 0 W"}));
  EXPECT_TRUE(says(problems_of("schedule m=2\nF0 B0"), {"micro-batch 1: 0 F, 0 B"}));
  EXPECT_EQ(problems_of("F0 I0 W0"), std::vector<std::string>{});
}

TEST(Check, OrderOnARank) {
  EXPECT_TRUE(says(problems_of("B0 F0"), {"B0 comes before F0"}));
  EXPECT_TRUE(says(problems_of("B0 F0"), {"stuck before B0 (op 0 of 2): it waits for F0 on its own"}));
  EXPECT_TRUE(says(problems_of("F0 W0 I0"), {"W0 comes before I0"}));
}

TEST(Check, RangesAreJudgedFirst) {
  Schedule schedule = make_schedule({.kind = "1f1b", .p = 2, .m = 2});
  schedule.programs[1][0].microbatch = 7;
  EXPECT_TRUE(says(find_problems(schedule), {"rank 1 runs F7.0, but m = 2"}));
  schedule.programs.pop_back();
  EXPECT_TRUE(says(find_problems(schedule), {"1 programs for p = 2"}));
}

TEST(Check, ADeadlockNamesTheOpOfEachStuckRank) {
  // Rank 0 waits for the gradient of micro-batch 2 before it sends micro-batch 1, for which rank 1 waits.
  const auto problems = problems_of("F0 B0 F2 B2 F1 B1\n F0 B0 F1 B1 F2 B2");
  EXPECT_TRUE(says(problems, {"rank 0 is stuck before B2 (op 3 of 6): it waits for B2 of rank 1"}));
  EXPECT_TRUE(says(problems, {"rank 1 is stuck before F1 (op 2 of 6): it waits for F1 of rank 0"}));
}

TEST(Check, MessagesAreTakenInTheOrderInWhichTheyAreMade) {
  const auto problems = problems_of("F0 F1 B0 B1\n F1 F0 B0 B1");
  EXPECT_TRUE(says(problems, {"pp 0 -> pp 1 (activations): message 0 comes from F0, but F1 takes it"}));
  EXPECT_TRUE(says(problems, {"rank 1 is stuck before F1 (op 0 of 4): it waits for F1 of rank 0, which "
                              "is queued in the channel after"}));
}

TEST(Check, ErrorsOfAWholeScheduleAreOneText) {
  const Schedule good = make_schedule({.kind = "1f1b", .p = 2, .m = 3});
  EXPECT_NO_THROW(check_schedule(good));
  try {
    check_schedule(parse_schedule("F0 B0\nB0 F0", "text"));
    FAIL() << "a broken schedule passed";
  } catch (const ConfigError& error) {
    EXPECT_TRUE(says(error.what(), {"'custom' cannot work", "rank 1 is stuck before B0"}));
  }
}

TEST(Check, ABrokenScheduleIsNamedByItsFile) {
  const TempDir dir;
  write_text(dir / "broken.txt", "F0 B0\nB0 F0\n");
  EXPECT_TRUE(says(config_error_of([&] { read_schedule_file(dir / "broken.txt"); }),
                   {dir / "broken.txt: the schedule 'custom' cannot work"}));
}

// Omitting or duplicating any one op, or moving it far, breaks a schedule, and the check reports it.
TEST(Check, EverySmallDamageIsSeen) {
  for (const ScheduleKind& kind : schedule_kinds()) {
    const Schedule good = make_schedule({.kind = std::string(kind.name), .p = 3, .m = 6});
    for (size_t rank = 0; rank < good.programs.size(); ++rank)
      for (size_t i = 0; i < good.programs[rank].size(); ++i) {
        Schedule damaged = good;
        Program& program = damaged.programs[rank];
        const Op op = program[i];
        program.erase(program.begin() + static_cast<long>(i));
        EXPECT_FALSE(find_problems(damaged).empty());
        program.insert(program.begin() + static_cast<long>(i), 2, op);
        EXPECT_FALSE(find_problems(damaged).empty());
        program.erase(program.begin() + static_cast<long>(i), program.begin() + static_cast<long>(i) + 2);
        program.insert(op.kind == OpKind::forward ? program.end() : program.begin(), op);
        EXPECT_FALSE(find_problems(damaged).empty()) << to_text(damaged);
      }
  }
}

TEST(Check, OrderOfGradientsAndWeightHalves) {
  EXPECT_TRUE(gradients_in_order(parse_schedule("F0 F1 B0 B1", "text")));
  EXPECT_FALSE(gradients_in_order(parse_schedule("F0 F1 B1 B0", "text")));
  EXPECT_TRUE(weight_halves_in_order(parse_schedule("F0 F1 I1 I0 W1 W0", "text")));
  EXPECT_FALSE(weight_halves_in_order(parse_schedule("F0 F1 I1 I0 W0 W1", "text")));
}

}  // namespace
}  // namespace trivet
