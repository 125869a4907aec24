// Launchers, their settings and the environment as levels of a study.
#include "tools/study/launch.h"

#include <cstdlib>
#include <filesystem>
#include <fmt/format.h>
#include <unistd.h>

#include "engine/config/load.h"
#include "parallel/comm/world.h"
#include "tests/support/where.h"
#include "tests/tools/study/study_text.h"
#include "tools/study/child_process.h"
#include "tools/study/runner.h"

namespace trivet {
namespace {

const std::string kLaunches = R"(name: launches
base: run.yaml
ranks: 2
steps: 4
warmup_steps: 1
repeats: 1
trace: false
set: {env.EVERYWHERE: "a b", netlab.delay_us: 50}
factors:
  - key: launcher
    levels: [threads, mpirun, srun, netlab]
  - key: netlab.gbps
    levels: [1, 2.5]
  - key: mpirun_arguments
    levels: {core: [--bind-to, core], none: []}
  - name: environment
    levels:
      unset: {}
      set: {env.SOMETIMES: 1}
)";

Study launches() { return parse_study(kLaunches, "study.yaml"); }
std::string command_text(const Launch& launch) { return shell_text(launch_command(launch, {"trivet", "train"})); }

// Sets PATH to only these folders until the end of the scope.
class OnlyPath {
 public:
  explicit OnlyPath(const std::string& folders) : before_(std::getenv("PATH")) { setenv("PATH", folders.c_str(), 1); }
  ~OnlyPath() { setenv("PATH", before_.c_str(), 1); }

 private:
  const std::string before_;
};

void write_script(const std::string& path, const std::string& text) {
  write_text(path, "#!/bin/sh\n" + text);
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
}

TEST(Launch, CommandsAreThoseOfTheLauncher) {
  const Study study = launches();
  EXPECT_EQ(command_text(launch_of(study, {0, 0, 0, 0})), "env -u SOMETIMES 'EVERYWHERE=a b' trivet train --ranks 2");
  EXPECT_EQ(
      command_text(launch_of(study, {1, 0, 0, 1})),
      "env 'EVERYWHERE=a b' SOMETIMES=1 mpirun -n 2 --bind-to core env 'EVERYWHERE=a b' SOMETIMES=1 trivet train");
  EXPECT_EQ(command_text(launch_of(study, {2, 0, 0, 1})),
            "env 'EVERYWHERE=a b' SOMETIMES=1 srun -n 2 --mpi=pmix --kill-on-bad-exit=1 env 'EVERYWHERE=a b' "
            "SOMETIMES=1 trivet train");
  Launch netlab = launch_of(study, {3, 1, 0, 0});
  netlab.environment.clear();
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(source_path(""));
  EXPECT_EQ(command_text(netlab), "launch/netlab/netlab.sh --ranks 2 --gbps 2.500000 --delay-us 50 -- trivet train");
  std::filesystem::current_path(before);
}

TEST(Launch, WhatTheLauncherDoesNotLookAtMakesNoOtherRun) {
  const Study study = launches();
  const auto text = [&](const Choice& choice) { return launch_text(launch_of(study, choice)); };
  EXPECT_EQ(text({0, 0, 0, 0}), text({0, 1, 1, 0})) << "threads have neither cables nor mpirun's arguments";
  EXPECT_NE(text({3, 0, 0, 0}), text({3, 1, 0, 0}));
  EXPECT_EQ(text({3, 0, 0, 0}), text({3, 0, 1, 0}));
  EXPECT_NE(text({1, 0, 0, 0}), text({1, 0, 1, 0}));
  EXPECT_NE(text({0, 0, 0, 0}), text({0, 0, 0, 1}));
}

TEST(Launch, FilesWithValuesThatNoLauncherTakesAreRefused) {
  const auto problem_of = [](const std::string& set) {
    return message_of([&] { parse_study(kGoodStudy + set + "\n", "study.yaml"); });
  };
  EXPECT_EQ(problem_of("launcher: ssh"),
            "study.yaml:14: launcher: found \"ssh\", expected one of threads, mpirun, srun, netlab");
  EXPECT_EQ(problem_of("set: {netlab.delay_us: 0.5}"),
            "study.yaml:14: set.netlab.delay_us: found \"0.5\", expected an integer from 0 to 1000000");
  EXPECT_EQ(problem_of("set: {netlab.gbp: 4}"),
            "study.yaml:14: set.netlab.gbp: unknown key - did you mean netlab.gbps?");
  EXPECT_EQ(problem_of("set: {env.2ND: 4}"),
            "study.yaml:14: set.env.2ND: found \"env.2ND\", expected the name of an environment variable: letters, "
            "digits and _, such as env.NCCL_ALGO");
  EXPECT_NE(problem_of("set: {env.OMPI_COMM_WORLD_SIZE: 4}").find("the launcher sets this one for each rank"),
            std::string::npos);
  EXPECT_EQ(problem_of("set: {netlab.gbps: 1}"),
            "study.yaml: netlab.gbps: has no effect: no point has launcher netlab");
  EXPECT_EQ(problem_of("srun_arguments: [--nodes=2]"),
            "study.yaml: srun_arguments: has no effect: no point has launcher srun");
}

TEST(Launch, WhatThisMachineLacksDropsThePoint) {
  // given: a machine whose PATH contains a single program
  const StudyFolder folder;
  write_script(folder / "mpirun", "");
  const OnlyPath path(folder / "");
  const Study study = folder.study(kLaunches);

  // when
  const Plan plan = make_plan(study);

  // then
  const auto reason = [&](const Choice& choice) {
    const auto found = std::ranges::find(plan.dropped, choice, &DroppedPoint::choice);
    return found == plan.dropped.end() ? "" : found->reason;
  };
  if (!built_with_mpi()) {
    EXPECT_EQ(reason({1, 0, 0, 0}), "launcher mpirun starts MPI ranks, and this program is built without MPI");
    return;
  }
  EXPECT_EQ(reason({1, 0, 0, 0}), "");
  EXPECT_EQ(reason({2, 0, 0, 0}), "launcher srun: there is no srun in PATH; install it");
  EXPECT_EQ(reason({3, 0, 0, 0}).find("needs root") == std::string::npos, ::geteuid() == 0);
  const Plan without_rate = make_plan(folder.study(kGoodStudy + "launcher: netlab\n"));
  ASSERT_EQ(without_rate.points.size(), 0u);
  EXPECT_NE(without_rate.dropped[0].reason.find("netlab.gbps is required"), std::string::npos);
}

TEST(Launch, VariablesOfNcclAreRefusedWithoutGpus) {
  const StudyFolder folder;
  const std::string cpu = "set: {device.kind: cpu}\nfactors:\n  - key: env.NCCL_ALGO\n    levels: [Ring, Tree]\n";
  const Plan plan = make_plan(folder.study(with(kGoodStudy, "factors:\n", cpu)));
  EXPECT_EQ(plan.points.size(), 0u);
  ASSERT_FALSE(plan.dropped.empty());
  const std::string& reason = plan.dropped[0].reason;
  EXPECT_TRUE(reason.starts_with("env.NCCL_ALGO only affects ranks on GPUs, and ")) << reason;
}

// ---- runs of a program that records how it was started

constexpr const char* kRecorder = R"(for last; do :; done
dir=${last#train.run_dir=}
echo "$@" >$dir/arguments
echo "$EVERYWHERE,${SOMETIMES-unset}" >$dir/environment
for step in 1 2 3 4; do echo "{\"step\":$step,\"loss\":1.5,\"step_seconds\":0.25}"; done >$dir/metrics.jsonl
)";
// In place of srun: starts one rank, and records its own arguments.
constexpr const char* kSrun = R"(printf '%s ' "$@" >"$(dirname "$0")/srun.arguments"
while [ "${1#-}" != "$1" ]; do [ "$1" = -n ] && shift; shift; done
exec "$@"
)";

class LaunchedRun : public testing::Test {
 protected:
  LaunchedRun() { write_script(folder_ / "program", kRecorder); }
  std::optional<RunRow> run(const Choice& choice, double memory_bytes = 1000) {
    Point point;
    point.choice = choice;
    point.id = "0123456789abcdef";
    point.launch = launch_of(study_, choice);
    point.memory_bytes = static_cast<int64_t>(memory_bytes);
    point.steps = study_.steps;
    make_folder(study_.out);
    return process_runner(study_, folder_ / "program", [] { return false; })(point, {});
  }
  std::string file(const std::string& name) { return read_text(study_.out + "/runs/0123456789abcdef-1/" + name); }

  StudyFolder folder_;
  Study study_ = folder_.study(kLaunches);
};

TEST_F(LaunchedRun, HasTheEnvironmentOfItsLevelsAndNoOther) {
  setenv("SOMETIMES", "of the shell", 1);
  EXPECT_EQ(run({0, 0, 0, 0})->reason, "");
  EXPECT_EQ(file("environment"), "a b,unset\n");
  EXPECT_EQ(run({0, 0, 0, 1})->reason, "");
  EXPECT_EQ(file("environment"), "a b,1\n");
  unsetenv("SOMETIMES");
}

TEST_F(LaunchedRun, OfSrunHasItsRanksAndArguments) {
  write_script(folder_ / "srun", kSrun);
  const OnlyPath path(folder_ / "" + ":" + std::getenv("PATH"));
  const std::optional<RunRow> row = run({2, 0, 0, 1});
  ASSERT_EQ(row->reason, "");
  EXPECT_TRUE(read_text(folder_ / "srun.arguments").starts_with("-n 2 --mpi=pmix --kill-on-bad-exit=1 env "));
  EXPECT_EQ(file("environment"), "a b,1\n");
  EXPECT_TRUE(file("arguments").starts_with("train " + study_.base + " --set train.run_dir=")) << file("arguments");
  EXPECT_FALSE(row->metrics.contains("peak_rss_bytes")) << "the ranks are no children of the study";
}

TEST_F(LaunchedRun, TellsItsMemory) {
  const std::optional<RunRow> row = run({0, 0, 0, 0}, 4096);
  EXPECT_EQ(row->metrics.at("memory_bytes"), 4096);
  EXPECT_GT(row->metrics.at("peak_rss_bytes"), 0);
}

TEST_F(LaunchedRun, ThatIsKilledSaysBySignalAndStep) {
  write_script(folder_ / "program", std::string(kRecorder) + "sed -i 3,4d $dir/metrics.jsonl\nkill -9 $$\n");
  const std::optional<RunRow> row = run({0, 0, 0, 0});
  EXPECT_EQ(row->outcome, RunEnd::failed);
  EXPECT_EQ(
      row->reason,
      "killed by signal 9 (Killed) after 2 of 4 steps: by hand, or by the kernel for lack of memory (dmesg tells)");
  EXPECT_TRUE(row->metrics.empty());
}

TEST_F(LaunchedRun, ThatSaysNothingHasAReasonToo) {
  write_script(folder_ / "program", "exit 3\n");
  EXPECT_EQ(run({0, 0, 0, 0})->reason, "exit code 3 after 0 of 4 steps, and no message");
}

}  // namespace
}  // namespace trivet
