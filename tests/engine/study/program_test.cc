// A study of real runs: the program itself on a tiny model, twice two points, stopped in the middle.
#include <chrono>
#include <filesystem>

#include "engine/data/indexed_dataset.h"
#include "engine/study/runner.h"
#include "engine/study/report.h"
#include "tests/engine/study/study_text.h"
#include "tests/support/where.h"

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

TEST(StudyProgram, MeasuresRealRunsAndGoesOnWhereItWasStopped) {
  // given a host without a GPU, wherever this runs
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
  options.stop_asked = [] { return false; };
  const RunPoint point = process_runner(study, program_path(), [] { return false; });

  // when: two runs, and a call that finds them in the file
  std::vector<RunRow> rows;
  options.most_runs = 2;
  const StudyEnd first = run_study(study, plan, rows, point, options);
  options.most_runs = 100;
  rows = read_results(results_path(study));
  const double measured = rows.at(0).seconds;
  const StudyEnd second = run_study(study, plan, rows, point, options);

  // then
  EXPECT_EQ(first, StudyEnd::limit);
  EXPECT_EQ(second, StudyEnd::complete);
  rows = read_results(results_path(study));
  ASSERT_EQ(rows.size(), 5u) << "two points twice, and one that fails once";
  const Summary summary = summarize(study, plan, rows);
  for (size_t i : {0, 1}) {
    EXPECT_EQ(summary.points[i].done, 2) << summary.points[i].failure;
    EXPECT_GT(*summary.points[i].median("step_seconds"), 0);
    EXPECT_EQ(summary.points[i].disagreement, "");
  }
  EXPECT_EQ(rows[0].seconds, measured) << "not run again";
  EXPECT_EQ(rows[0].losses.size(), 3u);
  EXPECT_EQ(rows[2].exit_code, 64);
  EXPECT_NE(summary.points[2].failure.find("device.kind: found cuda"), std::string::npos) << summary.points[2].failure;
  EXPECT_TRUE(summary.points[1].ratio);
  const std::string page = html_report(study, plan, summary, rows);
  EXPECT_NE(page.find("runs/" + plan.points[0].id + "-1/trace.json"), std::string::npos);
  EXPECT_TRUE(std::filesystem::exists(study.out + "/runs/" + plan.points[0].id + "-1/trace.json"));
  EXPECT_FALSE(std::filesystem::exists(study.out + "/runs/" + plan.points[0].id + "-2/trace.json"));
  unsetenv("CUDA_VISIBLE_DEVICES");
}

}  // namespace
}  // namespace trivet
