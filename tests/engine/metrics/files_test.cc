// The files of a run: metrics.jsonl and trace.json, on healthy and failing disks.

#include "base/files.h"

#include <csignal>
#include <filesystem>
#include <gtest/gtest.h>
#include <limits>
#include <sstream>
#include <sys/resource.h>

#include "base/json.h"
#include "engine/metrics/jsonl.h"
#include "engine/metrics/perfetto.h"
#include "tests/support/temp_dir.h"

namespace trivet {
namespace {

using nlohmann::json;

AppendFile::Warn collect(std::vector<std::string>& warnings) {
  return [&](const std::string& message) { warnings.push_back(message); };
}

std::vector<json> json_lines(const std::string& path) {
  std::istringstream in(read_text(path));
  std::vector<json> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(parse_json(line));
  return lines;
}

StepReport step_report(int64_t step) {
  StepReport report;
  report.step = step;
  return report;
}

// An outline of the lines: the steps, and the events with their steps.
std::string outline(const std::string& path) {
  std::string text;
  for (const json& line : json_lines(path))
    text += line.value("event", "step") + " " + line["step"].dump() + (line.contains("checkpoint") ? "!" : "") + "; ";
  return text;
}

TEST(MetricsLog, WhatIsSaidOfARecordStandsBehindIt) {
  const TempDir dir;
  std::optional<MetricsLog> log;
  log.emplace(dir / "metrics.jsonl", nullptr, 0, [&](const nlohmann::ordered_json& record) {
    if (!record.contains("event")) log->note("of it");
  });
  log->begin({});
  log->step({.step = 1});
  log->flush();
  const std::string text = read_text(dir / "metrics.jsonl");
  EXPECT_LT(text.find("consumed_tokens"), text.find("of it"));
  EXPECT_NE(text.find("of it"), std::string::npos);
}

TEST(MetricsLog, TakesNamesOfAnyBytes) {
  const TempDir dir;
  MetricsLog(dir / "metrics.jsonl", nullptr).begin({.step = 7, .checkpoint = "run\xff/step", .goes_on = true});
  const auto lines = json_lines(dir / "metrics.jsonl");
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0]["checkpoint"], "run\xef\xbf\xbd/step");
}

TEST(MetricsLog, FloatsReadBackExactlyAndUnknownsAreNull) {
  // given
  const TempDir dir;
  StepReport r;
  r.step = 7;
  r.consumed_samples = 56;
  r.consumed_tokens = int64_t{1} << 60;
  r.loss = 10.0 / 3;
  r.grad_norm = std::numeric_limits<double>::infinity();
  r.learning_rate = 5e-324;
  r.step_seconds = 0.1;
  r.tokens_per_second = 1e300;
  r.stats.window = 100;
  r.stats.compute = 75;
  r.stats.wire = {0, 0, 8, 0};
  r.stats.any_wire = 8;
  r.stats.hidden = {0, 0, 3, 0};
  r.stats.exposed = {0, 0, 5, 0};
  r.stats.wait = {0, 0, 4, 1};
  r.stats.floor = {0, 0, 6, 0};
  r.stats.wire_bytes = {0, 0, 3000, 0};
  r.ranks = 2;
  r.links[2] = Link{.gbps = 1};
  r.stats.idle = 15;
  // when
  {
    MetricsLog log(dir / "metrics.jsonl", nullptr);
    log.step(r);
    log.flush();
    EXPECT_EQ(json_lines(dir / "metrics.jsonl").size(), 1u) << "a line is there when it is flushed";
  }
  {
    MetricsLog log(dir / "metrics.jsonl", nullptr);  // a resumed run
    log.evaluation({.step = 7, .loss = 0.1 + 0.2, .samples = 3, .seconds = 1});
    log.step({});
    log.step({.batch_size = 32, .weight_decay = 0.1, .decoupled_learning_rate = 0.2});
  }
  // then
  const auto lines = json_lines(dir / "metrics.jsonl");
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_TRUE(lines[2]["overlap_ratio"].is_null()) << "no communication";
  // Values that are constant over the run are omitted.
  for (const auto& [key, value] :
       {std::pair("batch_size", 32.0), {"weight_decay", 0.1}, {"decoupled_learning_rate", 0.2}}) {
    EXPECT_FALSE(lines[2].contains(key)) << key;
    EXPECT_EQ(lines[3][key].get<double>(), value);
  }
  for (const char* key : {"step",
                          "consumed_samples",
                          "consumed_tokens",
                          "loss",
                          "grad_norm",
                          "learning_rate",
                          "step_seconds",
                          "tokens_per_second",
                          "model_tflops_per_rank",
                          "mfu",
                          "bubble_fraction",
                          "compute_fraction",
                          "optimizer_fraction",
                          "exposed_fraction",
                          "wait_fraction",
                          "host_fraction",
                          "idle_fraction",
                          "compute_seconds",
                          "exposed_seconds",
                          "wait_seconds",
                          "idle_seconds",
                          "overlap_ratio"})
    EXPECT_TRUE(lines[0].contains(key)) << key;
  EXPECT_EQ(lines[0]["step"], 7);
  EXPECT_EQ(lines[0]["consumed_tokens"], int64_t{1} << 60);
  EXPECT_EQ(lines[0]["loss"].get<double>(), 10.0 / 3);
  EXPECT_EQ(lines[0]["learning_rate"].get<double>(), 5e-324);
  EXPECT_EQ(lines[0]["tokens_per_second"].get<double>(), 1e300);
  for (const auto& [key, value] : {std::pair("compute_fraction", 0.75),
                                   {"exposed_fraction", 0.05},
                                   {"wait_fraction", 0.05},
                                   {"compute_seconds", 37.5e-9},
                                   {"exposed_seconds", 2.5e-9},
                                   {"wait_seconds", 2.5e-9},
                                   {"idle_seconds", 7.5e-9},
                                   {"pipeline_wire_bytes", 1500.0},
                                   {"pipeline_floor_seconds", 3e-9},
                                   {"pipeline_wire_seconds", 4e-9},
                                   {"pipeline_exposed_seconds", 2.5e-9},
                                   {"pipeline_wait_seconds", 2e-9},
                                   {"data_wait_seconds", 0.5e-9},
                                   {"tensor_wire_seconds", 0.0},
                                   {"host_fraction", 0.0},
                                   {"idle_fraction", 0.15},
                                   {"overlap_ratio", 3.0 / 8}})
    EXPECT_DOUBLE_EQ(lines[0][key].get<double>(), value) << key;
  EXPECT_TRUE(lines[0]["data_floor_seconds"].is_null()) << "no link is known";
  EXPECT_TRUE(lines[0]["grad_norm"].is_null());
  EXPECT_TRUE(lines[0]["mfu"].is_null());
  EXPECT_FALSE(lines[0].contains("event"));
  EXPECT_EQ(lines[1]["event"], "eval");
  EXPECT_EQ(lines[1]["step"], 7);
  EXPECT_EQ(lines[1]["validation_loss"].get<double>(), 0.1 + 0.2);
}

TEST(MetricsLog, AFullDiskWarnsOnceAndTrainingGoesOn) {
  std::vector<std::string> warnings;
  {
    MetricsLog log("/dev/full", collect(warnings));
    for (int i = 0; i < 5; ++i) log.step({});
    log.evaluation({});
  }
  ASSERT_EQ(warnings.size(), 2u);
  EXPECT_TRUE(warnings[0].starts_with("/dev/full: cannot be written: No space left on device")) << warnings[0];
  EXPECT_EQ(warnings[1], "/dev/full: 6 records are missing at its end");
}

// No record is lost if the disk is freed while the queue still has room.
TEST(MetricsLog, ADiskThatHasRoomAgainMissesNothing) {
  const TempDir dir;
  std::vector<std::string> warnings;
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small = {10, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  {
    MetricsLog log(dir / "metrics.jsonl", collect(warnings));
    for (int64_t step = 1; step <= 3; ++step) log.step(step_report(step));
    log.flush();
    EXPECT_EQ(read_text(dir / "metrics.jsonl"), "");
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  }
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(outline(dir / "metrics.jsonl"), "step 1; step 2; step 3; ");
  ASSERT_EQ(warnings.size(), 2u);
  EXPECT_NE(warnings[1].find("can be written again; 0 records"), std::string::npos) << warnings[1];
}

TEST(MetricsLog, AFolderThatIsNotThereIsToldBeforeTraining) {
  const TempDir dir;
  EXPECT_THROW(MetricsLog(dir / "none/metrics.jsonl", nullptr), IoError);
}

// Two runs do not mix, and no record of the earlier one is lost.
TEST(MetricsLog, ANewRunSetsTheRecordsOfAnEarlierOneAside) {
  const TempDir dir;
  EXPECT_EQ(MetricsLog(dir / "metrics.jsonl", nullptr).begin({}), "");
  for (int64_t run = 1; run <= 3; ++run) {
    MetricsLog log(dir / "metrics.jsonl", nullptr);
    const std::string aside = dir / fmt::format("metrics.{}.jsonl", run - 1);
    EXPECT_EQ(log.begin({}),
              run == 1 ? "" : fmt::format("{} was an earlier run's and is now {}", dir / "metrics.jsonl", aside));
    log.step(step_report(run));
  }
  EXPECT_EQ(outline(dir / "metrics.1.jsonl"), "start 0; step 1; ");
  EXPECT_EQ(outline(dir / "metrics.2.jsonl"), "start 0; step 2; ");
  EXPECT_EQ(outline(dir / "metrics.jsonl"), "start 0; step 3; ");
  EXPECT_EQ(MetricsLog("/dev/null", nullptr).begin({}), "") << "a device stays where it is";
}

// A repeated step appears in the file once; records of earlier steps stay, wherever they are.
TEST(MetricsLog, AResumedRunRemovesWhatItDoesAgain) {
  const TempDir dir;
  const std::string path = dir / "metrics.jsonl";
  for (const bool evaluates_again : {false, true}) {
    std::filesystem::remove(path);
    {
      MetricsLog log(path, nullptr);
      log.step(step_report(9));
      log.step(step_report(10));
      log.evaluation({.step = 10, .loss = 1, .samples = 1, .seconds = 1});
      log.step(step_report(11));
      log.save({.step = 10, .bytes = 1});  // asynchronous: the commit is seen a step later
      log.step(step_report(12));
      log.begin({.step = 11, .checkpoint = "x", .goes_on = true});
      log.step(step_report(12));
    }
    {
      std::ofstream torn(path, std::ios::app);
      torn << "{\"step\":13,";  // the writer was killed
    }
    MetricsLog log(path, nullptr);
    log.begin({.step = 10, .checkpoint = "y", .goes_on = true, .evaluates_again = evaluates_again});
    log.flush();
    EXPECT_EQ(outline(path), evaluates_again ? "step 9; step 10; checkpoint 10; resume 10!; "
                                             : "step 9; step 10; eval 10; checkpoint 10; resume 10!; ");
    log.step(step_report(11));
    log.flush();
    EXPECT_EQ(json_lines(path).back()["step"], 11);
    EXPECT_EQ(list_directory(dir / ""), std::vector<std::string>{"metrics.jsonl"});
  }
}

TEST(MetricsLog, RecordsThatCannotBeRemovedStay) {
  // given: a name too long for the temporary file's suffix
  const TempDir dir;
  const std::string path = dir / std::string(250, 'm');
  std::vector<std::string> warnings;
  MetricsLog log(path, collect(warnings));
  log.step(step_report(7));
  // when
  log.begin({.step = 6, .checkpoint = "x", .goes_on = true});
  log.flush();
  // then
  EXPECT_EQ(outline(path), "step 7; resume 6!; ");
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_NE(warnings[0].find("mm: the records after step 6 stay in it: "), std::string::npos) << warnings[0];
}

std::vector<std::vector<Span>> some_spans() {
  return {{{{.name = "matmul", .category = Category::compute, .label = {.microbatch = 2}}, 5'001'000, 5'002'345},
           {{.name = "forward \"1\"", .category = Category::phase}, 5'000'000, 5'003'000}},
          {{{.name = "all_reduce", .category = comm_of("tensor"), .bytes = 4096}, 4'999'999, 5'000'001}}};
}

TEST(Perfetto, APartIsATraceOfItsOwn) {
  const TempDir dir;
  {
    PerfettoWriter writer(dir / "trace.json", 3, {.process = "rank 3 (tp 1)", .rows = {"compute", "tensor"}}, 5'000'000,
                          nullptr);
    writer.step(1, some_spans());
    writer.step(2, std::vector<std::vector<Span>>(2));
  }
  const json trace = parse_json(read_text(dir / "trace.json"));
  std::vector<json> spans, names;
  for (const json& event : trace["traceEvents"]) {
    if (event["ph"] == "X") spans.push_back(event);
    if (event["name"] == "process_name" || event["name"] == "thread_name") names.push_back(event["args"]["name"]);
  }
  EXPECT_EQ(names, (std::vector<json>{"rank 3 (tp 1)", "compute", "tensor"}));
  ASSERT_EQ(spans.size(), 4u);
  EXPECT_EQ(spans[0], parse_json(R"({"ph":"X","name":"matmul","cat":"compute","pid":4,"tid":1,"ts":1.0,"dur":1.345,
                                      "args":{"step":1,"microbatch":2}})"));
  EXPECT_EQ(spans[1]["name"], "forward \"1\"");
  EXPECT_EQ(spans[2], parse_json(R"({"ph":"X","name":"all_reduce","cat":"comm.tensor","pid":4,"tid":2,"ts":-0.001,
                                      "dur":0.002,"args":{"step":1,"bytes":4096,"wire_ts":-0.001,"wire_dur":0.002,
                                              "algbw_GBps":2048,"exposed_us":0.002}})"));
  EXPECT_EQ(spans[3], parse_json(R"({"ph":"X","name":"exposed","cat":"exposed","pid":4,"tid":2,"ts":-0.001,
                                      "dur":0.002})"));
}

// A gather is ready in one step and stays on the wire until the next, overlapping the compute of both.
TEST(Perfetto, ACallMayBeginInTheStepBefore) {
  // given
  const TempDir dir;
  const SpanLabel bucket{.microbatch = 1, .chunk = 0, .first_unit = 0, .last_unit = 2, .bucket = 5, .hand_over = 9};
  const auto compute = [](int64_t start, int64_t end) {
    return Span{.info = {.name = "matmul"}, .start_ns = start, .end_ns = end};
  };
  PerfettoWriter writer(dir / "trace.json", 0,
                        {.process = "rank 0", .rows = {"compute", "weights"}, .units = {"a", "b", "c"}}, 0, nullptr);
  // when
  writer.step(1, std::vector<std::vector<Span>>{
                     {compute(1000, 4000),
                      {.info = {.name = "ready", .category = Category::phase, .label = {.hand_over = 9}},
                       .start_ns = 2000,
                       .end_ns = 2000}},
                     {}});
  writer.step(
      2, std::vector<std::vector<Span>>{
             {compute(5000, 6000)},
             {{.info = {.name = "all_gather", .category = comm_of("data"), .bytes = 8000, .ranks = 4, .label = bucket},
               .start_ns = 2500,
               .end_ns = 7500,
               .wire_start_ns = 3000,
               .wire_end_ns = 7000}}});
  writer.close();
  // then
  json call;
  std::string exposed;
  const json trace = parse_json(read_text(dir / "trace.json"));
  for (const json& event : trace["traceEvents"]) {
    if (event["name"] == "all_gather") call = event["args"];
    if (event["name"] == "exposed") exposed += event["ts"].dump() + "+" + event["dur"].dump() + " ";
  }
  EXPECT_EQ(call, parse_json(R"({"step":2,"bytes":8000,"microbatch":1,"chunk":0,"bucket":5,"layer":"a to c","ranks":4,
                                 "ready_ts":2.0,"wire_ts":3.0,"wire_dur":4.0,"algbw_GBps":2,"exposed_us":2.0})"));
  EXPECT_EQ(exposed, "4.0+1.0 6.0+1.0 ");
}

TEST(Perfetto, WaitsAreSlicesAndTransfersAreArrows) {
  // given: a send on rank 0, and the matching receive on rank 1, which waited for it
  const TempDir dir;
  const std::vector<std::string> parts = {dir / "trace.rank0.json", dir / "trace.rank1.json"};
  constexpr uint64_t kId = 0xfedcba9876543210u;
  const auto write = [&](int rank, const Span& span) {
    PerfettoWriter(parts[static_cast<size_t>(rank)], rank, {.process = "rank", .rows = {"0>1"}}, 0, nullptr)
        .step(1, std::vector<std::vector<Span>>{{span}});
  };
  write(0, {{.name = "send", .category = comm_of("pipeline")}, 5000, 6000, 5000, 5000, kId});
  write(1, {{.name = "recv", .category = comm_of("pipeline")}, 1000, 9000, 5100, 9000, kId});
  // when
  join_traces(parts, dir / "trace.json");
  // then
  std::vector<json> waits, starts, ends;
  const json trace = parse_json(read_text(dir / "trace.json"));
  for (const json& event : trace["traceEvents"]) {
    if (event["name"] == "wait") waits.push_back(event);
    if (event["ph"] == "s") starts.push_back(event);
    if (event["ph"] == "f") ends.push_back(event);
  }
  EXPECT_EQ(waits, std::vector<json>{
                       parse_json(R"({"ph":"X","name":"wait","cat":"wait","pid":2,"tid":1,"ts":1.0,"dur":4.1})")});
  EXPECT_EQ(starts, std::vector<json>{parse_json(
                        R"({"ph":"s","bp":"e","name":"transfer","cat":"transfer","id":"0xfedcba9876543210",
                            "pid":1,"tid":1,"ts":5.0})")});
  EXPECT_EQ(ends, std::vector<json>{parse_json(
                      R"({"ph":"f","bp":"e","name":"transfer","cat":"transfer","id":"0xfedcba9876543210",
                          "pid":2,"tid":1,"ts":8.999})")});
}

TEST(Perfetto, PartsAreJoinedEvenWhenCutOffByACrash) {
  // given
  const TempDir dir;
  const PerfettoWriter::Names names{.process = "rank", .rows = {"compute", "tensor"}};
  std::vector<std::string> parts;
  for (int rank = 0; rank < 3; ++rank) {
    parts.push_back(dir / ("trace.rank" + std::to_string(rank) + ".json"));
    PerfettoWriter writer(parts.back(), rank, names, 0, nullptr);
    writer.step(1, some_spans());
  }
  const std::string whole = read_text(parts[1]);
  write_text(parts[1], whole.substr(0, whole.size() - 20));  // within the last span
  // when
  join_traces(parts, dir / "trace.json");
  // then
  const json trace = parse_json(read_text(dir / "trace.json"));
  std::map<int, int> spans;
  for (const json& event : trace["traceEvents"]) spans[event["pid"].get<int>()] += event["ph"] == "X";
  EXPECT_EQ(spans, (std::map<int, int>{{1, 4}, {2, 3}, {3, 4}}));
  EXPECT_THROW(join_traces(parts, dir / "none/trace.json"), IoError);
  parts.push_back(dir / "none.json");
  EXPECT_THROW(join_traces(parts, dir / "trace.json"), IoError);
}

TEST(Perfetto, AFullDiskWarnsOnce) {
  std::vector<std::string> warnings;
  PerfettoWriter writer("/dev/full", 0, {.process = "rank 0"}, 0, collect(warnings));
  writer.step(1, some_spans());
  writer.close();
  EXPECT_EQ(warnings.size(), 1u);
}

}  // namespace
}  // namespace trivet
