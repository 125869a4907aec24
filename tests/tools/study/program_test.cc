// A study of real runs: the program itself on a tiny model, two points twice, stopped in the middle.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fmt/format.h>
#include <map>
#include <sys/wait.h>

#include "base/svg.h"
#include "engine/data/indexed_dataset.h"
#include "tests/support/where.h"
#include "tests/tools/study/study_text.h"
#include "tools/study/report.h"
#include "tools/study/runner.h"
#include "tools/study/scaling.h"

namespace trivet {
namespace {

constexpr const char* kTinyStudy = R"(name: tiny
base: run.yaml
ranks: 2
set: {parallel.pipeline_model_parallel_size: 2, device.threads_per_rank: 1, device.peak_tflops: 1}
factors:
  - key: overlap.overlap_p2p_comm
    levels: [false, true]
  - name: device
    levels: {cpu: {}, gpu: {device.kind: cuda}}
design: list
points: [{}, {overlap_p2p_comm: true}, {device: gpu}]
repeats: 2
steps: 3
warmup_steps: 1
)";

void write_dataset(const std::string& prefix) {
  IndexedDatasetWriter writer(prefix, TokenType::u16);
  for (int document = 0; document < 20; ++document) {
    std::vector<int32_t> tokens;
    for (int i = 0; i < 60; ++i) tokens.push_back((document + i * i) % 100);
    writer.add_document(tokens);
  }
  writer.finish();
}

// The exit code of `trivet study` with these arguments, and what it prints to stderr.
std::pair<int, std::string> study_command(const StudyFolder& folder, const std::string& arguments) {
  const std::string command = fmt::format(
      "cd {} && env -u OMPI_COMM_WORLD_SIZE CUDA_VISIBLE_DEVICES= {} study {} "
      ">out.txt 2>err.txt",
      folder / "", program_path(), arguments);
  const int status = std::system(command.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_text(folder / "err.txt")};
}

TEST(StudyProgram, MeasuresRealRunsAndGoesOnWhereItWasStopped) {
  // given: a host without a GPU, wherever this runs
  ASSERT_EQ(setenv("CUDA_VISIBLE_DEVICES", "", 1), 0);
  const TempDir data;
  write_dataset(data / "corpus");
  const StudyFolder folder(with(kGoodConfig, "path: corpus", "path: " + (data / "corpus")));
  const Study study = folder.study(kTinyStudy);
  const Plan plan = make_plan(study);
  ASSERT_EQ(plan.points.size(), 3u);
  RunnerOptions options;
  options.now_seconds = [] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  };
  const RunPoint point = process_runner(
      study, program_path(), [] { return false; }, provenance_of({{"commit", "abc"}}, program_path()));

  // when: two runs, and a call that finds them in the file and continues the round
  std::vector<RunRow> rows;
  options.stop_asked = [&] { return rows.size() == 2; };
  const StudyEnd first = run_study(study, plan, rows, point, options);
  options.stop_asked = [] { return false; };
  rows = read_results(results_path(study));
  const double measured = rows.at(0).seconds;
  const StudyEnd second = run_study(study, plan, rows, point, options);

  // then
  EXPECT_EQ(first, StudyEnd::stopped);
  EXPECT_EQ(second, StudyEnd::complete);
  rows = read_results(results_path(study));
  std::map<std::string, int64_t> runs;
  for (const RunRow& row : rows) ++runs[row.point];
  EXPECT_EQ(runs[plan.points[1].id], 2);
  EXPECT_EQ(runs[plan.points[2].id], 1) << "it fails";
  EXPECT_EQ(runs[plan.points[0].id], 5) << "two in each round, and one more where the round was interrupted";
  const Summary summary = summarize(study, plan, rows);
  for (size_t i : {0, 1}) {
    EXPECT_EQ(summary.points[i].done, 2) << summary.points[i].failure;
    EXPECT_GT(*summary.points[i].median("step_seconds"), 0);
    EXPECT_EQ(summary.points[i].disagreement, "");
  }
  EXPECT_EQ(rows[0].seconds, measured) << "not run again";
  EXPECT_EQ(rows[0].losses.size(), 3u);
  EXPECT_EQ(std::ranges::count(rows, 64, &RunRow::exit_code), 1);
  for (const RunRow& row : rows) {
    EXPECT_EQ(row.provenance.at("commit"), "abc");
    EXPECT_EQ(row.provenance.at("binary").size(), 16u);
    EXPECT_GT(std::stoi(row.provenance.at("cores")), 0);
    EXPECT_EQ(row.provenance.at("launcher"), "threads");
    EXPECT_GT(std::stoi(row.provenance.at("threads")), 0);
    EXPECT_NE(row.provenance.at("environment").find("CUDA_VISIBLE_DEVICES="), std::string::npos);
    EXPECT_EQ(provenance_text(row.provenance), provenance_text(rows[0].provenance));
  }
  EXPECT_NE(summary.points[2].failure.find("device.kind: found cuda"), std::string::npos) << summary.points[2].failure;
  EXPECT_EQ(summary.points[1].ratio("step_seconds")->rounds, 2);
  const std::string page = html_report(study, plan, summary, rows);
  EXPECT_NE(page.find("href=\"runs/" + plan.points[0].id + "-1\""), std::string::npos);
  EXPECT_TRUE(std::filesystem::exists(study.out + "/runs/" + plan.points[0].id + "-1/trace.json"));
  EXPECT_FALSE(std::filesystem::exists(study.out + "/runs/" + plan.points[0].id + "-2/trace.json"));
  unsetenv("CUDA_VISIBLE_DEVICES");
}

TEST(StudyProgram, EqualPointsTellWhatTheStudyCanSee) {
  // given
  const TempDir data;
  write_dataset(data / "corpus");
  const StudyFolder folder(with(kGoodConfig, "path: corpus", "path: " + (data / "corpus")));
  write_text(folder / "s.yaml", with(with(kTinyStudy, ", {device: gpu}]", "]"), "ranks: 2", "ranks: 2\nout: out"));

  // when
  const auto [code, error] = study_command(folder, "s.yaml --aa");

  // then
  EXPECT_EQ(code, 0) << error;
  const std::string text = read_text(folder / "out.txt");
  EXPECT_NE(text.find("of 1 equal points have a verdict"), std::string::npos) << text;
  EXPECT_NE(text.find("Study tiny: Equal points (an A/A study): deviation of a point's ratio from round to round: "),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("2 rounds and 1 comparison find effects of "), std::string::npos) << text;
  EXPECT_EQ(read_results(folder / "out/aa/results.jsonl").size(), 3u * kFewestRounds);
  EXPECT_FALSE(std::filesystem::exists(folder / "out/results.jsonl")) << "the study itself has no runs yet";
}

TEST(StudyProgram, PredictsARunByAScalingLawAndThenMakesIt) {
  // given: the results of all runs to be fitted
  const TempDir data;
  write_dataset(data / "corpus");
  const StudyFolder folder(with(kGoodConfig, "path: corpus", "path: " + (data / "corpus") + "\n  split: \"80,20,0\""));
  std::string text = R"(name: law
base: run.yaml
set: {train.eval_interval: 1000, train.eval_iters: 1, device.threads_per_rank: 1, device.peak_tflops: 1}
factors:
  - key: model.hidden_size
    levels: [8, 16, 24]
  - key: train.train_iters
    levels: [3, 5, 7]
repeats: 1
predict: [{hidden_size: 24, train_iters: 7}]
)";
  write_text(folder / "law.yaml", text + "out: out\n");
  const Study study = folder.study(text);
  std::string results;
  for (const Point& point : make_plan(study).points) {
    if (point.choice == study.predict[0]) continue;
    RunRow row = row_of(point, 1, 1);
    row.metrics["validation_loss"] = 1 + 10 / std::sqrt(point.parameters) + 30 / point.tokens;
    results += to_json_line(row);
  }
  std::filesystem::create_directory(folder / "out");
  write_text(folder / "out/results.jsonl", results);

  // when
  const auto [code, error] = study_command(folder, "law.yaml --fit scaling");

  // then: the law, the prediction without a measurement, the run, the prediction with its measurement
  EXPECT_EQ(code, 0) << error;
  const std::string printed = read_text(folder / "out.txt");
  const size_t before = printed.find("not yet"), run = printed.find("[1/1] ");
  EXPECT_LT(before, run) << printed;
  EXPECT_LT(run, printed.find(" %\n", run)) << printed;
  EXPECT_EQ(read_results(folder / "out/results.jsonl").size(), 9u);
  EXPECT_NE(read_text(folder / "out/scaling.html").find("<svg"), std::string::npos);
  EXPECT_EQ(read_scaling_runs(folder / "out/scaling.csv").size(), 9u);

  // and: its table can be fitted again by itself; a study without evaluations cannot
  EXPECT_EQ(study_command(folder, "out/scaling.csv --fit scaling").first, 0);
  EXPECT_NE(read_text(folder / "out.txt").find("hidden_size=24, train_iters=7"), std::string::npos);
  EXPECT_EQ(study_command(folder, "out/scaling.csv").first, 64);
  write_text(folder / "law.yaml", with(text, "train.eval_interval: 1000, train.eval_iters: 1, ", ""));
  EXPECT_NE(study_command(folder, "law.yaml --fit scaling").second.find("set.train.eval_interval is required by --fit"),
            std::string::npos);
}

TEST(StudyProgram, WithoutASuccessEndsWithAnError) {
  const TempDir data;
  write_dataset(data / "corpus");
  const StudyFolder folder(with(kGoodConfig, "path: corpus", "path: " + (data / "corpus")));
  const std::string failing = with(kTinyStudy, "cpu: {}", "cpu: {device.kind: cuda}");
  const auto expect = [&](const std::string& arguments, int code, const std::string& text) {
    const auto [found, error] = study_command(folder, arguments);
    EXPECT_EQ(found, code) << arguments << ": " << error;
    EXPECT_NE(error.find(text), std::string::npos) << arguments << ": " << error;
  };
  write_text(folder / "failing.yaml", with(failing, "{device: gpu}", "{}"));
  expect("failing.yaml --best", 64, "study tiny: it has no runs yet; trivet study failing.yaml makes them");
  for (const char* once_more : {"", " --best", ""}) expect(std::string("failing.yaml") + once_more, 70, "found cuda");
  expect("failing.yaml --report", 0, "");

  const std::string none = with(kTinyStudy, "pipeline_model_parallel_size: 2", "pipeline_model_parallel_size: 3");
  write_text(folder / "none.yaml", with(none, "ranks: 2", "ranks: 2\nout: none"));
  for (const char* how : {"", " --best", " --plan", " --report"})
    expect(std::string("none.yaml") + how, 64, "none.yaml: none of the study's 3 points can run");
}

}  // namespace
}  // namespace trivet
