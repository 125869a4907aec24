// A study's output: its tables in 80 columns and on a page of 1,300 pixels, floors, and shared cores.
#include <algorithm>
#include <cmath>
#include <sstream>

#include "base/text.h"
#include "parallel/comm/world.h"
#include "tests/tools/study/study_text.h"
#include "tools/study/report.h"

namespace trivet {
namespace {

constexpr const char* kBuckets = R"(name: buckets
base: run.yaml
ranks: 2
steps: 4
warmup_steps: 1
repeats: 5
responses: [exposed_seconds, peak_rss_bytes, idle_seconds]
set: {parallel.data_parallel_sharding_strategy: optim, device.threads_per_rank: 1}
factors:
  - name: link
    condition: true
    levels:
      memory: {}
      a slow link of one Gbit/s: {comm.data_link_gbps: 1, comm.data_link_latency_us: 100}
  - name: overlap of gradients and weights
    levels:
      none: {}
      gradients with backward: {overlap.overlap_grad_reduce: true}
      gradients and weights both: {overlap.overlap_grad_reduce: true, overlap.overlap_param_gather: true}
  - key: parallel.bucket_size
    levels: [100, 1000, 100000]
)";

class StudyPages : public testing::Test {
 protected:
  void use(const std::string& text) {
    study_ = folder_.study(text);
    plan_ = make_plan(study_);
    rows_.clear();
  }
  // Five rounds of every point, with every metric of a run that uses all classes of communication.
  void measure() {
    for (int round = 1; round <= 5; ++round)
      for (size_t i = 0; i < plan_.points.size(); ++i) {
        const double seconds = 0.1 + 0.01 * static_cast<double>(i) + 0.0001 * static_cast<double>(round);
        RunRow row = row_of(plan_.points[i], round, seconds);
        row.call = 1;
        row.provenance["cores"] = "2";
        row.provenance["threads"] = std::to_string(plan_.points[i].threads);
        row.metrics["peak_rss_bytes"] = 1e8 * seconds;
        for (const char* part : {"compute", "exposed", "wait", "idle"})
          row.metrics[std::string(part) + "_seconds"] = seconds / 4;
        for (const std::string name : {"tensor", "pipeline", "data"}) {
          row.metrics[name + "_wire_bytes"] = 1e6;
          row.metrics[name + "_floor_seconds"] = 0.008;
          row.metrics[name + "_wire_seconds"] = name == "data" ? 0.0081 : name == "tensor" ? 0.004 : 0.016;
          row.metrics[name + "_exposed_seconds"] = 0.004;
          row.metrics[name + "_wait_seconds"] = 0.002;
        }
        rows_.push_back(std::move(row));
      }
  }
  Summary summary() const { return summarize(study_, plan_, rows_); }
  // A row's cell, by the column's name.
  static std::string cell(const TextBlock& table, size_t row, const std::string& column) {
    const auto at = std::ranges::find(table.rows[0], column);
    EXPECT_NE(at, table.rows[0].end()) << column;
    return at == table.rows[0].end() ? "" : table.rows[row].at(static_cast<size_t>(at - table.rows[0].begin()));
  }

  StudyFolder folder_;
  Study study_;
  Plan plan_;
  std::vector<RunRow> rows_;
};

size_t columns_of(std::string_view text) {
  return static_cast<size_t>(std::ranges::count_if(text, [](char c) { return (c & 0xc0) != 0x80; }));
}

// ---- widths

TEST_F(StudyPages, TablesFitATerminalOf80Columns) {
  use(kBuckets);
  measure();
  const Summary result = summary();
  const std::vector<TextBlock> tables = {result_table(study_, plan_, result), response_table(study_, plan_, result),
                                         step_table(study_, plan_, result), comm_table(study_, plan_, result),
                                         effect_table(study_, plan_, result)};
  for (const TextBlock& table : tables) {
    const std::string text = render({table}, 80);
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) EXPECT_LE(columns_of(line), 80u) << line;
    for (const std::string& name : table.rows[0]) EXPECT_NE(text.find(name), std::string::npos) << name;
  }
}

// The minimum width of a table on a page, in pixels: 8 per character, numbers unbroken, text broken between words, and
// 14 for each column's padding.
double least_pixels(const std::string& table) {
  std::vector<size_t> widths;
  for (size_t row = table.find("<tr"); row != std::string::npos; row = table.find("<tr", row + 1)) {
    const std::string cells = table.substr(row, table.find("</tr>", row) - row);
    size_t column = 0;
    for (size_t at = cells.find("<t", 1); at != std::string::npos; at = cells.find("<t", at + 1), ++column) {
      const size_t open = cells.find('>', at) + 1;
      const bool number = cells.substr(at, open - at).find("\"r\"") != std::string::npos && cells[at + 2] == 'd';
      std::string text = cells.substr(open, cells.find("</t", open) - open);
      while (text.find('<') != std::string::npos)
        text.erase(text.find('<'), text.find('>') - text.find('<') + 1);  // tags of links
      if (!number) std::ranges::replace(text, ' ', '\n');
      std::istringstream words(text);
      widths.resize(std::max(widths.size(), column + 1));
      for (std::string word; std::getline(words, word);) widths[column] = std::max(widths[column], columns_of(word));
    }
  }
  double pixels = 0;
  for (const size_t width : widths) pixels += 8. * static_cast<double>(width) + 14;
  return pixels;
}

TEST_F(StudyPages, TablesFitAPageOf1300Pixels) {
  use(kBuckets);
  measure();
  const std::string page = html_report(study_, plan_, summary(), rows_);
  int tables = 0;
  for (size_t at = page.find("<table"); at != std::string::npos; at = page.find("<table", at + 1), ++tables) {
    const std::string table = page.substr(at, page.find("</table>", at) - at);
    EXPECT_LE(least_pixels(table), 1220) << table.substr(0, 1500);
  }
  EXPECT_GE(tables, 4);
}

TEST_F(StudyPages, ResponsesStandBesideTheMetricWithTheirRatios) {
  use(kBuckets);
  measure();
  const TextBlock table = response_table(study_, plan_, summary());
  EXPECT_EQ(cell(table, 1, "exposed seconds"), "25.07 ms");
  EXPECT_EQ(table.rows[1][5], "") << "a baseline has no ratio";
  EXPECT_TRUE(table.rows[2][5].starts_with("1.100 (")) << table.rows[2][5];
  study_.responses = {study_.metric};
  EXPECT_EQ(response_table(study_, plan_, summary()).rows.size(), 1u);
}

// ---- floors

TEST_F(StudyPages, EveryClassOfCommunicationStandsBesideItsFloor) {
  // given
  use(kBuckets);
  measure();

  // when
  const TextBlock table = comm_table(study_, plan_, summary());

  // then: one row per point and class
  ASSERT_EQ(table.rows.size(), 1 + 3 * plan_.points.size());
  const auto of = [&](const char* column) {
    return std::vector{cell(table, 1, column), cell(table, 2, column), cell(table, 3, column)};
  };
  EXPECT_EQ(of("class"), (std::vector<std::string>{"tensor", "pipeline", "data"}));
  EXPECT_EQ(of("floor"), (std::vector<std::string>{"8 ms", "8 ms", "8 ms"}));
  EXPECT_EQ(of("wire"), (std::vector<std::string>{"4 ms", "16 ms", "8.1 ms"}));
  EXPECT_EQ(of("wire / floor"), (std::vector<std::string>{"0.50 !", "2.00 !", "1.01"}));
  EXPECT_EQ(of("bus bandwidth"), (std::vector<std::string>{"2 Gbit/s", "0.5 Gbit/s", "0.988 Gbit/s"}));
  EXPECT_EQ(of("exposed"), (std::vector<std::string>{"4 ms", "4 ms", "4 ms"}));
  EXPECT_EQ(of("wait"), (std::vector<std::string>{"2 ms", "2 ms", "2 ms"}));
}

TEST_F(StudyPages, WithoutALinkTheFloorIsUnknownAndClassesWithoutTrafficAreLeftOut) {
  use(kBuckets);
  measure();
  for (RunRow& row : rows_) {
    row.metrics.erase("data_floor_seconds");
    row.metrics["tensor_wire_bytes"] = row.metrics["pipeline_wire_bytes"] = 0;
  }
  const TextBlock table = comm_table(study_, plan_, summary());
  ASSERT_EQ(table.rows.size(), 1 + plan_.points.size());
  EXPECT_EQ(cell(table, 1, "floor") + cell(table, 1, "wire / floor"), "unknown");
}

TEST_F(StudyPages, WaitAndIdleStandBesideExposedTime) {
  use(kBuckets);
  measure();
  for (RunRow& row : rows_) row.metrics["idle_seconds"] = 0.012;
  const TextBlock table = step_table(study_, plan_, summary());
  EXPECT_EQ(cell(table, 1, "idle"), "12 ms");
  EXPECT_NE(cell(table, 1, "wait"), "");
  EXPECT_NE(cell(table, 1, "exposed"), "");
}

// ---- shared cores

TEST_F(StudyPages, ThreadsAreThoseOfAllRanksThatAreHereAndMoreThanTheCoresAreWarnedOf) {
  // given
  const auto threads_with = [&](const std::string& lines) {
    use(with(kBuckets, "ranks: 2\n", "ranks: 2\n" + lines));
    return plan_.points.at(0).threads;
  };
  if (built_with_mpi()) {
    EXPECT_EQ(threads_with("launcher: mpirun\nmpirun_arguments: [--hostfile, hosts]\n"), 0) << "on whatever nodes";
    EXPECT_EQ(threads_with("launcher: mpirun\n"), 2);
  }
  EXPECT_EQ(threads_with(""), 2);
  measure();

  // then
  EXPECT_EQ(winner_texts(study_, plan_, summary()).size(), 2u) << "two cores: one for each condition";
  for (RunRow& row : rows_) row.provenance["cores"] = "1";
  EXPECT_TRUE(winner_texts(study_, plan_, summary()).back().starts_with("2 threads compute on 1 core: "));
}

}  // namespace
}  // namespace trivet
