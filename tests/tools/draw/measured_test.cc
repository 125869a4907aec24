// Timelines read back from traces: one written by hand, whose times are known, and those of real runs.
#include "tools/draw/measured.h"

#include <fstream>
#include <gtest/gtest.h>

#include "engine/metrics/perfetto.h"
#include "engine/metrics/trace_file.h"
#include "parallel/pipeline/check.h"
#include "tests/support/temp_dir.h"
#include "tests/support/training.h"
#include "tools/draw/measured_run.h"

namespace trivet::test {
namespace {

constexpr int64_t kMs = 1'000'000;

Span span(const char* name, Category category, int64_t start_ms, int64_t end_ms, int microbatch = -1) {
  return {.info = {.name = name, .category = category, .label = {.microbatch = microbatch, .chunk = 0}},
          .start_ns = start_ms * kMs,
          .end_ns = end_ms * kMs};
}

// One micro-batch on two ranks: F 2 ms, message 1 ms, F 3 ms, B 4 ms, message 1 ms, B 5 ms; rank 1 waits inside its F.
std::string write_trace(const TempDir& dir, bool whole) {
  const std::vector<std::string> rows0{"compute", "pp 0 -> pp 1 (activations)", "pp 1 -> pp 0 (gradients)"};
  const auto fail = [](const std::string& why) { FAIL() << why; };
  PerfettoWriter rank0(dir / "0", 0, {.process = "rank 0 (tp 0, cp 0, pp 0, dp 0)", .rows = rows0}, 0, fail);
  PerfettoWriter rank1(dir / "1", 1, {.process = "rank 1 (tp 0, cp 0, pp 1, dp 0)", .rows = rows0}, 0, fail);
  PerfettoWriter other(dir / "2", 2, {.process = "rank 2 (tp 0, cp 1, pp 0, dp 0)", .rows = rows0}, 0, fail);
  const std::vector<std::vector<Span>> step0{
      {span("matmul", Category::compute, 10, 11), span("matmul", Category::compute, 11, 12),
       span("F", Category::phase, 9, 12, 0), span("matmul", Category::compute, 21, 26),
       span("B", Category::phase, 12, 26, 0)},
      {span("send", comm_of("pipeline"), 12, 13)},
      {span("recv", comm_of("pipeline"), 12, 21)}};
  const std::vector<std::vector<Span>> step1{
      {span("matmul", Category::compute, 13, 16), span("F", Category::phase, 9, 16, 0),
       span("matmul", Category::compute, 16, 18), span("recompute", Category::phase, 16, 17),
       span("all_reduce", comm_of("tensor"), 18, 20), span("B", Category::phase, 16, 20, 0)},
      {span("recv", comm_of("pipeline"), 9, 13)},
      {span("send", comm_of("pipeline"), 20, 21)}};
  rank0.step(7, step0);
  if (whole) rank1.step(7, step1);
  other.step(7, step0);
  for (PerfettoWriter* writer : {&rank0, &rank1, &other}) writer->close();
  const std::vector<std::string> parts{dir / "0", dir / "1", dir / "2"};
  join_traces(parts, dir / "trace.json");
  return dir / "trace.json";
}

TEST(Measured, ReadsOpsAndMessagesFromATrace) {
  const TempDir dir;
  const Schedule schedule = make_schedule({.kind = "1f1b", .p = 2, .m = 1});
  const std::string trace = write_trace(dir, true);
  EXPECT_EQ(ranks_of_trace(trace), 3);
  const std::vector<MeasuredStep> steps = read_measured_steps(trace, schedule);
  ASSERT_EQ(steps.size(), 1u);
  EXPECT_EQ(steps[0].step, 7);
  const Timeline& timeline = steps[0].timeline;
  std::string text;
  for (const OpSpan& op : timeline.ops)
    text += std::to_string(op.rank) + (op.op.kind == OpKind::forward ? "F" : "B") + std::to_string(op.start) + "-" +
            std::to_string(op.end) + " ";
  EXPECT_EQ(text, "0F0.000000-2.000000 0B11.000000-16.000000 1F3.000000-6.000000 1B6.000000-10.000000 ");
  ASSERT_EQ(timeline.transfers.size(), 2u);
  for (const TransferSpan& transfer : timeline.transfers) EXPECT_NEAR(transfer.end - transfer.start, 1, 1e-9);

  const Costs costs = measured_costs(schedule, steps, false);
  EXPECT_NEAR(costs.stages[0].forward, 2, 1e-9);
  EXPECT_NEAR(costs.stages[1].of(OpKind::backward), 4, 1e-9);
  EXPECT_NEAR(costs.latency, 1, 1e-9);
  // A simulation with these costs matches the measurement, because nothing else delayed it.
  EXPECT_NEAR(bubble_of(simulate(schedule, costs)).makespan, bubble_of(timeline).makespan, 1e-9);
}

TEST(Measured, SaysWhatIsWrongWithATrace) {
  const TempDir dir;
  const Schedule schedule = make_schedule({.kind = "1f1b", .p = 2, .m = 1});
  EXPECT_THROW(read_measured_steps(dir / "none.json", schedule), IoError);
  EXPECT_THROW(read_measured_steps(write_trace(dir, false), schedule), DataError);  // only one rank recorded the step
  std::ofstream(dir / "text") << "{\n,{not json\n";
  EXPECT_THROW(read_measured_steps(dir / "text", schedule), DataError);
  std::ofstream(dir / "other") << "[\n,{\"ph\":\"X\"}\n";
  EXPECT_THROW(read_measured_steps(dir / "other", schedule), DataError);
}

class MeasuredEngine : public testing::TestWithParam<const char*> {};

// The run matches the plan and the simulation: the same ops in the same order, slots, stashes and messages.
TEST_P(MeasuredEngine, RunsWhatTheSimulatorSimulates) {
  const TempDir dir;
  Config config = tiny_config();
  config.parallel.pipeline_model_parallel_size = 2;
  config.parallel.pipeline_schedule = GetParam();
  if (std::string(GetParam()).starts_with("interleaved")) config.parallel.virtual_pipeline_model_parallel_size = 2;
  run_traced(config, dir / "run", 4);

  const MeasuredRun run = read_measured_run(dir / "run");
  EXPECT_EQ(run.steps.size(), 2u);  // all but the first
  EXPECT_EQ(programs_of(run.measured), run.schedule.programs);
  const auto peaks = peaks_of(programs_of(run.measured), run.schedule.v);
  EXPECT_EQ(peaks, peaks_of(programs_of(run.simulated), run.schedule.v));
  for (const MeasuredStep& step : run.steps) {
    for (const OpSpan& op : step.timeline.ops) EXPECT_LT(op.start, op.end);
    EXPECT_LE(bubble_of(step.timeline).busy, bubble_of(step.timeline).makespan);
  }
  EXPECT_THROW(read_measured_run(dir / "run", 99), ConfigError);
  EXPECT_THROW(read_measured_run(dir / "nowhere"), ConfigError);
  // A trace that another program rewrote on a single line names no rank.
  std::ofstream(dir / "run/trace.json") << "{\"traceEvents\":[{\"name\":\"process_name\",\"ph\":\"M\"}]}\n";
  EXPECT_THROW(read_measured_run(dir / "run"), DataError);
}

INSTANTIATE_TEST_SUITE_P(Schedules, MeasuredEngine, testing::Values("1f1b", "interleaved", "zb-h1", "zb-v"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace trivet::test
