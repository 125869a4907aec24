// Replays of tapes: tapes of the real trainer against the schedule simulator where both apply, and small tapes against
// hand-computed times.
#include <gtest/gtest.h>
#include <map>

#include "engine/train/rank_state.h"
#include "parallel/pipeline/simulate.h"
#include "tests/support/message_of.h"
#include "tests/support/training.h"
#include "tools/plan/rehearsal.h"

namespace trivet::test {
namespace {

// Work takes 1 ns per 1024 FLOPs; nothing else takes any time.
class ProductsOnly : public ReplayCosts {
 public:
  int64_t work_ns(const TapeWork& work, bool) const override { return work.flops / 1024; }
  CallCost call_cost(const TapeCall&, const TapeGroups::Group&) const override { return {}; }
};

const std::string kPasses = "FBIW";

// Costs of a schedule's ops, by stage: sums over the compute stream's records in the second step.
std::vector<StageCosts> stage_costs(const Rehearsal& recorded, const Layout& layout, const ReplayCosts& costs) {
  const Schedule& schedule = layout.schedule;
  std::vector<std::map<std::string, double>> sums(static_cast<size_t>(schedule.stages()));
  for (const Tape& tape : recorded.tapes) {
    const MeshPosition at = position_of(tape.rank, layout.mesh);
    int step = 0;
    std::string pass;
    for (const TapeRecord& record : tape.records) {
      if (record.kind == TapeRecord::mark) ++step;
      if (record.kind == TapeRecord::end_phase) pass.clear();
      if (record.kind == TapeRecord::begin_phase) pass = tape.works[record.what].name;
      const SpanLabel& label = tape.labels[record.label];
      if (record.kind != TapeRecord::work || record.stream != 0 || step != 1 || kPasses.find(pass) == kPasses.npos ||
          pass.empty() || label.microbatch != 1)
        continue;
      sums[static_cast<size_t>(schedule.stage_of(at[Axis::pp], label.chunk))][pass] +=
          static_cast<double>(costs.work_ns(tape.works[record.what], false));
    }
  }
  std::vector<StageCosts> stages;
  for (auto& sum : sums) {
    const bool halves = sum.contains("I");
    stages.push_back({.forward = sum["F"],
                      .backward_input = halves ? sum["I"] : sum["B"],
                      .backward_weight = halves ? sum["W"] : 0});
    if (halves && sum.contains("B")) stages.back().whole_saves = sum["I"] + sum["W"] - sum["B"];
  }
  return stages;
}

struct ScheduleCase {
  const char* schedule;
  int p, v, m;
};

class ReplayOf : public testing::TestWithParam<ScheduleCase> {};

// If calls are free, ops end when the schedule simulator says they do, on every rank and in every micro-batch.
TEST_P(ReplayOf, ASchedule) {
  const auto [kind, p, v, m] = GetParam();
  // given
  Config config = tiny_config();
  config.model.num_layers = 8;
  config.batch.global_batch_size = 2 * m;
  set_key(config, "device.cuda_graph_impl", "none");
  const auto [run, layout] = resolved(cut(config, {.p = p, .schedule = kind, .v = v}), p);
  const Rehearsal recorded = rehearse(run, layout, {.steps = 3, .one_ahead = false});
  const ProductsOnly costs;
  // when
  const Replayed replayed = replay(recorded.players, recorded.groups, costs, {.spans = true, .first_step = 1});
  // then
  const Timeline timeline =
      simulate(layout.schedule, {.stages = stage_costs(recorded, layout, costs),
                                 .channel_depth = pipeline_options_of(run, layout).receives_posted});
  ASSERT_EQ(replayed.spans.size(), static_cast<size_t>(p));
  for (int rank = 0; rank < p; ++rank) {
    const auto player = static_cast<size_t>(rank);
    const auto rows = rows_of(replayed.spans[player], recorded.players[player], recorded.groups);
    const auto& ends = replayed.step_ends[player];
    const int64_t begin = ends[0];  // all ranks end a step together, with the norm
    std::vector<int64_t> played, simulated;
    for (const Span& span : rows[0])
      if (span.info.category == Category::phase && kPasses.find(span.info.name) != kPasses.npos &&
          span.end_ns <= ends[1])
        played.push_back(span.end_ns - begin);
    for (const OpSpan& op : timeline.ops)
      if (op.rank == rank) simulated.push_back(std::llround(op.end));
    EXPECT_EQ(played, simulated) << "rank " << rank;
  }
}

INSTANTIATE_TEST_SUITE_P(Schedules, ReplayOf,
                         testing::Values(ScheduleCase{"gpipe", 4, 0, 4}, ScheduleCase{"1f1b", 4, 0, 8},
                                         ScheduleCase{"1f1b", 2, 0, 5}, ScheduleCase{"interleaved", 2, 2, 4},
                                         ScheduleCase{"interleaved", 4, 2, 8}, ScheduleCase{"zb-h1", 4, 0, 8},
                                         ScheduleCase{"zb-v", 2, 0, 6}),
                         [](const auto& info) {
                           std::string name = std::string(info.param.schedule) + "_p" + std::to_string(info.param.p) +
                                              "_m" + std::to_string(info.param.m);
                           std::erase(name, '-');
                           return name;
                         });

Resolved eight_ranks() {
  Config config = tiny_config();
  overlap_data_parallel(config);
  config.data.reset_position_ids = config.data.reset_attention_mask = config.data.eod_mask_loss = true;
  set_key(config, "device.cuda_graph_impl", "none");
  return resolved(cut(config, {.t = 2, .p = 2, .d = 2, .sequence_parallel = true, .strategy = "optim"}), 8);
}

// Nothing queued depends on a computed value or on which rank was recorded first.
TEST(Tape, DependsOnNoValue) {
  const auto [config, layout] = eight_ranks();
  TapeGroups groups;
  for (int rank = 7; rank >= 0; --rank) {
    const Tape once = record_tape(config, layout, rank, groups),
               again = record_tape(config, layout, rank, groups, {.number = 3.5f});
    EXPECT_EQ(once.works, again.works);
    EXPECT_EQ(once.calls, again.calls);
    EXPECT_EQ(once.records, again.records);
    EXPECT_EQ(once.groups, again.groups);
  }
}

// Weights of later chunks are gathered shortly before the passes that need them, in the third step as in the second.
TEST(Tape, GathersWeightsAtTheSamePassesInEachStep) {
  Config config = cut(tiny_config(), {.p = 2, .d = 2, .schedule = "interleaved", .v = 4, .strategy = "optim"});
  overlap_data_parallel(config);
  config.model.num_layers = 8;
  config.overlap.align_param_gather = true;
  config.batch.global_batch_size = 32;
  const auto [own, layout] = resolved(config, 4);
  TapeGroups groups;
  const Tape tape = record_tape(own, layout, 0, groups, {.steps = 3});
  std::vector<std::vector<std::string>> steps(1);
  std::string pass;
  for (const TapeRecord& record : tape.records) {
    const SpanLabel& label = tape.labels[record.label];
    const bool work = record.kind == TapeRecord::work, call = record.kind == TapeRecord::call;
    if (record.kind == TapeRecord::mark) steps.emplace_back();
    if (work && record.stream == 0 && label.microbatch >= 0) {
      const std::string at = fmt::format("micro-batch {} of chunk {}", label.microbatch, label.chunk);
      if (at != pass) steps.back().push_back(pass = at);
    } else if (call && tape.calls[record.what].kind == CommCall::all_gather && label.bucket >= 0) {
      steps.back().push_back(fmt::format("bucket {} is gathered", label.bucket));
    }
  }
  for (const size_t step : {1u, 2u}) {
    // The number of passes before each of the later chunks' buckets is gathered.
    std::vector<int64_t> passes;
    for (auto text = steps[step].begin(); text != steps[step].end() && passes.size() < 3; ++text)
      if (text->starts_with("bucket")) passes.push_back(text - steps[step].begin() - std::ssize(passes));
    EXPECT_EQ(passes, (std::vector<int64_t>{1, 2, 4})) << "step " << step;
  }
}

// Costs by size and place, host time, and a device slowed down by communication.
class Priced : public ProductsOnly {
 public:
  CallCost call_cost(const TapeCall& call, const TapeGroups::Group& group) const override {
    const auto node = [](int rank) { return rank / kRanksPerNode; };
    const bool across = node(group.world_ranks.front()) != node(group.world_ranks.back());
    return {call.bytes * (across ? 3 : 1) + static_cast<int64_t>(group.world_ranks.size()),
            across ? Port::network : Port::link};
  }
  int64_t host_ns(const TapeRecord&) const override { return 3; }
  double slowdown() const override { return 1.25; }
  static constexpr int kRanksPerNode = 4;
};

struct MeshCase {
  const char* name;
  Cut cut;
  const char* order = "tp-dp-pp";
  bool tp_overlap = false;
};
void PrintTo(const MeshCase& c, std::ostream* out) { *out << c.name; }

class RehearsalOf : public testing::TestWithParam<MeshCase> {};

Resolved run_of(const MeshCase& mesh) {
  Config config = tiny_config();
  config.batch.global_batch_size = 24;
  config.overlap.overlap_grad_reduce = true;
  config.overlap.overlap_param_gather = std::string_view(mesh.cut.strategy) != "no_shard";
  set_key(config, "device.cuda_graph_impl", "none");
  set_key(config, "parallel.order", mesh.order);
  if (mesh.tp_overlap) set_key(config, "overlap.tp_comm_overlap", "pipeline");
  return resolved(cut(config, mesh.cut), mesh.cut.ranks());
}

// Ranks that share a tape, and ranks that share a player, take the same times as ranks that share neither.
TEST_P(RehearsalOf, MergedRanksIsThatOfEachRank) {
  const auto [run, layout] = run_of(GetParam());
  const Rehearsal alone = rehearse(run, layout, {}, true), shared = rehearse(run, layout);
  const auto expected = replay(alone.players, alone.groups, Priced()).step_ends;
  EXPECT_LE(shared.tapes.size(), alone.tapes.size());
  EXPECT_EQ(replay(shared.players, shared.groups, Priced()).step_ends, expected);

  Rehearsal merged = rehearse(run, layout);
  merge_ranks(merged, Priced::kRanksPerNode);
  const auto ends = replay(merged.players, merged.groups, Priced()).step_ends;
  RecordProperty("players", static_cast<int>(merged.players.size()));
  int64_t ranks = 0;
  for (size_t i = 0; i < merged.players.size(); ++i) {
    EXPECT_EQ(ends[i], expected[static_cast<size_t>(merged.players[i].rank)]);
    ranks += merged.players[i].ranks;
  }
  EXPECT_EQ(ranks, GetParam().cut.ranks());
  if (GetParam().cut.d >= 4 && std::string_view(GetParam().cut.strategy) == "no_shard") {
    EXPECT_LT(merged.players.size(), alone.players.size());
  }
}

// Times from the last rank's end of a step to the last rank's end of the next.
std::vector<int64_t> times_of_steps(const Rehearsal& rehearsal) {
  const auto ends = replay(rehearsal.players, rehearsal.groups, Priced()).step_ends;
  std::vector<int64_t> last(ends.front().size());
  for (const auto& of_rank : ends)
    for (size_t step = 0; step < last.size(); ++step) last[step] = std::max(last[step], of_rank[step]);
  std::vector<int64_t> times;
  for (size_t step = 1; step < last.size(); ++step) times.push_back(last[step] - last[step - 1]);
  return times;
}

// All later steps repeat the second, so recording two is enough. The tolerance of 1 ns allows for rounded rates.
TEST_P(RehearsalOf, TheSecondStepIsLikeAllThatFollow) {
  const auto [run, layout] = run_of(GetParam());
  const int64_t second = times_of_steps(rehearse(run, layout)).front();
  for (const int64_t time : times_of_steps(rehearse(run, layout, {.steps = 6}))) EXPECT_NEAR(time, second, 1);
}

INSTANTIATE_TEST_SUITE_P(
    Meshes, RehearsalOf,
    testing::Values(MeshCase{"d4", {.d = 4}}, MeshCase{"t2d4", {.t = 2, .d = 4}},
                    MeshCase{"t2p2d2_optim", {.t = 2, .p = 2, .d = 2, .sequence_parallel = true, .strategy = "optim"}},
                    MeshCase{"d4_params", {.d = 4, .strategy = "optim_grads_params"}},
                    MeshCase{"t2p3d2_misaligned", {.t = 2, .p = 2, .d = 3, .sequence_parallel = true}},
                    MeshCase{"p4d3_outer", {.p = 4, .d = 3, .schedule = "zb-h1"}, "pp-dp-tp"},
                    MeshCase{"t4d2_ring", {.t = 4, .d = 2, .sequence_parallel = true}, "tp-dp-pp", true},
                    MeshCase{"p2v2d4", {.p = 2, .d = 4, .schedule = "interleaved", .v = 2}, "dp-tp-pp"}),
    [](const auto& info) { return std::string(info.param.name); });

// ---- small tapes, whose work and calls take 1 ns per byte

class BytesAsTime : public ReplayCosts {
 public:
  int64_t work_ns(const TapeWork& work, bool) const override { return work.bytes; }
  CallCost call_cost(const TapeCall& call, const TapeGroups::Group&) const override {
    return {call.bytes, Port::network};
  }
  double slowdown() const override { return slow; }
  bool buffered_sends() const override { return buffered; }
  int64_t host_ns(const TapeRecord& record) const override { return record.kind == TapeRecord::work ? host : 0; }
  double slow = 1;
  bool buffered = false;
  int64_t host = 0;
};

struct Written : Tape {
  explicit Written(int of, size_t count = 2) {
    rank = of;
    streams.resize(count);
    labels.emplace_back();
  }
  Written& work(uint8_t stream, int64_t ns) {
    works.push_back({.name = "work", .bytes = ns});
    return add(TapeRecord::work, stream, static_cast<uint32_t>(works.size()) - 1);
  }
  Written& call(uint8_t stream, int group, int64_t ns) {
    calls.push_back({.name = "all_reduce", .kind = CommCall::all_reduce, .group = group, .bytes = ns});
    return add(TapeRecord::call, stream, static_cast<uint32_t>(calls.size()) - 1);
  }
  Written& transfer(uint8_t stream, int group, bool sends, int64_t ns) {
    calls.push_back(
        {.name = "send", .kind = CommCall::transfer, .sends = sends, .group = group, .ahead = 1, .bytes = ns});
    return add(TapeRecord::call, stream, static_cast<uint32_t>(calls.size()) - 1);
  }
  Written& event(uint8_t stream) { return add(TapeRecord::record, stream, events++); }
  Written& add(TapeRecord::Kind kind, uint8_t stream, uint32_t what = 0) {
    records.push_back({.kind = kind, .stream = stream, .what = what});
    return *this;
  }
};

struct Two {
  Two() {
    for (const char* name : {"a", "b"}) {
      const int group = groups.add({name, {0, 1}, comm_of("data")});
      for (Tape* tape : {static_cast<Tape*>(&first), static_cast<Tape*>(&second)}) tape->groups.push_back(group);
    }
  }
  std::vector<int64_t> ends(const ReplayCosts& costs) {
    for (Written* tape : {&first, &second}) tape->add(TapeRecord::mark, 0);
    const std::vector<Player> players{{.tape = &first, .rank = 0, .groups = first.groups, .places = {0, 0}},
                                      {.tape = &second, .rank = 1, .groups = second.groups, .places = {1, 1}}};
    const Replayed replayed = replay(players, groups, costs);
    return {replayed.step_ends[0].at(0), replayed.step_ends[1].at(0)};
  }
  TapeGroups groups;
  Written first{0}, second{1};
};

TEST(Replay, ACallStartsWhenAllRanksHaveCome) {
  Two two;
  two.first.work(0, 10).call(0, 0, 5).work(0, 1);
  two.second.work(0, 30).call(0, 0, 5);
  EXPECT_EQ(two.ends(BytesAsTime()), (std::vector<int64_t>{36, 35}));
}

TEST(Replay, StreamsRunBesideEachOtherButForEvents) {
  Two two;
  two.first.work(0, 10).event(0).work(0, 100).add(TapeRecord::wait, 1, 0).work(1, 50).event(1);
  two.first.add(TapeRecord::wait, 0, 1);
  two.second.work(1, 500).event(1).work(0, 20).add(TapeRecord::wait, 0, 0);
  EXPECT_EQ(two.ends(BytesAsTime()), (std::vector<int64_t>{110, 500}));
}

TEST(Replay, ComputeIsSlowerBesideAWire) {
  Two two;
  two.first.call(1, 0, 40).work(0, 100);  // for 40 ns at half the rate
  two.second.call(1, 0, 40);
  BytesAsTime costs;
  costs.slow = 2;
  EXPECT_EQ(two.ends(costs)[0], 120);
}

TEST(Replay, CallsShareAPort) {
  Two two;
  for (Written* tape : {&two.first, &two.second})  // the second call begins at 20 ns; the calls end at 60 and 70
    tape->call(1, 0, 40).event(1).work(0, 20).call(0, 1, 30).add(TapeRecord::wait, 0, 0);
  EXPECT_EQ(two.ends(BytesAsTime()), (std::vector<int64_t>{70, 70}));
}

// Links are full duplex: a send and a receive each run at the full rate, two sends each at half of it.
TEST(Replay, TransfersShareOneDirectionOfAPort) {
  Two two;
  two.first.transfer(0, 0, true, 40).transfer(1, 1, false, 40);
  two.second.transfer(0, 0, false, 40).transfer(1, 1, true, 40).event(1).add(TapeRecord::wait, 0, 0);
  EXPECT_EQ(two.ends(BytesAsTime()), (std::vector<int64_t>{40, 40}));
  Two same;
  same.first.transfer(0, 0, true, 40).transfer(1, 1, true, 40);
  same.second.transfer(0, 0, false, 40).transfer(1, 1, false, 40);
  EXPECT_EQ(same.ends(BytesAsTime()), (std::vector<int64_t>{80, 80}));
}

TEST(Replay, ABufferedSendWaitsForNobody) {
  for (const bool buffered : {false, true}) {
    Two two;
    two.first.transfer(0, 0, true, 10).work(0, 1);
    two.second.work(0, 50).transfer(0, 0, false, 10);
    BytesAsTime costs;
    costs.buffered = buffered;
    EXPECT_EQ(two.ends(costs), (std::vector<int64_t>{buffered ? 1 : 61, 60}));
  }
}

// The host takes 10 ns to queue each piece of work, and waits for the first before it queues the last.
TEST(Replay, TheHostTakesTimeToo) {
  Two two;
  two.first.work(0, 2).event(0).work(0, 2).add(TapeRecord::host_wait, 0, 0).work(0, 2);
  two.second.work(0, 35).event(0).add(TapeRecord::host_wait, 0, 0).work(0, 2);
  BytesAsTime costs;
  costs.host = 10;
  EXPECT_EQ(two.ends(costs), (std::vector<int64_t>{32, 57}));  // 10 + 35, another launch, and its work
}

TEST(Replay, SaysWhereRanksAreStuck) {
  Two two;
  two.first.call(0, 0, 1);
  EXPECT_THROW(two.ends(BytesAsTime()), Error);
}

}  // namespace
}  // namespace trivet::test
