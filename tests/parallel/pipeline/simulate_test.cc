#include "parallel/pipeline/simulate.h"

#include <cmath>
#include <gtest/gtest.h>
#include <map>

#include "base/check.h"
#include "parallel/pipeline/check.h"
#include "parallel/pipeline/closed_form.h"
#include "tests/parallel/pipeline/says.h"

namespace trivet {
namespace {

// Costs are sums of powers of two, so every time is exact and EXPECT_EQ is the right comparison.
const std::vector<StageCosts> kCosts{
    {1, 1, 1, 0},   {1, 1.25, 0.75, 0}, {1, 2, 0.5, 0}, {0.5, 0.75, 0.75, 0},
    {1, 0.5, 2, 0}, {2, 1, 0.25, 0},    {1, 1, 0.5, 0},
};

std::vector<Schedule> schedules_of(std::string_view kind) {
  std::vector<Schedule> schedules;
  for (int p : {1, 2, 4, 8})
    for (int m : {1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 32})
      for (int v : {1, 2, 4})
        for (int group : {0, p + 1, 2 * p}) {
          const auto optional_group = group == 0 ? std::nullopt : std::optional(group);
          try {
            schedules.push_back(make_schedule({std::string(kind), p, m, v, optional_group}));
          } catch (const ConfigError&) {
          }
        }
  return schedules;
}

class ClosedForms : public ::testing::TestWithParam<std::string> {};

TEST_P(ClosedForms, AreWhatTheSimulatorFinds) {
  int forms = 0;
  for (const Schedule& schedule : schedules_of(GetParam()))
    for (const StageCosts& costs : kCosts) {
      const Timeline timeline = simulate(schedule, {.stages = {costs}});
      const double work = schedule.m * schedule.v * (costs.forward + costs.backward_input + costs.backward_weight);
      ASSERT_EQ(bubble_of(timeline).busy, work);
      const auto form = closed_form(schedule, costs);
      if (!form) continue;
      ++forms;
      ASSERT_EQ(bubble_of(timeline).time(), form->bubble) << form->formula << '\n' << to_text(schedule);
      if (form->without_barrier) {
        ASSERT_EQ(bubble_of(timeline, Barrier::none).time(), *form->without_barrier) << to_text(schedule);
      }
    }
  EXPECT_GE(forms, GetParam() == "dualpipe-v" ? 30 : 100);
}

// Peak slots of every rank, in (chunk, micro-batch) units. Empty if no closed form holds.
std::optional<std::vector<int>> closed_form_slots(const Schedule& schedule) {
  const int p = schedule.p, m = schedule.m, v = schedule.v;
  const std::string& kind = schedule.kind;
  std::vector<int> slots;
  for (int r = 0; r < p; ++r) {
    const int after = p - 1 - r;
    if (kind == "gpipe") slots.push_back(m);
    else if (kind == "1f1b") slots.push_back(std::min(after + 1, m));
    else if (kind == "1f1b-eager") slots.push_back(std::min(2 * after + 1, m));
    else if (kind == "interleaved") slots.push_back(std::min(2 * after + (v - 1) * *schedule.group_size + 1, m * v));
    else if (kind == "interleaved-bfs") slots.push_back(m * v);
    else if (kind == "zb-h1") slots.push_back(std::min(p, m));
    else if (kind == "zb-h2") slots.push_back(std::min(2 * p - 1, m));
    else if (kind == "zb-v" && m >= 2 * p - 1) slots.push_back(2 * p);
    else if (kind == "dualpipe-v") slots.push_back(2 * p + 1);
    else return std::nullopt;
  }
  return slots;
}

TEST_P(ClosedForms, CountTheSlots) {
  int forms = 0;
  for (const Schedule& schedule : schedules_of(GetParam())) {
    const auto slots = closed_form_slots(schedule);
    if (!slots) continue;
    ++forms;
    const std::vector<Peak> peaks = peaks_of(schedule.programs, schedule.v);
    for (size_t rank = 0; rank < peaks.size(); ++rank)
      ASSERT_EQ(peaks[rank].slots, (*slots)[rank]) << "rank " << rank << '\n' << to_text(schedule);
  }
  EXPECT_GE(forms, 15);
}

INSTANTIATE_TEST_SUITE_P(All, ClosedForms, ::testing::ValuesIn([] {
                           std::vector<std::string> names;
                           for (const ScheduleKind& kind : schedule_kinds()) names.emplace_back(kind.name);
                           return names;
                         }()),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase(name, '-');
                           return name;
                         });

// ---- an independent check: end times as the longest path over all dependencies, relaxed until nothing changes

std::map<std::tuple<int, int, int>, double> ends_by_relaxation(const Schedule& schedule, const Costs& costs) {
  std::map<std::tuple<int, int, int>, double> end;  // (kind, stage, micro-batch)
  const auto key = [](OpKind kind, int stage, int i) { return std::tuple(static_cast<int>(kind), stage, i); };
  const auto end_of = [&](OpKind kind, int stage, int i) {
    const auto known = end.find(key(kind, stage, i));
    return known == end.end() ? 0 : known->second;
  };
  const auto backward_end = [&](int stage, int i) {
    return std::max(end_of(OpKind::backward, stage, i), end_of(OpKind::backward_input, stage, i));
  };
  for (bool moved = true; std::exchange(moved, false);)
    for (int rank = 0; rank < schedule.p; ++rank) {
      double free_at = 0;
      for (const Op& op : schedule.programs[static_cast<size_t>(rank)]) {
        const int stage = schedule.stage_of(rank, op.chunk);
        double start = free_at;
        const double hop = schedule.receives(rank, op) ? costs.latency : 0;
        if (op.kind == OpKind::forward && stage > 0)
          start = std::max(start, end_of(OpKind::forward, stage - 1, op.microbatch) + hop);
        if ((op.kind == OpKind::backward || op.kind == OpKind::backward_input) && stage + 1 < schedule.stages())
          start = std::max(start, backward_end(stage + 1, op.microbatch) + hop);
        const size_t which = costs.stages.size() == 1 ? 0 : static_cast<size_t>(stage);
        free_at = start + costs.stages[which].of(op.kind);
        double& known = end[key(op.kind, stage, op.microbatch)];
        moved |= known != free_at;
        known = free_at;
      }
    }
  return end;
}

TEST(Simulate, AgreesWithRelaxationForUnevenStagesAndLatency) {
  for (const ScheduleKind& kind : schedule_kinds()) {
    // given: extra cost for the embedding on the first stage and the head on the last
    const Schedule schedule = make_schedule({.kind = std::string(kind.name), .p = 4, .m = 11});
    Costs costs{.stages = std::vector<StageCosts>(static_cast<size_t>(schedule.stages()), {1, 1.25, 0.75, 0}),
                .latency = 0.125};
    costs.stages.front() = {1.25, 1.25, 1, 0};
    costs.stages.back() = {1.5, 2, 1, 0.25};
    // when
    const Timeline timeline = simulate(schedule, costs);
    // then
    auto expected = ends_by_relaxation(schedule, costs);
    ASSERT_EQ(timeline.ops.size(), expected.size());
    for (const OpSpan& span : timeline.ops)
      ASSERT_EQ(
          span.end,
          (expected[{static_cast<int>(span.op.kind), schedule.stage_of(span.rank, span.op.chunk), span.op.microbatch}]))
          << kind.name << " rank " << span.rank << ' ' << to_string(span.op, true);
  }
}

// ---- transfers

double extra_time(const ScheduleRequest& request, const Costs& costs) {
  const Schedule schedule = make_schedule(request);
  Costs free = costs;
  free.latency = free.bytes = 0;
  return bubble_of(simulate(schedule, costs)).makespan - bubble_of(simulate(schedule, free)).makespan;
}

TEST(Transfers, FirstAndLastOpsOfAMessage) {
  const Schedule schedule = make_schedule({.kind = "1f1b", .p = 2, .m = 1});
  const Timeline timeline = simulate(schedule, {.latency = 0.5, .bytes = 8, .bandwidth = 4});
  ASSERT_EQ(timeline.transfers.size(), 2u);
  const TransferSpan& activation = timeline.transfers[0];
  EXPECT_EQ(activation.channel, (Channel{0, 1, Payload::activation}));
  EXPECT_EQ(activation.start, 1);
  EXPECT_EQ(activation.end, 3.5);  // 2 on the wire, then 0.5 of latency
  EXPECT_EQ(timeline.transfers[1].channel, (Channel{1, 0, Payload::gradient}));
  EXPECT_EQ(bubble_of(timeline).makespan, 1 + 2.5 + 3 + 2.5 + 2);
}

TEST(Transfers, MessagesShareTheWireOfTheirDirection) {
  // Rank 0 sends a message every unit of time, but each takes 3 units on the wire: message k arrives at 1 + 3 (k + 1).
  const Schedule schedule = make_schedule({.kind = "gpipe", .p = 2, .m = 4});
  const Timeline timeline = simulate(schedule, {.bytes = 3, .bandwidth = 1});
  std::vector<double> arrivals;
  for (const TransferSpan& span : timeline.transfers)
    if (span.channel.payload == Payload::activation) arrivals.push_back(span.end);
  EXPECT_EQ(arrivals, (std::vector<double>{4, 7, 10, 13}));
}

// Regardless of payload: also between two ranks that send each other both activations and gradients.
TEST(Transfers, NoTwoMessagesOfADirectionAreOnTheWireAtOnce) {
  for (const char* kind : {"interleaved", "zb-v", "dualpipe-v"}) {
    const Schedule schedule = make_schedule({.kind = kind, .p = 2, .m = 8});
    const double wire = 2.5;  // longer than an op, so that messages queue up
    std::map<std::pair<int, int>, std::vector<double>> begins;
    std::set<std::pair<std::pair<int, int>, Payload>> carried;
    for (const TransferSpan& span : simulate(schedule, {.bytes = wire, .bandwidth = 1}).transfers) {
      begins[{span.channel.from, span.channel.to}].push_back(span.start);
      carried.insert({{span.channel.from, span.channel.to}, span.channel.payload});
    }
    EXPECT_GT(carried.size(), begins.size()) << kind << " has both payloads in a direction";
    for (auto& [direction, times] : begins) {
      std::ranges::sort(times);
      for (size_t i = 1; i < times.size(); ++i) EXPECT_GE(times[i] - times[i - 1], wire) << kind;
    }
  }
}

TEST(Transfers, BlockingRanksDoNothingElse) {
  const Schedule schedule = make_schedule({.kind = "gpipe", .p = 2, .m = 3});
  const Timeline overlapped = simulate(schedule, {.latency = 0.5});
  const Timeline blocking = simulate(schedule, {.latency = 0.5, .blocking = true});
  const auto start_of_f2 = [](const Timeline& timeline) {
    for (const OpSpan& span : timeline.ops)
      if (span.rank == 0 && span.op == Op{OpKind::forward, 2, 0}) return span.start;
    return -1.0;
  };
  EXPECT_EQ(start_of_f2(overlapped), 2);
  EXPECT_EQ(start_of_f2(blocking), 3);
}

TEST(Transfers, NeitherLatencyNorBlockingTouchesTheOrder) {
  for (const ScheduleKind& kind : schedule_kinds()) {
    const Schedule schedule = make_schedule({.kind = std::string(kind.name), .p = 4, .m = 9});
    const Costs costs{.latency = 0.75, .bytes = 1, .bandwidth = 4, .blocking = true};
    EXPECT_EQ(programs_of(simulate(schedule, costs)), schedule.programs);
  }
}

// 1F1B has no slack: it loses about 2 c (p-1) / p per micro-batch, even though no transfer blocks a rank. With twice
// the warm-up, only the constant 2 (p-1) c of the first and last micro-batch remains.
TEST(Transfers, OverlapAloneDoesNotHideLatencyIn1F1B) {
  for (double c : {0.0625, 0.5}) {
    const Costs costs{.latency = c};
    const double extra = extra_time({.kind = "1f1b", .p = 8, .m = 128}, costs);
    EXPECT_NEAR(extra, 128 * 2 * c * 7 / 8, 0.1 * extra);
    EXPECT_EQ(extra_time({.kind = "1f1b-eager", .p = 8, .m = 128}, costs), 2 * 7 * c);
  }
}

TEST(Transfers, LargerGroupsHideLatencyInInterleaved) {
  const Costs costs{.stages = {{0.25, 0.25, 0.25, 0}}, .latency = 0.125};
  const auto extra = [&](int group) {
    return extra_time({.kind = "interleaved", .p = 4, .m = 40, .v = 4, .group_size = group}, costs);
  };
  EXPECT_GT(extra(4), extra(5));
  EXPECT_GT(extra(5), extra(8));
  EXPECT_EQ(extra(8), 2 * 3 * 0.125);  // the constant of the first and last micro-batch
}

TEST(Transfers, SmoothDepthsAreSmooth) {
  const Schedule schedule = make_schedule({.kind = "interleaved", .p = 4, .m = 40, .v = 2, .group_size = 8});
  const ChannelDepths depths = channel_depths(schedule);
  const double best = bubble_of(simulate(schedule, {})).makespan;
  EXPECT_EQ(depths.smooth, 8 - 4 + 1);
  EXPECT_EQ(bubble_of(simulate(schedule, {.channel_depth = depths.smooth})).makespan, best);
  EXPECT_GT(bubble_of(simulate(schedule, {.channel_depth = depths.smooth - 1})).makespan, best);
}

// ---- costs

TEST(Simulate, CostsThatDoNotFitAreRefused) {
  const Schedule schedule = make_schedule({.kind = "1f1b", .p = 4, .m = 4});
  EXPECT_THROW(simulate(schedule, {.stages = std::vector<StageCosts>(3)}), ConfigError);
  EXPECT_THROW(simulate(schedule, {.latency = -1}), ConfigError);
  EXPECT_THROW(simulate(schedule, {.bytes = std::nan("")}), ConfigError);
  EXPECT_THROW(simulate(schedule, {.stages = {{1, -1, 1, 0}}}), ConfigError);
}

TEST(Simulate, AStuckScheduleIsAnErrorThatShowsTheOps) {
  try {
    simulate(parse_schedule("F0 B0\nB0 F0", "text"), {});
    FAIL() << "a broken schedule ran";
  } catch (const ConfigError& error) {
    EXPECT_TRUE(says(error.what(), {"rank 0 is stuck before B0 (op 1 of 2): it waits for B0 of rank 1"}));
  }
}

TEST(Simulate, BubbleBothWays) {
  const Bubble bubble = bubble_of(simulate(make_schedule({.kind = "1f1b", .p = 4, .m = 8}), {}));
  EXPECT_EQ(bubble.makespan, 33);
  EXPECT_EQ(bubble.busy, 24);
  EXPECT_EQ(bubble.of_ideal(), 3.0 / 8);
  EXPECT_EQ(bubble.of_total(), 3.0 / 11);
}

TEST(Simulate, ALargeRunHasAllItsOps) {
  const Schedule schedule = make_schedule({.kind = "interleaved", .p = 64, .m = 512, .v = 4});
  const Timeline timeline = simulate(schedule, {.latency = 0.125});
  EXPECT_EQ(timeline.ops.size(), 2u * 64 * 512 * 4);
  EXPECT_EQ(timeline.transfers.size(), 2u * 512 * (64 * 4 - 1));
}

}  // namespace
}  // namespace trivet
