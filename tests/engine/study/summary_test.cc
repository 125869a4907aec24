#include "engine/study/summary.h"

#include <algorithm>
#include <cmath>

#include "engine/study/report.h"
#include "tests/engine/study/study_text.h"

namespace trivet {
namespace {

// The points of kGoodStudy, in order: bucket_size 1000 2000 3000, of each small and big.
class StudySummary : public testing::Test {
 protected:
  void use(const std::string& text) {
    study_ = folder_.study(text);
    plan_ = make_plan(study_);
  }
  void add(size_t point, std::initializer_list<double> step_seconds) {
    int64_t repeat = 0;
    for (const double seconds : step_seconds) rows_.push_back(row_of(plan_.points[point], ++repeat, seconds));
  }
  Summary summary() const { return summarize(study_, plan_, rows_); }

  StudyFolder folder_;
  Study study_ = folder_.study();
  Plan plan_ = make_plan(study_);
  std::vector<RunRow> rows_;
};

TEST_F(StudySummary, RatiosAreTakenWithinARound) {
  // given: a machine that is half as fast in the second round
  add(0, {1, 2});
  add(2, {0.5, 1});

  // when
  const Summary result = summary();

  // then
  EXPECT_EQ(result.points[2].ratio->median, 0.5);
  EXPECT_EQ(result.points[2].ratio->spread(), 0);
  EXPECT_EQ(result.points[2].metrics.at("step_seconds").median, 0.75);
  EXPECT_FALSE(result.points[1].ratio);
  EXPECT_EQ(result.done, 4);
  EXPECT_EQ(result.runs, 12);
}

TEST_F(StudySummary, MainEffectsAreGeometricMeansOverTheOtherFactors) {
  // given: 2000 halves a small model's time and doubles the speed of nothing else; 3000 is missing for big
  add(0, {8}), add(2, {4}), add(4, {2});
  add(1, {16}), add(3, {4});

  // when
  const Summary result = summary();

  // then
  EXPECT_EQ(result.effects[0][0].mean, 1);
  EXPECT_EQ(result.effects[0][1].contexts, 2);
  EXPECT_DOUBLE_EQ(result.effects[0][1].mean, std::sqrt(0.5 * 0.25));
  EXPECT_EQ(result.effects[0][1].min, 0.25);
  EXPECT_EQ(result.effects[0][1].max, 0.5);
  EXPECT_EQ(result.effects[0][2].contexts, 1);
  EXPECT_EQ(result.effects[0][2].mean, 0.25);
  EXPECT_DOUBLE_EQ(result.effects[1][1].mean, std::sqrt(2 * 1));
}

TEST_F(StudySummary, TheBestIsNamedWithThoseItIsNotToldApartFrom) {
  add(0, {4, 4}), add(1, {1.0, 1.2}), add(2, {0.9, 1.5}), add(3, {1.3, 1.4});
  const Summary result = summary();
  ASSERT_EQ(result.winners.size(), 1u);
  EXPECT_EQ(result.winners[0].point, 1u);
  EXPECT_EQ(result.winners[0].rivals, (std::vector<size_t>{2}));
  const std::string text = winner_texts(study_, plan_, result).at(0);
  EXPECT_TRUE(text.starts_with("bucket_size=1000, size=big: step 1100 ms, 0.275 of the baseline.")) << text;
  EXPECT_TRUE(text.ends_with("In some round it was no better than 1 of 3 others: bucket_size=2000, size=small."))
      << text;
}

TEST_F(StudySummary, EachConditionHasABaselineAndAWinnerOfItsOwn) {
  // given: the model's size is not to be chosen
  use(kGoodStudy + "    condition: true\n");
  add(0, {1, 1}), add(2, {2, 2}), add(4, {0.5, 0.5});
  add(1, {10, 10}), add(3, {5, 5});

  // when
  const Summary result = summary();

  // then
  EXPECT_TRUE(result.points[1].baseline);
  EXPECT_EQ(result.points[3].ratio->median, 0.5);
  EXPECT_EQ(result.points[2].ratio->median, 2);
  ASSERT_EQ(result.winners.size(), 2u);
  EXPECT_EQ(result.winners[0].point, 4u);
  EXPECT_EQ(result.winners[1].point, 3u);
  EXPECT_EQ(
      winner_texts(study_, plan_, result).at(1),
      "With size=big: bucket_size=2000: step 5000 ms, 0.500 of the baseline. It was better than all others in every "
      "round.");
}

TEST_F(StudySummary, MoreIsBetterOfSomeMetrics) {
  use(kGoodStudy + "metric: tokens_per_second\n");
  for (size_t i = 0; i < 3; ++i) {
    RunRow row = row_of(plan_.points[i], 1, 1);
    row.metrics["tokens_per_second"] = i == 1 ? 300 : 100;
    rows_.push_back(row);
  }
  EXPECT_EQ(summary().winners.at(0).point, 1u);
}

TEST_F(StudySummary, LossesMustAgreeWhereNoNumbersChange) {
  // given: bucket sizes change no numbers, the model's size does
  add(0, {1, 1}), add(2, {1, 1});
  rows_.push_back(row_of(plan_.points[1], 1, 1, {9, 9, 9, 9}));
  EXPECT_EQ(summary().disagreements, 0);

  // when: one bit in the last loss of one repeat
  rows_[3].losses[3] = std::nextafter(1., 2.);

  // then
  const Summary result = summary();
  EXPECT_EQ(result.disagreements, 1);
  EXPECT_EQ(result.points[2].disagreement,
            "repeat 2: the loss of step 4 is 1.0000000000000002, but 1 (relative difference 2.2e-16) in repeat 1 of "
            "bucket_size=1000, size=small");
  study_.tolerance = 1e-15;
  EXPECT_EQ(summary().disagreements, 0);
  study_.tolerance = 0;
  study_.check_agreement = false;
  EXPECT_EQ(summary().disagreements, 0);
}

TEST_F(StudySummary, ALossThatIsAWholeOtherCurveIsCaughtUnderATolerance) {
  add(0, {1});
  rows_.push_back(row_of(plan_.points[2], 1, 1, {4, 3, 2.1, 1}));
  study_.tolerance = 0.01;
  EXPECT_NE(summary().points[2].disagreement.find("the loss of step 3 is 2.1, but 2"), std::string::npos);
}

// What overlap hides and costs, against the points without a link and without overlap.
TEST_F(StudySummary, OverlapIsComparedWithTheSameRunWithoutItAndWithoutALink) {
  // given: links of nothing, 1 and 2 Gbit/s; the last one adds next to nothing
  use(R"(name: overlap
base: run.yaml
ranks: 2
steps: 4
warmup_steps: 1
repeats: 2
set: {model.vocab_size: 100}
factors:
  - name: link
    levels: {none: {}, slow: {comm.link_gbps: 1, comm.data_link_latency_us: 5}, fast: {comm.data_link_gbps: 2}}
  - name: overlap
    levels: {"off": {}, "on": {overlap.overlap_grad_reduce: true, overlap.collectives_in_flight: 2}}
)");
  ASSERT_EQ(plan_.points.size(), 6u);
  enum : size_t { none_off, none_on, slow_off, slow_on, fast_off, fast_on };
  EXPECT_EQ(plan_.points[slow_on].without_link, plan_.points[none_on].id);
  EXPECT_EQ(plan_.points[slow_on].without_overlap, plan_.points[slow_off].id);
  EXPECT_EQ(plan_.points[slow_on].without_both, plan_.points[none_off].id);
  EXPECT_EQ(plan_.points[slow_off].without_overlap, plan_.points[slow_off].id);
  EXPECT_EQ(plan_.points[none_on].without_link, plan_.points[none_on].id);
  add(none_off, {10, 20}), add(slow_off, {14, 28}), add(fast_off, {10.25, 20.25});
  add(none_on, {10, 20}), add(slow_on, {11, 24}), add(fast_on, {10.1, 20.1});
  for (RunRow& row : rows_) row.metrics["compute_seconds"] = row.metrics["step_seconds"] / 2;

  // when
  const Summary result = summary();

  // then
  EXPECT_EQ(result.points[slow_on].metrics.at("hidden_fraction").max, 0.75);
  EXPECT_EQ(result.points[slow_on].metrics.at("hidden_fraction").min, 0.5);
  EXPECT_EQ(result.points[slow_on].metrics.at("compute_inflation").max, 12. / 14);
  EXPECT_EQ(result.points[none_on].metrics.at("compute_inflation").median, 1);
  EXPECT_FALSE(result.points[fast_on].metrics.contains("hidden_fraction")) << "it adds too little to be measured";
  for (const size_t point : {none_off, slow_off, none_on})
    EXPECT_FALSE(result.points[point].metrics.contains("hidden_fraction")) << point;
  const TextBlock table = result_table(study_, plan_, result);
  const auto column = static_cast<size_t>(std::ranges::find(table.rows[0], "hidden") - table.rows[0].begin());
  EXPECT_EQ(table.rows[1 + slow_on].at(column), "62.5% (50.0% to 75.0%)");
  EXPECT_EQ(table.rows[1 + slow_off].at(column), "");
  EXPECT_NE(markdown_report(study_, plan_, result).find("what overlap takes away again"), std::string::npos);
}

TEST_F(StudySummary, ResultsOfOtherPointsAreCountedAndLeftOut) {
  add(0, {1, 2});
  rows_[0].point = "someone else";
  const Summary result = summary();
  EXPECT_EQ(result.other_rows, 1);
  EXPECT_EQ(result.done, 1);
}

// ---- what is written

TEST_F(StudySummary, CsvQuotesWhatNeedsIt) {
  // given
  use(with(kGoodStudy, "small: {}", "'a, \"b\"': {}"));
  add(0, {0.1, 0.3});
  rows_.push_back(row_of(plan_.points[1], 1, 1));
  rows_.back().outcome = RunEnd::failed;
  rows_.back().reason = "two\nlines";

  // when
  const std::string csv = csv_report(study_, plan_, summary());

  // then
  EXPECT_TRUE(
      csv.starts_with("point,bucket_size,size,ranks,launcher,runs_done,status,reason,ratio_median,ratio_min,"
                      "ratio_max,spread,memory_bytes,agrees,loss_median,loss_min,loss_max,step_seconds_median,"
                      "step_seconds_min,step_seconds_max\r\n"))
      << csv;
  EXPECT_NE(csv.find(",1000,\"a, \"\"b\"\"\",2,threads,2,done,,1,1,1,0.9999999999999999,"), std::string::npos) << csv;
  EXPECT_NE(csv.find(",1000,big,2,threads,0,failed,\"two\nlines\","), std::string::npos) << csv;
}

TEST_F(StudySummary, MarkdownCellsAreNoMarkup) {
  use(with(kGoodStudy, "small: {}", "'a|b *c*': {}"));
  add(0, {0.5, 0.5});
  const std::string text = markdown_report(study_, plan_, summary());
  EXPECT_NE(text.find("| 1000 | a\\|b \\*c\\* | 2/2 | 500 ms | 0.0% | baseline |"), std::string::npos) << text;
}

// The text of a page without its tags and entities: what is left of '<' or '&' in it was not escaped.
std::string unescaped_rest(const std::string& html, const std::string& evil) {
  std::string found;
  for (size_t at = html.find(evil); at != std::string::npos; at = html.find(evil, at + 1)) found += html.substr(at, 60);
  return found;
}

TEST_F(StudySummary, PagesAndPicturesEscapeEverything) {
  // given: every text that a file or a program may choose
  const std::string evil = "<script>alert('&\")</script>";
  std::string text = with(kGoodStudy, "small: {}", "\"<script>alert('&\\\")</script>\": {}");
  text = with(text, "name: size", "name: \"<script>alert('&\\\")</script>\"");
  use(text);
  ASSERT_EQ(study_.factors[1].name, evil);
  add(0, {0.5, 0.6}), add(2, {0.7, 0.7});
  for (RunRow& row : rows_)
    row.command = row.machine = row.folder = evil, row.metrics[evil] = 1, row.metrics["data_exposed_seconds"] = 0.5;
  rows_.push_back(row_of(plan_.points[4], 1, 1));
  rows_.back().outcome = RunEnd::failed;
  rows_.back().reason = evil;
  rows_[3].losses[0] = 7;
  plan_.dropped.push_back({{0, 0}, evil});
  study_.path = study_.base = evil;

  // when
  const Summary result = summary();
  const std::string page = html_report(study_, plan_, result, rows_);
  const std::string picture = ratio_picture(study_, plan_, result);

  // then
  EXPECT_EQ(result.disagreements, 1);
  for (const std::string& written : {page, picture}) {
    EXPECT_EQ(unescaped_rest(written, "<script"), "");
    EXPECT_EQ(unescaped_rest(written, "alert('"), "");
    EXPECT_EQ(unescaped_rest(written, "&\""), "");
    EXPECT_NE(written.find("&lt;script&gt;alert(&#39;&amp;&quot;)"), std::string::npos);
  }
  EXPECT_EQ(page.find("http://", page.find("<body>")), page.find("http://www.w3.org/2000/svg"));
  EXPECT_EQ(page.find("src="), std::string::npos) << "nothing is loaded from elsewhere";
  EXPECT_EQ(page.find("@import"), std::string::npos);
}

TEST_F(StudySummary, ReportsOfAStudyThatHasNotBegunAreWhole) {
  const std::string page = html_report(study_, plan_, summary(), rows_);
  EXPECT_TRUE(page.ends_with("</html>\n"));
  EXPECT_NE(page.find("0 of 12 runs done"), std::string::npos);
  EXPECT_NE(ratio_picture(study_, plan_, summary()).find("not run"), std::string::npos);
  EXPECT_EQ(exposed_plot(study_, plan_, summary()), "");
}

TEST_F(StudySummary, ExposedTimeIsTheWiresAndWaitingStandsBesideIt) {
  // given
  add(0, {1}), add(2, {1});
  rows_[0].metrics["data_exposed_seconds"] = 0.25;
  rows_[1].metrics["data_exposed_seconds"] = 0.75;
  rows_[1].metrics["data_wait_seconds"] = 0.125;
  rows_[0].metrics["tensor_exposed_seconds"] = 0;

  // when
  const Summary result = summary();
  const TextBlock table = result_table(study_, plan_, result);
  const std::string picture = exposed_plot(study_, plan_, result);

  // then
  EXPECT_EQ(result.points[0].exposed("data"), 0.25);
  EXPECT_EQ(result.points[2].exposed("data"), 0.75);
  const auto column = std::ranges::find(table.rows[0], "data") - table.rows[0].begin();
  EXPECT_EQ(table.rows[1 + 2][static_cast<size_t>(column)], "75.0%");
  EXPECT_EQ(std::ranges::count(table.rows[0], "tensor"), 0) << "nothing of it anywhere";
  EXPECT_NE(picture.find("waiting for a peer: 125 ms, 12.5%"), std::string::npos) << picture;
}

TEST(StudyText, MetricsHaveUnits) {
  EXPECT_EQ(metric_text("step_seconds", 0.0125), "12.5 ms");
  EXPECT_EQ(metric_text("wait_fraction", 0.125), "12.5%");
  EXPECT_EQ(metric_text("tokens_per_second", 12345.6), "12,346");
  EXPECT_EQ(metric_text("loss", 3.25), "3.25");
}

}  // namespace
}  // namespace trivet
