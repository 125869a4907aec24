// Step timelines of a handwritten trace, whose times are known, and of a real run; and what other programs read from
// them.
#include "tools/draw/step_timeline.h"

#include <gtest/gtest.h>
#include <map>
#include <set>

#include "base/files.h"
#include "base/json.h"
#include "engine/metrics/perfetto.h"
#include "tests/support/temp_dir.h"
#include "tests/support/training.h"

namespace trivet::test {
namespace {

using nlohmann::json;

constexpr int64_t kNsPerMs = 1'000'000;

Span work(const char* name, Category category, int64_t start_ms, int64_t end_ms, SpanLabel label = {}) {
  return {.info = {.name = name, .category = category, .label = label},
          .start_ns = start_ms * kNsPerMs,
          .end_ns = end_ms * kNsPerMs};
}

// Called at 12 ms, 2 ms after its bucket was ready; on the wire from 13 to 18 ms: overlaps compute until 15.
Span reduction(int64_t hand_over) {
  return {
      .info = {.name = "reduce_scatter",
               .category = comm_of("data"),
               .bytes = 10'000'000,
               .ranks = 2,
               .label =
                   {.microbatch = 1, .chunk = 0, .first_unit = 0, .last_unit = 1, .bucket = 3, .hand_over = hand_over}},
      .start_ns = 12 * kNsPerMs,
      .end_ns = 19 * kNsPerMs,
      .wire_start_ns = 13 * kNsPerMs,
      .wire_end_ns = 18 * kNsPerMs};
}

std::string write_trace(const TempDir& dir) {
  const auto fail = [](const std::string& why) { FAIL() << why; };
  const SpanLabel op{.microbatch = 1, .chunk = 0}, layer{.microbatch = 1, .chunk = 0, .first_unit = 1, .last_unit = 1};
  std::vector<std::string> parts;
  for (int rank = 0; rank < 2; ++rank) {
    parts.push_back(dir / ("part" + std::to_string(rank)));
    PerfettoWriter writer(parts.back(), rank,
                          {.process = "rank " + std::to_string(rank) + " (tp 0, pp 0, dp " + std::to_string(rank) + ")",
                           .rows = {"compute", "gradients"},
                           .units = {"layer 0", "head"}},
                          0, fail);
    writer.step(
        4, std::vector<std::vector<Span>>{
               {work("matmul", Category::compute, 4, 8, layer), work("quantize", Category::compute, 8, 10, layer),
                work("ready", Category::phase, 10, 10, {.hand_over = 7}), work("matmul", Category::compute, 11, 15),
                work("B", Category::phase, 3, 15, op), work("adamw", Category::optimizer, 19, 20)},
               {reduction(7)}});
  }
  join_traces(parts, dir / "trace.json");
  return dir / "trace.json";
}

TEST(StepTimeline, SaysWhenACallWasReadyCalledMatchedAndDone) {
  // given
  const TempDir dir;
  const std::string trace = write_trace(dir);
  // when
  const StepTimeline timeline = read_step_timeline(trace);
  // then
  EXPECT_EQ(timeline.step, 4);
  EXPECT_EQ(timeline.window, (Interval{4 * kNsPerMs, 20 * kNsPerMs}));
  ASSERT_EQ(timeline.ranks.size(), 1u);  // the first rank of the only stage
  const RankTimeline& rank = timeline.ranks[0];
  ASSERT_EQ(rank.ops.size(), 1u);
  EXPECT_EQ(rank.ops[0].name + std::to_string(rank.ops[0].microbatch), "B1");
  ASSERT_EQ(rank.layers.size(), 2u);
  EXPECT_EQ(rank.layers[0].layer, "head");
  EXPECT_EQ(rank.layers[0].time, (Interval{4 * kNsPerMs, 10 * kNsPerMs}));
  EXPECT_EQ(rank.layers[1].layer, "optimizer");
  ASSERT_EQ(rank.lanes.size(), 1u);
  EXPECT_EQ(rank.lanes[0].name, "gradients b3");
  EXPECT_EQ(rank.lanes[0].layer, "layer 0 to head");
  ASSERT_EQ(rank.lanes[0].calls.size(), 1u);
  const TraceSpan& call = rank.lanes[0].calls[0];
  EXPECT_EQ(call.ready_ns, 10 * kNsPerMs);
  EXPECT_EQ(call.time, (Interval{12 * kNsPerMs, 19 * kNsPerMs}));
  EXPECT_EQ(call.wire, (Interval{13 * kNsPerMs, 18 * kNsPerMs}));
  EXPECT_EQ(timeline.exposed(rank, call), (std::vector<Interval>{{15 * kNsPerMs, 18 * kNsPerMs}}));
  EXPECT_EQ(table_of(timeline).title,
            "step 4: 16.00 ms from its first work to its last; rank 0 quantises operands for 2.00 ms");
  EXPECT_EQ(table_of(timeline).rows[1],
            (std::vector<std::string>{"0", "gradients b3", "1", "10.000", "6.00", "8.00", "9.00", "15.00", "5.00",
                                      "3.00", "2", "layer 0 to head"}));
}

TEST(StepTimeline, ThePictureHasEveryPart) {
  const TempDir dir;
  const std::string svg = render_svg(read_step_timeline(write_trace(dir), 4, {0, 1}));
  for (const char* part :
       {"rank 1 (tp 0, pp 0, dp 1), step 4", "computes 11.00 of 16.00 ms, 3.00 ms of communication exposed",
        "class=\"B\"", "class=\"idle\"", "B1 waits", "class=\"queued\"", "class=\"data wait\"", "class=\"exposed\"",
        "gradients b3  layer 0 to head",
        "ready 6.000, called 8.000, matched 9.000, off the wire 14.000, done 15.000 ms", "micro-batch 1",
        "prefers-color-scheme:dark"})
    EXPECT_NE(svg.find(part), std::string::npos) << part;
}

TEST(StepTimeline, SaysWhatIsNotInATrace) {
  const TempDir dir;
  const std::string trace = write_trace(dir);
  EXPECT_THROW(read_step_timeline(trace, 5), ConfigError);
  EXPECT_THROW(read_step_timeline(trace, 4, {2}), ConfigError);
  EXPECT_THROW(read_step_timeline(dir / "none.json"), IoError);
  write_file(dir / "empty.json", "{\"traceEvents\":[\n]}\n");
  EXPECT_THROW(read_step_timeline(dir / "empty.json"), DataError);
  EXPECT_THROW(trace_of_run(dir / "nowhere"), ConfigError);
  EXPECT_THROW(trace_of_run(TempDir() / ""), DataError);
}

// What HTA reads from a trace: hta/common/trace_file.py finds the rank in the text, trace_parser.py reads ts, dur, cat,
// name and the kernels' streams, and utils.py recognises communication by NCCL's names.
TEST(Hta, AFileARankWithKernelsOnStreams) {
  // given
  const TempDir dir;
  // when
  write_hta_traces(write_trace(dir), dir / "hta");
  // then
  for (int rank = 0; rank < 2; ++rank) {
    const std::string text = read_text(dir / ("hta/rank" + std::to_string(rank) + ".json"));
    EXPECT_NE(text.find("\"rank\": " + std::to_string(rank)), std::string::npos);
    const json trace = parse_json(text);
    EXPECT_EQ(trace["distributedInfo"]["world_size"], 2);
    EXPECT_TRUE(trace.contains("schemaVersion") && trace.contains("deviceProperties"));
    std::map<std::string, int> names;
    for (const json& event : trace["traceEvents"]) {
      EXPECT_EQ(event["ph"], "X");
      EXPECT_GT(event["dur"], 0);
      ++names[event["cat"].get<std::string>() + " " + event["name"].get<std::string>()];
      if (event["cat"] == "kernel") {
        EXPECT_GE(event["args"]["stream"], 0);
      }
      if (event["name"] == "ncclDevKernel_reduce_scatter") {
        EXPECT_EQ(event["ts"], 12'000);
        EXPECT_EQ(event["dur"], 7'000);
        EXPECT_EQ(event["args"]["ranks"], 2);
      }
    }
    EXPECT_EQ(names, (std::map<std::string, int>{{"kernel matmul", 2},
                                                 {"kernel quantize", 1},
                                                 {"kernel adamw", 1},
                                                 {"kernel ncclDevKernel_reduce_scatter", 1},
                                                 {"user_annotation B", 1}}));
  }
}

class TimelineOfARun : public testing::TestWithParam<LayoutCase> {};

// Every call for a bucket names its layers, and its times are in order; the layers are the model's.
TEST_P(TimelineOfARun, NamesLayersBucketsAndMicroBatches) {
  // given
  const TempDir dir;
  Config config = config_of(GetParam());
  overlap_data_parallel(config);
  if (config.parallel.data_parallel_sharding_strategy == Sharding::optim) config.parallel.bucket_size = 10'000;
  run_traced(config, dir / "run", GetParam().ranks());
  // when
  const StepTimeline timeline = read_step_timeline(trace_of_run(dir / "run"), 3);
  // then
  const Cut& c = GetParam().cut;
  ASSERT_EQ(timeline.ranks.size(), static_cast<size_t>(c.p));
  std::set<std::string> layers;
  for (const RankTimeline& rank : timeline.ranks) {
    std::map<std::string, std::set<int>> microbatches;  // by call name
    size_t buckets = 0;
    for (const TraceSpan& layer : rank.layers) layers.insert(layer.layer);
    for (const TimelineLane& lane : rank.lanes)
      for (const TraceSpan& call : lane.calls) {
        microbatches[call.name].insert(call.microbatch);
        EXPECT_LE(call.ready_ns, call.time.begin);
        EXPECT_LE(call.time.begin, call.time.end);
        EXPECT_LE(call.wire.begin, call.wire.end);
        EXPECT_LE(call.wire.end, call.time.end);
        if (call.bucket < 0) continue;
        ++buckets;
        EXPECT_FALSE(call.layer.empty());
        EXPECT_EQ(lane.layer, call.layer);
      }
    // With two stages, each micro-batch is sent both ways; with one, there are several buckets.
    if (c.p > 1) {
      EXPECT_EQ(microbatches["send"], (std::set<int>{0, 1, 2, 3}));
      EXPECT_EQ(microbatches["recv"], microbatches["send"]);
    } else {
      EXPECT_GE(buckets, 4u);
    }
  }
  for (const char* layer : {"embedding", "layer 0", "layer 3", "head", "optimizer"})
    EXPECT_TRUE(layers.contains(layer));
}

INSTANTIATE_TEST_SUITE_P(Layouts, TimelineOfARun,
                         testing::Values(LayoutCase{"zero1", {.d = 2, .strategy = "optim"}},
                                         LayoutCase{"zero3", {.d = 2, .strategy = "optim_grads_params"}},
                                         LayoutCase{"stages", {.p = 2}}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace trivet::test
