// trivet watch and trivet report on run folders that the tests write.
#include "tools/watch/watch.h"

#include <cmath>
#include <filesystem>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <regex>
#include <unistd.h>

#include "engine/fault/flight_dump.h"
#include "engine/fault/outcome.h"
#include "engine/fault/run_lock.h"
#include "tests/support/message_of.h"
#include "tests/support/temp_dir.h"
#include "tests/support/where.h"

namespace trivet::test {
namespace {

constexpr double kBegun = 1.8e9;

class Watch : public testing::Test {
 protected:
  void event(const std::string& kind, int64_t step, const std::string& more = "") {
    log_ += fmt::format("{{\"event\": \"{}\", \"time\": {}, \"step\": {}{}}}\n", kind, time_, step, more);
  }
  void step(int64_t number, double seconds = 1, const std::string& loss = "3.5", const std::string& more = "") {
    time_ += seconds;
    log_ += fmt::format(
        "{{\"step\": {}, \"time\": {}, \"loss\": {}, \"grad_norm\": 1, \"learning_rate\": 0.001, \"step_seconds\": {}, "
        "\"tokens_per_second\": 100, \"compute_fraction\": 0.5, \"data_exposed_seconds\": {}, \"wait_fraction\": "
        "0.25{}}}\n",
        number, time_, loss, seconds, seconds / 8, more);
  }
  RunRecord run(int64_t most_bytes = INT64_MAX) {
    write_text(folder() + "/metrics.jsonl", log_);
    return RunRecord(folder(), most_bytes);
  }
  std::string folder() const { return (std::filesystem::create_directories(dir_ / name_), dir_ / name_); }
  // The value in the row `name`; "" if there is none.
  static std::string row(const RunRecord& run, const std::string& name, double now) {
    for (const auto& cells : describe_progress(run, now, 32).rows)
      if (cells[0] == name) return cells[1];
    return "";
  }
  std::string page() { return html_report(run(), time_ + 10); }

  const TempDir dir_;
  std::string name_ = "run", log_;
  double time_ = kBegun;
};

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// unslothai/unsloth PR 11297: the time left after a resume.
TEST_F(Watch, TimeLeftIsOfTheStepsSinceTheRunWasResumed) {
  event("start", 0, ", \"total_steps\": 1000");
  for (int i = 800; i <= 900; ++i) step(i, 0.5);
  event("resume", 900, ", \"total_steps\": 1000, \"checkpoint\": \"step-00000900\"");
  EXPECT_EQ(row(run(), "left", time_), "") << "no step yet since then";
  EXPECT_EQ(row(run(), "step", time_), "900 of 1000, 90.0%");
  for (int i = 901; i <= 910; ++i) step(i, 6);
  const std::string left = row(run(), "left", time_);
  EXPECT_TRUE(left.starts_with("9:00 of training: 90 steps of 6 s")) << left;
  EXPECT_EQ(row(run(), "step", time_), "910 of 1000, 91.0%");
}

TEST_F(Watch, ARunGoesOnWhileItsLockIsHeldAndACopyOfItsFolderDoesNot) {
  event("start", 0, ", \"total_steps\": 10");
  step(1), step(2);
  std::optional<RunLock> lock(folder());
  const RunRecord live = run();
  EXPECT_TRUE(live.running);
  EXPECT_TRUE(has(live.state, fmt::format("process {} on ", getpid()))) << live.state;
  EXPECT_TRUE(has(row(live, "left", time_), "until 20")) << row(live, "left", time_);
  EXPECT_EQ(row(live, "last record", time_ + 5), "0:05 ago");
  std::filesystem::copy(folder(), dir_ / "copy");
  const RunRecord copy(dir_ / "copy");
  EXPECT_FALSE(copy.running);
  EXPECT_TRUE(has(copy.state, "its lock is not held")) << copy.state;
  EXPECT_EQ(copy.of("step"), live.of("step"));
  lock.reset();
  EXPECT_TRUE(has(run().state, "no outcome.json")) << run().state;
  write_outcome(folder(), {.status = "stopped", .exit_code = 75, .what = "SIGTERM", .step = 2});
  EXPECT_TRUE(has(run().state, "stopped as asked after step 2: SIGTERM")) << run().state;
  EXPECT_FALSE(run().running);
  EXPECT_TRUE(run().stopped);
  // A newer lock means that the run was started again, however the previous attempt ended.
  lock.emplace(folder());
  EXPECT_TRUE(run().running);
  EXPECT_FALSE(run().stopped);
}

TEST_F(Watch, ARunOfAnotherHostGoesOnAsLongAsItTouchesItsLock) {
  step(1);
  run();
  const std::string lock = folder() + "/lock";
  write_text(lock, R"({"host": "elsewhere", "pid": 7, "since": "then"})");
  EXPECT_TRUE(run().running);
  EXPECT_EQ(run().state, "running: process 7 on elsewhere, since then");
  std::filesystem::last_write_time(lock, std::filesystem::file_time_type::clock::now() - std::chrono::seconds(301));
  EXPECT_FALSE(run().running);
  write_text(lock, "{");
  EXPECT_TRUE(has(run().state, "process nan on ")) << run().state;
}

TEST_F(Watch, TheVerdictOfFlightDumpsStandsBesideTheOutcome) {
  step(1);
  start_flight_folder(folder(), {{"a", 1}, {"b", 2}});
  write_outcome(folder(), {.status = "hung", .exit_code = 124, .what = "rank 1", .step = 1});
  EXPECT_FALSE(has(run().state, "trivet flight"));
  write_flight_dump(folder(), {.place = {"a", 1}, .why = "it", .main_thread = 'S'});
  EXPECT_TRUE(has(run().state, "trivet flight " + folder())) << run().state;
  write_text(folder() + "/outcome.json", "{");
  EXPECT_TRUE(has(run().state, "outcome.json")) << run().state;
}

TEST_F(Watch, ASilentRunIsToldFromOneThatEvaluates) {
  for (int i = 1; i <= 20; ++i) step(i, 2);
  const RunLock lock(folder());
  const auto silent = [&](double seconds) {
    for (const auto& cells : describe_progress(run(), time_ + seconds, 32).rows)
      if (has(cells[1], "the time of")) return cells[1];
    return std::string();
  };
  EXPECT_EQ(silent(25), "");
  EXPECT_TRUE(has(silent(100), "the time of 50 steps")) << silent(100);
  EXPECT_EQ(row(run(), "last record", time_ - 3), "0:00 ago") << "the clock of the run's host is ahead";
}

TEST_F(Watch, DamagedAndHalfWrittenLinesArePassedOver) {
  step(1), step(2);
  log_ += "\x01\x02 nothing\n";
  step(3);
  log_ += R"({"step": 4, "loss": 3.)";
  const RunRecord found = run();
  EXPECT_EQ(found.of("step"), (std::vector<double>{1, 2, 3}));
  EXPECT_EQ(row(found, "damaged", time_), "metrics.jsonl:3: is not an object");
  // Members of other types, and no members.
  log_ = "{\"event\": 7, \"step\": \"x\", \"time\": []}\n{\"step\": 1, \"loss\": \"high\"}\n{}\n[]\n";
  EXPECT_EQ(run().of("step"), std::vector<double>{1});
  EXPECT_TRUE(page().ends_with("</html>\n"));
}

TEST_F(Watch, AStepThatWasDoneAgainCountsOnce) {
  for (int i = 1; i <= 5; ++i) step(i, 1, "9");
  event("resume", 3, ", \"total_steps\": 10");
  step(4, 1, "4"), step(5, 1, "5", ", \"mfu\": 0.5");
  const RunRecord found = run();
  EXPECT_EQ(found.of("step"), (std::vector<double>{1, 2, 3, 4, 5}));
  EXPECT_EQ(found.of("loss"), (std::vector<double>{9, 9, 9, 4, 5}));
  EXPECT_EQ(found.of("mfu").size(), 5u);
  EXPECT_EQ(found.recent("mfu"), 0.5);
}

TEST_F(Watch, OddRecordsEndNothing) {
  event("start", 0, ", \"total_steps\": 1000");
  log_ += "{\"step\": 1, \"loss\": 2.5, \"compute_fraction\": 0.5}\n";  // without a time
  step(2);
  for (const char* line : {R"({"event": null, "step": 15, "seconds": 1})", R"({"event": 5})", R"({"step": null})",
                           R"({"step": "x", "loss": 1})", "[]", "{}"})
    log_ += line + std::string("\n");
  const RunRecord found = run();
  EXPECT_EQ(found.of("step"), (std::vector<double>{1, 2}));
  EXPECT_EQ(row(found, "step", time_), "2 of 1000, 0.2%");
  EXPECT_NE(found.problem, "") << "an array is no record";
  EXPECT_TRUE(page().ends_with("</html>\n"));
}

TEST_F(Watch, OfALongRunTheEndOfTheFileIsRead) {
  event("start", 0, ", \"total_steps\": 1000");
  for (int i = 1; i <= 500; ++i) step(i);
  write_text(folder() + "/config.resolved.yaml", "not: one of this version\n");
  const RunRecord found = run(10'000);
  EXPECT_LT(found.of("step").size(), 100u);
  EXPECT_EQ(found.last_step, 500);
  EXPECT_EQ(found.problem, "");
  EXPECT_EQ(row(found, "step", time_), "500 of 1000, 50.0%") << "events before it are read";
}

TEST_F(Watch, WhatIsNoRunIsRefused) {
  const auto refused = [](const std::string& path) { return message_of<Error>([&] { RunRecord{path}; }); };
  EXPECT_TRUE(has(refused(dir_ / "none"), "is not a directory, expected the folder of a run"));
  write_text(dir_ / "file", "");
  EXPECT_TRUE(has(refused(dir_ / "file"), "is not a directory"));
  EXPECT_TRUE(has(message_of<DataError>([&] { RunRecord{folder()}; }), "no metrics.jsonl"));
}

TEST_F(Watch, SavesEvaluationsAndTheLastNotesAreTold) {
  step(1);
  event("checkpoint", 1, ", \"bytes\": 1000, \"stall_seconds\": 0.1, \"seconds\": 2.5");
  event("eval", 1, ", \"validation_loss\": 3.25, \"seconds\": 1");
  for (int i = 0; i < 5; ++i) event("note", 1, fmt::format(R"(, "text": "rank {} is slow\u001b[31m")", i));
  const RunRecord found = run();
  EXPECT_EQ(row(found, "saved", time_ + 60), "step 1, 1:00 ago, in 2.50 s");
  EXPECT_EQ(row(found, "validation", time_), "3.2500, step 1");
  EXPECT_TRUE(row(found, "notes", time_).ends_with("rank 4 is slow\\x1b[31m")) << row(found, "notes", time_);
}

TEST(Sparkline, HasAHeightABinAndMarksWhatIsNoNumber) {
  EXPECT_EQ(sparkline({0, 1, 2, 3, 4, 5, 6, 7}, 8), "▁▂▃▄▅▆▇█");
  EXPECT_EQ(sparkline({0, 2, std::nan(""), 7, 6, 8}, 3), "▁!█");
  EXPECT_EQ(sparkline({5, 5}, 8), "▁▁");
  EXPECT_EQ(sparkline({1, 1, 1e308, 1e308, 2, 2}, 3), "▁!█") << "their sum is no number";
  EXPECT_EQ(sparkline({}, 8) + sparkline({1, 2}, 0), "");
}

// ---- the page

TEST_F(Watch, ThePageEscapesWhatARunSays) {
  const std::string evil = "<script>alert(1)<";
  name_ = evil;
  event("start", 0, ", \"total_steps\": 3, \"host\": \"" + evil + "\", \"banner\": \"</pre>" + evil + "\"");
  step(1), step(2, 1, "null"), step(3, 1, "3", ", \"" + evil + "\": 1");
  event("note", 2, ", \"text\": \"" + evil + "\", \"" + evil + "\": \"" + evil + "\"");
  event(evil, 3, ", \"times\": \"" + evil + "\"");
  write_text(folder() + "/config.resolved.yaml", evil);
  const std::string found = page();
  EXPECT_FALSE(has(found, "<script"));
  EXPECT_TRUE(has(found, "<h1>&lt;script&gt;alert(1)&lt;</h1>"));
  for (const char* outside : {"src=", "@import", "url(", "href="}) EXPECT_FALSE(has(found, outside)) << outside;
  EXPECT_FALSE(has(std::regex_replace(found, std::regex("http://www.w3.org/2000/svg"), ""), "http"));
}

TEST_F(Watch, ThePageOfALongRunIsNoLargerAndHidesNoSpike) {
  const auto page_of = [&](int steps) {
    log_.clear();
    for (int i = 1; i <= steps; ++i) step(i, 1, i == steps / 2 ? "null" : i == steps / 3 ? "900" : "3.5");
    for (int i = 1; i <= steps; i += 3) event("note", i, R"(, "text": "something")");
    return page();
  };
  const std::string small = page_of(1000), large = page_of(3000);
  EXPECT_TRUE(has(large, "loss, logarithmic"));
  EXPECT_TRUE(has(large, "until step 1500: no number"));
  EXPECT_TRUE(has(large, "V40.0")) << "the spike reaches the top";
  EXPECT_NEAR(static_cast<double>(large.size()), static_cast<double>(small.size()),
              0.1 * static_cast<double>(small.size()));
}

TEST_F(Watch, ThePageOfOneStepOrNoneIsWhole) {
  event("start", 0, ", \"total_steps\": 3");
  EXPECT_TRUE(page().ends_with("</html>\n"));
  EXPECT_FALSE(has(page(), "<svg"));
  step(1, 1, "null");
  for (const char* bad : {"nan,", " nan ", "inf"}) EXPECT_FALSE(has(page().substr(page().find("<svg")), bad)) << bad;
  EXPECT_TRUE(has(page(), "until step 1: no number"));
}

// Ranges for which an axis finds no round tick values.
TEST_F(Watch, ThePageIsDrawnWhateverTheNumbersAre) {
  for (const auto& [one, other] : {std::pair{"1e20", "1.0000000000000002e20"},
                                   {"5e-324", "1"},
                                   {"-1e308", "1e308"},
                                   {"-3", "-3"},
                                   {"0", "0"},
                                   {"1e-320", "1e-320"}}) {
    log_.clear();
    step(1, 1, one), step(2, 1, other), step(1'000'000'000'000'000, 1e-9, one);
    EXPECT_TRUE(page().ends_with("</html>\n")) << one;
  }
}

TEST_F(Watch, ThePageSaysWhereTheTimeWent) {
  event("start", 0, ", \"total_steps\": 4");
  for (int i = 1; i <= 4; ++i) step(i, 100, "3", R"(, "power_watts": 350)");
  event("eval", 4, R"(, "validation_loss": 3, "seconds": 61.00000001)");
  event("checkpoint", 4, R"(, "bytes": 7, "stall_seconds": 5, "seconds": 9)");
  const std::string found = page();
  EXPECT_TRUE(has(found, R"(<td>compute</td><td class="r">50.0%</td><td class="r">3:20</td>)"));
  EXPECT_TRUE(has(found, R"(<td>data_exposed</td><td class="r">12.5%</td><td class="r">0:50</td>)"));
  EXPECT_TRUE(has(found, R"(evaluations</td><td class="r">-</td><td class="r">1:01)"));
  EXPECT_TRUE(has(found, R"(waiting for saves</td><td class="r">-</td><td class="r">0:05)"));
  EXPECT_TRUE(has(found, "eval, validation_loss 3, seconds 61"));
  EXPECT_TRUE(has(found, "power_watts"));
  EXPECT_FALSE(has(found, "joules"));
}

TEST_F(Watch, SharesOnThePageAreOfTheTimeAndNotOfTheSteps) {
  step(1, 100, "3", R"(, "host_fraction": 0.8)");
  step(2, 300, "3", R"(, "host_fraction": 0.4)");
  EXPECT_TRUE(has(page(), R"(<td>host</td><td class="r">50.0%</td><td class="r">3:20</td>)"));  // 80 s and 120 s
}

// On a GPU not every step is measured: the shares are those of the steps that are.
TEST_F(Watch, ThePageSharesOutTheStepsThatWereMeasured) {
  event("start", 0, ", \"total_steps\": 2");
  step(1, 100);
  time_ += 100;
  log_ += fmt::format(
      "{{\"step\": 2, \"time\": {}, \"loss\": 3, \"step_seconds\": 100, \"compute_fraction\": null, "
      "\"data_exposed_seconds\": null, \"wait_fraction\": null}}\n",
      time_);
  const std::string found = page();
  EXPECT_TRUE(has(found, R"(<td>compute</td><td class="r">50.0%</td><td class="r">0:50</td>)"));
  EXPECT_TRUE(has(found, R"(<td>wait</td><td class="r">25.0%</td><td class="r">0:25</td>)"));
}

TEST_F(Watch, TheCommandsPrintAndWrite) {
  step(1);
  run();
  const auto trivet = [&](const std::string& arguments) {
    const int status = std::system(fmt::format("{} {} >{} 2>&1", program_path(), arguments, dir_ / "out").c_str());
    return fmt::format("{} {}", WEXITSTATUS(status), read_text(dir_ / "out"));
  };
  EXPECT_TRUE(has(trivet("watch " + folder()), "tokens/s"));
  EXPECT_EQ(trivet("report " + folder()), fmt::format("0 Report: {}/report.html\n", folder()));
  EXPECT_TRUE(read_text(folder() + "/report.html").ends_with("</html>\n"));
  EXPECT_TRUE(trivet("report " + folder() + " --out " + folder() + "/metrics.jsonl").starts_with("64 "));
  EXPECT_TRUE(trivet("watch " + (dir_ / "none")).starts_with("64 "));
}

}  // namespace
}  // namespace trivet::test
