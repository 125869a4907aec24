#include "tools/study/runner.h"

#include <algorithm>
#include <csignal>
#include <thread>
#include <unistd.h>

#include "base/host.h"
#include "base/stop_signal.h"
#include "tests/tools/study/study_text.h"
#include "tools/study/child_process.h"
#include "tools/study/summary.h"

namespace trivet {
namespace {

// Six points in two rounds of seven runs, the first and last of which are the baseline; a clock that each run advances
// by its time; a record of the runs.
class StudyRunner : public testing::Test {
 protected:
  StudyEnd run(const RunPoint& point, RunnerOptions options = {}) {
    options.now_seconds = [this] { return clock_; };
    if (!options.stop_asked) options.stop_asked = [] { return false; };
    rows_ = read_results(results_path(study_));
    return run_study(study_, plan_, rows_, point, options);
  }
  RunPoint seconds(double of_a_run) {
    return [this, of_a_run](const Point& point, const PlannedRun& run) {
      made_.emplace_back(point.id, run.repeat);
      clock_ += of_a_run;
      RunRow row = row_of(point, run.repeat, 1);
      row.seconds = of_a_run;
      return std::optional(row);
    };
  }

  StudyFolder folder_;
  Study study_ = folder_.study();
  Plan plan_ = make_plan(study_);
  double clock_ = 1000;
  std::vector<std::pair<std::string, int64_t>> made_;
  std::vector<RunRow> rows_;
};

TEST_F(StudyRunner, RunsAllAndThenNothing) {
  EXPECT_EQ(run(seconds(1)), StudyEnd::complete);
  EXPECT_EQ(made_.size(), 14u);
  EXPECT_EQ(run(seconds(1)), StudyEnd::complete);
  EXPECT_EQ(made_.size(), 14u);
  const auto rows = read_results(results_path(study_));
  ASSERT_EQ(rows.size(), 14u);
  EXPECT_EQ(rows[6].levels,
            (std::vector<std::pair<std::string, std::string>>{{"bucket_size", "1000"}, {"size", "small"}}));
  EXPECT_EQ(rows[13].call, 1);
}

TEST_F(StudyRunner, KilledInTheMiddleGoesOnWithTheRest) {
  // given: five runs, and a sixth whose line was torn when the study died
  RunnerOptions five;
  five.stop_asked = [&] { return made_.size() == 5; };
  EXPECT_EQ(run(seconds(1), five), StudyEnd::stopped);
  const std::string path = results_path(study_);
  write_text(path, read_text(path) + to_json_line(row_of(plan_.points[5], 1, 1)).substr(0, 40));
  const auto before = made_;

  // when
  EXPECT_EQ(run(seconds(1)), StudyEnd::complete);

  // then: the remaining point, between two runs of the baseline, and the second round
  EXPECT_EQ(made_.size(), 5u + 3 + 7);
  const std::string& baseline = plan_.points[0].id;
  EXPECT_EQ(made_[5].first, baseline);
  EXPECT_EQ(made_[7].first, baseline);
  for (size_t i = before.size(); i < made_.size(); ++i)
    EXPECT_TRUE(made_[i].first == baseline || std::ranges::count(before, made_[i]) == 0);
  const auto rows = read_results(path);
  ASSERT_EQ(rows.size(), 15u);
  EXPECT_EQ(rows[4].call, 1);
  EXPECT_EQ(rows[5].call, 2);
}

TEST_F(StudyRunner, AChangedFileRunsOnlyWhatIsNew) {
  run(seconds(1));
  made_.clear();
  study_ = folder_.study(with(kGoodStudy, "levels: [1000, 2000, 3000]", "levels: [1000, 4000, 2000]"));
  plan_ = make_plan(study_);
  EXPECT_EQ(run(seconds(1)), StudyEnd::complete);
  ASSERT_EQ(made_.size(), 8u) << "two points between two runs of the baseline, in each round";
  EXPECT_EQ(made_[0].first, plan_.points[0].id);
  EXPECT_EQ(made_[3].first, plan_.points[0].id);
  const Summary summary = summarize(study_, plan_, rows_);
  for (const PointSummary& point : summary.points) EXPECT_EQ(point.ratio(study_.metric)->rounds, 2);
}

TEST_F(StudyRunner, FailuresAreRowsAndAreNotRepeatedUnlessAsked) {
  // given
  int calls = 0;
  const RunPoint failing = [&](const Point& point, const PlannedRun& run) {
    RunRow row = row_of(point, run.repeat, 1);
    ++calls;
    if (point.id != plan_.points[2].id) return std::optional(row);
    row.outcome = RunEnd::failed;
    row.reason = "out of luck";
    return std::optional(row);
  };

  // when
  EXPECT_EQ(run(failing), StudyEnd::complete);

  // then
  EXPECT_EQ(calls, 13) << "the second repeat of the failed point is spared";
  EXPECT_EQ(failures_of(rows_).at(plan_.points[2].id)->reason, "out of luck");
  EXPECT_EQ(run(failing), StudyEnd::complete);
  EXPECT_EQ(calls, 13);
  RunnerOptions retry;
  retry.retry_failed = true;
  EXPECT_EQ(run(seconds(1), retry), StudyEnd::complete);
  EXPECT_EQ(made_.size(), 6u) << "in each round between two runs of the baseline";
  EXPECT_TRUE(failures_of(rows_).empty());
}

TEST_F(StudyRunner, StartsNoRunThatWouldEndAfterTheBudget) {
  // given: points that cost the same
  study_ = folder_.study(with(kGoodStudy, "    big: {model.hidden_size: 16, model.num_layers: 4}\n", ""));
  plan_ = make_plan(study_);
  study_.budget_minutes = 1;

  // then
  EXPECT_EQ(run(seconds(25)), StudyEnd::budget);
  EXPECT_EQ(made_.size(), 2u);
  EXPECT_EQ(run(seconds(70)), StudyEnd::budget) << "each call makes one run, so that it comes to an end";
  EXPECT_EQ(made_.size(), 3u);
}

TEST_F(StudyRunner, StopsWhenAskedAndForgetsAStoppedRun) {
  RunnerOptions options;
  options.stop_asked = [&] { return made_.size() == 3; };
  EXPECT_EQ(run(seconds(1), options), StudyEnd::stopped);
  EXPECT_EQ(rows_.size(), 3u);
  EXPECT_EQ(run([](const Point&, const PlannedRun&) { return std::optional<RunRow>(); }), StudyEnd::stopped);
  EXPECT_EQ(read_results(results_path(study_)).size(), 3u);
}

TEST_F(StudyRunner, TellsItsProgress) {
  std::vector<int64_t> done;
  int rounds = 0;
  RunnerOptions options;
  options.ended = [&](const StudyProgress& progress) {
    done.push_back(progress.done);
    rounds += progress.round_ended;
    EXPECT_EQ(progress.total, 14);
    EXPECT_EQ(progress.seconds_left >= 0, true);
  };
  run(seconds(1), options);
  ASSERT_EQ(done.size(), 14u);
  EXPECT_EQ(done[4], 5);
  EXPECT_EQ(rounds, 2);
}

TEST_F(StudyRunner, RepeatsUntilTheIntervalsAreNarrow) {
  // given: runs of 1 s, but every second round is slower by 4 % in all points but the baseline
  study_ = folder_.study(with(kGoodStudy, "repeats: 2", "repeats: auto\nbudget_minutes: 100"));
  EXPECT_EQ(study_.interval_width, 0.02);
  const RunPoint noisy = [&](const Point& point, const PlannedRun& run) {
    made_.emplace_back(point.id, run.repeat);
    clock_ += 1;
    return std::optional(row_of(point, run.repeat, point.id != plan_.points[0].id && run.repeat % 2 == 0 ? 1.04 : 1));
  };

  // when
  EXPECT_EQ(run(noisy), StudyEnd::complete);

  // then: a deviation of 2 % needs 18 rounds
  const auto rounds = static_cast<int64_t>(made_.size()) / 7;
  EXPECT_EQ(made_.size(), static_cast<size_t>(rounds) * 7);
  EXPECT_GT(rounds, 10);
  EXPECT_LT(rounds, 30);
  const Summary summary = summarize(study_, plan_, rows_);
  EXPECT_EQ(summary.rounds, rounds);
  EXPECT_LE(summary.points[3].ratio(study_.metric)->width(), 0.02);
  EXPECT_EQ(run(noisy), StudyEnd::complete);
  EXPECT_EQ(static_cast<int64_t>(made_.size()), 7 * rounds) << "nothing is left to do";

  // Equal runs end after the rounds that a verdict needs; a budget ends the others.
  study_ = folder_.study(with(kGoodStudy, "repeats: 2", "repeats: auto\nbudget_minutes: 1"));
  study_.out += "/equal";
  plan_ = make_plan(study_);
  made_.clear();
  EXPECT_EQ(run(seconds(1)), StudyEnd::complete);
  EXPECT_EQ(made_.size(), 7u * kFewestRounds);
  study_.out += "/noisy";
  EXPECT_EQ(run(noisy), StudyEnd::budget);
}

TEST_F(StudyRunner, OneAtATime) {
  const RunDirectory lock = lock_study(study_);
  EXPECT_NE(message_of<IoError>([&] { lock_study(study_); }).find("another trivet study"), std::string::npos);
}

// ---- processes

class StudyChild : public testing::Test {
 protected:
  ChildEnd run(
      const std::string& script, double timeout = 0, bool (*stop_asked)() = [] { return false; }) {
    return run_child({.arguments = {"sh", "-c", script},
                      .stdout_path = dir_ / "out",
                      .stderr_path = dir_ / "err",
                      .timeout_seconds = timeout},
                     stop_asked);
  }
  // Init reaps it; until then it may be a zombie.
  static bool is_gone(pid_t process) {
    const std::string stat = read_text("/proc/" + std::to_string(process) + "/stat");
    return stat.empty() || stat.find(") Z ") != std::string::npos;
  }
  TempDir dir_;
};

TEST_F(StudyChild, EndsWithItsCodeAndItsOutput) {
  const ChildEnd end = run("echo to out; echo to err >&2; exit 64");
  EXPECT_EQ(end.how, ChildEnd::exited);
  EXPECT_EQ(end.code, 64);
  EXPECT_EQ(read_text(dir_ / "out"), "to out\n");
  EXPECT_EQ(read_text(dir_ / "err"), "to err\n");
}

TEST_F(StudyChild, EndsWithASignal) {
  const ChildEnd end = run("kill -9 $$");
  EXPECT_EQ(end.how, ChildEnd::signalled);
  EXPECT_EQ(end.code, SIGKILL);
}

TEST_F(StudyChild, IsEndedAfterItsTimeWithWhatItStarted) {
  // A shell that was killed before its first command gets more time.
  for (double seconds = 0.2; read_text(dir_ / "out").find('\n') == std::string::npos; seconds *= 4)
    ASSERT_EQ(run("sleep 1000 & echo $! ; wait", seconds).how, ChildEnd::timed_out);
  const pid_t grandchild = std::stoi(read_text(dir_ / "out"));
  while (!is_gone(grandchild)) std::this_thread::yield();  // or ctest's timeout ends the test
}

TEST_F(StudyChild, IsEndedWhenAStopIsAsked) {
  watch_stop_signals("", "");
  EXPECT_EQ(stop_signal(), 0);
  const ChildEnd end = run("kill -TERM $PPID; sleep 1000", 0, [] { return stop_signal() != 0; });
  EXPECT_EQ(end.how, ChildEnd::stopped);
  EXPECT_EQ(stop_signal(), SIGTERM);
}

// A run does not continue alongside the runs of its restarted study.
TEST_F(StudyChild, IsEndedWhereItsStudyIsKilled) {
  const pid_t study = fork();
  if (study == 0) {
    run("echo $$; exec sleep 1000");
    _exit(0);
  }
  while (read_text(dir_ / "out").find('\n') == std::string::npos) std::this_thread::yield();
  const pid_t child = std::stoi(read_text(dir_ / "out"));
  kill(study, SIGKILL);
  waitpid(study, nullptr, 0);
  while (!is_gone(child)) std::this_thread::yield();  // or ctest's timeout ends the test
}

TEST_F(StudyChild, ThatCannotBeStartedSaysWhy) {
  const ChildEnd end =
      run_child({.arguments = {dir_ / "nothing"}, .stdout_path = dir_ / "out", .stderr_path = dir_ / "err"},
                [] { return false; });
  EXPECT_EQ(end.code, 127);
  EXPECT_NE(read_text(dir_ / "err").find("cannot be started: No such file"), std::string::npos);
}

TEST_F(StudyRunner, EndsWhereItsFolderIsDeletedOrItsResultsAre) {
  for (const std::string& lost : {study_.out, results_path(study_)}) {
    const RunPoint loses = [&](const Point& point, const PlannedRun& run) {
      std::filesystem::remove_all(lost);
      return seconds(1)(point, run);
    };
    try {
      run(loses);
      FAIL() << lost;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(lost == study_.out ? "the study's out " + lost : lost + ": was removed"),
                std::string::npos)
          << error.what();
    }
    EXPECT_EQ(std::filesystem::exists(study_.out), lost != study_.out);
  }
}

TEST(StudyCommand, IsTrainOrMpirunOfIt) {
  const StudyFolder folder;
  Study study = folder.study();
  Point point = make_plan(study).points[0];
  point.sets = {"parallel.bucket_size=1"};
  EXPECT_EQ(
      shell_text(command_of(study, point, "/bin/trivet", "it's/1")),
      "/bin/trivet train " + study.base + " --ranks 2 --set parallel.bucket_size=1 --set 'train.run_dir=it'\\''s/1'");
  point.launch.launcher = Launcher::mpirun;
  point.launch.arguments = {"--bind-to", "none"};
  EXPECT_EQ(shell_text(command_of(study, point, "/bin/trivet", "r")),
            "mpirun -n 2 --bind-to none /bin/trivet train " + study.base +
                " --set parallel.bucket_size=1 --set train.run_dir=r");
}

TEST(StudyCommand, FailureIsTheProgramsOwnWord) {
  EXPECT_EQ(failure_reason("noise\n[rank 2] train.idx: torn\n----\nmpirun has exited\n---\n"),
            "[rank 2] train.idx: torn");
  EXPECT_EQ(failure_reason("first\nSegmentation fault\n-----\n"), "Segmentation fault");
  const std::string dashes(70, '-');
  EXPECT_EQ(failure_reason("a\n" + dashes + "\nNo slots\nfor it.\n" + dashes + "\n"), "No slots");
  EXPECT_EQ(failure_reason("srun: error: n1: task 3: Killed\nsrun: Terminating StepId=7.0\n"),
            "srun: error: n1: task 3: Killed");
  EXPECT_EQ(failure_reason("netlab: needs root\nbye\n"), "netlab: needs root");
  EXPECT_EQ(failure_reason(""), "");
}

}  // namespace
}  // namespace trivet
