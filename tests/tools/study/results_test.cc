#include "tools/study/results.h"

#include <cmath>
#include <gtest/gtest.h>

#include "base/check.h"
#include "tests/engine/config/config_text.h"
#include "tests/support/temp_dir.h"

namespace trivet {
namespace {

RunRow some_row() {
  return {.point = "0123456789abcdef",
          .repeat = 2,
          .levels = {{"z \"factor\"", "1"}, {"a", "µ\\"}},
          .outcome = RunEnd::failed,
          .reason = "line\nand \xff no UTF-8",
          .exit_code = 64,
          .started = "2026-01-31T23:59:59Z",
          .seconds = 0.1,
          .metrics = {{"loss", 0.1 + 0.2}},
          .losses = {1. / 3, 2e-300},
          .folder = "runs/x-2",
          .command = "trivet train 'a b'",
          .provenance = {{"commit", "abc"}, {"cores", "3"}, {"environment", "OMP_NUM_THREADS=2"}, {"load", "0.5"}}};
}

TEST(StudyResults, AreReadBackWithAllDigits) {
  // given
  const TempDir dir;
  const RunRow row = some_row();
  write_text(dir / "results.jsonl", to_json_line(row) + to_json_line(row));

  // when
  const auto rows = read_results(dir / "results.jsonl");

  // then
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[1].point, row.point);
  EXPECT_EQ(rows[1].repeat, 2);
  EXPECT_EQ(rows[1].levels, row.levels);
  EXPECT_EQ(rows[1].outcome, RunEnd::failed);
  EXPECT_EQ(rows[1].reason, "line\nand \xef\xbf\xbd no UTF-8");
  EXPECT_EQ(rows[1].metrics, row.metrics);
  EXPECT_EQ(rows[1].losses, row.losses);
  EXPECT_EQ(rows[1].command, row.command);
  EXPECT_EQ(rows[1].provenance, row.provenance);
}

TEST(StudyResults, LeaveATornLastLineOutAndRefuseOthers) {
  const TempDir dir;
  const std::string line = to_json_line(some_row());
  EXPECT_TRUE(read_results(dir / "none.jsonl").empty());
  write_text(dir / "torn.jsonl", line + line.substr(0, line.size() / 2));
  EXPECT_EQ(read_results(dir / "torn.jsonl").size(), 1u);
  write_text(dir / "wrong.jsonl", line + "{\"point\": 7}\n" + line);
  const std::string message = message_of<DataError>([&] { read_results(dir / "wrong.jsonl"); });
  EXPECT_NE(message.find("wrong.jsonl:2: is not a result of a study: type must be string"), std::string::npos)
      << message;
}

TEST(StudyResults, LastRowOfARepeatCounts) {
  std::vector<RunRow> rows{some_row(), some_row()};
  rows[1].outcome = RunEnd::done;
  EXPECT_EQ(without_failures(rows).size(), 1u);
  EXPECT_TRUE(failures_of(rows).empty()) << "it was made good";

  // A repeat whose last run failed is run again completely: a baseline's repeat consists of several runs.
  rows.push_back(some_row());
  EXPECT_EQ(without_failures(rows).size(), 0u);
  EXPECT_EQ(failures_of(rows).at(rows[0].point), &rows[2]);
}

TEST(StudyMetrics, AreTheMedianOfTheMeasuredStepsOfWhateverIsANumber) {
  // given: a key missing from some steps, one without a number in any step, two evaluations
  const TempDir dir;
  write_text(dir / "metrics.jsonl", R"({"step":1,"loss":4,"step_seconds":100,"mfu":null}
{"step":2,"loss":3,"step_seconds":2,"mfu":null,"brand_new_fraction":0.5}
{"event":"eval","step":2,"validation_loss":9}
{"step":3,"loss":2,"step_seconds":8,"mfu":null,"host":"a","exposed_fraction":0.25}
{"step":4,"loss":1,"step_seconds":4,"mfu":null}
{"event":"eval","step":4,"validation_loss":7}
)");

  // when
  RunRow row;
  const std::string problem = read_metrics(dir / "metrics.jsonl", 4, 1, row);

  // then
  EXPECT_EQ(problem, "");
  EXPECT_EQ(row.losses, (std::vector<double>{4, 3, 2, 1}));
  EXPECT_EQ(row.metrics, (std::map<std::string, double>{{"loss", 2},
                                                        {"step_seconds", 4},
                                                        {"brand_new_fraction", 0.5},
                                                        {"exposed_fraction", 0.25},
                                                        {"validation_loss", 7}}));
}

TEST(StudyMetrics, OfAnUnfinishedRunDoNotCount) {
  const TempDir dir;
  const auto problem_of = [&](const std::string& text) {
    write_text(dir / "metrics.jsonl", text);
    RunRow row;
    const std::string problem = read_metrics(dir / "metrics.jsonl", 2, 0, row);
    EXPECT_TRUE(row.metrics.empty());
    return problem;
  };
  EXPECT_EQ(problem_of("{\"step\":1,\"loss\":4}\n{\"step\":2,\"lo"), "metrics.jsonl has 1 of 2 steps");
  EXPECT_EQ(problem_of("{\"step\":1,\"loss\":4}\n{\"step\":2,\"loss\":null}\n"), "step 2 has no finite loss");
  EXPECT_EQ(problem_of("nothing\n"), "metrics.jsonl:1: is not an object");
  RunRow row;
  EXPECT_EQ(read_metrics(dir / "other.jsonl", 2, 0, row), "the run wrote no metrics.jsonl");
}

}  // namespace
}  // namespace trivet
