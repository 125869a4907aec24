#include "tools/study/export.h"

#include <sstream>

#include "base/files.h"
#include "tests/tools/study/study_text.h"

namespace trivet {
namespace {

// The cells of a file without quotes, [row][column].
std::vector<std::vector<std::string>> cells_of(const std::string& path) {
  std::istringstream lines(read_text(path));
  std::vector<std::vector<std::string>> rows;
  for (std::string line; std::getline(lines, line);) {
    line.pop_back();  // \r
    std::istringstream cells(line);
    rows.emplace_back();
    for (std::string cell; std::getline(cells, cell, ',');) rows.back().push_back(cell);
    if (line.ends_with(',')) rows.back().emplace_back();
  }
  return rows;
}

TEST(StudyExport, IsARowARunAndStep) {
  // given: a run of three steps; one that failed after its first step; one whose folder is gone; and one that was
  // repeated in the same folder
  const StudyFolder folder;
  const Study study = folder.study();
  const auto run = [&](const char* name, RunEnd outcome, int64_t round, const char* label) {
    RunRow row;
    row.point = "id";
    row.repeat = round, row.call = 7, row.outcome = outcome;
    row.levels = {{"bucket_size", "1000"}, {"size", label}};
    row.folder = name;
    row.provenance["commit"] = "abc";
    return row;
  };
  make_folder(study.out + "/one"), make_folder(study.out + "/two");
  write_text(study.out + "/one/metrics.jsonl",
             "{\"step\":1,\"loss\":4.5,\"a\":1}\n{\"event\":\"eval\",\"step\":1}\n{\"step\":2,\"loss\":3,\"b\":0.1}\n"
             "{\"step\":3,\"loss\":null,\"a\":2}\n");
  write_text(study.out + "/two/metrics.jsonl", "{\"step\":1,\"loss\":4.5,\"a\":1}\n");
  std::vector<RunRow> runs{run("two", RunEnd::failed, 1, "small"), run("one", RunEnd::done, 1, "small"),
                           run("two", RunEnd::failed, 2, "big"), run("gone", RunEnd::timed_out, 3, "big")};
  runs[3].reason = "took longer";

  // when
  const int64_t written = export_steps(study, runs, folder / "steps.csv");

  // then
  EXPECT_EQ(written, 6);
  const auto rows = cells_of(folder / "steps.csv");
  ASSERT_EQ(rows.size(), 7u);
  const auto cell = [&](size_t row, const std::string& column) {
    const auto at = std::ranges::find(rows[0], column);
    EXPECT_NE(at, rows[0].end()) << column;
    return rows[row].at(static_cast<size_t>(at - rows[0].begin()));
  };
  for (const auto& row : rows) EXPECT_EQ(row.size(), rows[0].size());
  EXPECT_EQ(cell(1, "step"), "") << "its folder is a later run's";
  EXPECT_EQ(cell(2, "study") + cell(2, "size") + cell(2, "round") + cell(2, "call") + cell(2, "outcome"),
            "goodsmall17done");
  EXPECT_EQ(cell(2, "commit"), "abc");
  EXPECT_EQ(cell(2, "step") + cell(2, "measured") + cell(2, "loss") + cell(2, "a") + cell(2, "b"), "1no4.51");
  EXPECT_EQ(cell(3, "step") + cell(3, "measured") + cell(3, "loss") + cell(3, "a") + cell(3, "b"), "2yes30.1");
  EXPECT_EQ(cell(4, "loss"), "") << "no number";
  EXPECT_EQ(cell(5, "outcome") + cell(5, "step"), "failed1");
  EXPECT_EQ(cell(6, "outcome") + cell(6, "reason") + cell(6, "step"), "timed_outtook longer");
}

}  // namespace
}  // namespace trivet
