// Faults in whole runs on thread ranks: injected faults, their consequences, and what they leave in the run folder.
#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <regex>
#include <sstream>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/json.h"
#include "engine/config/load.h"
#include "engine/data/indexed_dataset.h"
#include "engine/fault/flight_dump.h"
#include "engine/fault/outcome.h"
#include "engine/fault/run_guard.h"
#include "engine/metrics/time_table.h"
#include "engine/train/run.h"
#include "kernels/base/arena.h"
#include "kernels/cpu_isa.h"
#include "parallel/comm/nccl_comm.h"
#include "parallel/comm/world.h"
#include "tests/engine/config/config_text.h"
#include "tests/support/temp_dir.h"
#include "tests/support/training.h"

namespace trivet {
namespace {

// A folder with a dataset, for runs of a tiny model.
class RunFolder {
 public:
  RunFolder() {
    IndexedDatasetWriter writer(dir_ / "corpus", TokenType::u16);
    for (int document = 0; document < 20; ++document) {
      std::vector<int32_t> tokens;
      for (int i = 0; i < 60; ++i) tokens.push_back((document + i * i) % 100);
      writer.add_document(tokens);
    }
    writer.finish();
  }
  // Returns the exit code; `error` is what the program would print.
  int run(int ranks, std::vector<std::string> sets, const std::vector<std::string>& faults) {
    const std::string yaml =
        "model: {num_layers: 2, hidden_size: 16, num_attention_heads: 4, seq_length: 16, "
        "vocab_size: 100}\nbatch: {global_batch_size: 8}\ndata: {path: " +
        (dir_ / "corpus") + ", split: \"100,0,0\"}\n" +
        "device: {kind: cpu, threads_per_rank: 1, peak_tflops: 1}\ntrain: {train_iters: 4, run_dir: " + run_dir() +
        "}\n";
    std::ostringstream out;
    error.clear();
    try {
      const LoadedConfig loaded = parse_config(yaml, "run.yaml", sets);
      RunOptions options;
      options.faults = parse_faults(faults);
      run_thread_ranks(ranks, [&](Communicator& world) { run_training(loaded, options, world, out); });
    } catch (const Error& e) {
      error = e.what();
      output = out.str();
      return e.exit_code();
    }
    output = out.str();
    return 0;
  }
  std::string run_dir() const { return dir_ / "run"; }
  nlohmann::json outcome() const { return parse_json(read_text(run_dir() + "/outcome.json")); }
  std::string error, output;

 private:
  TempDir dir_;
};

void expect_match(const std::string& text, const std::string& pattern) {
  EXPECT_TRUE(std::regex_search(text, std::regex(pattern))) << pattern << "\nin\n" << text;
}

// ---- the fault table, as far as thread ranks can show it

bool nccl_is_emulated() {
  return built_with_nccl() && cuda_device_count() >= 4 && create_cuda_device(0)->name() == "emulated GPU";
}

// Injects a fault into the emulated NCCL (tests/emulation/nccl.cc) for as long as it exists; null: none.
class EmulatedNcclFault {
 public:
  explicit EmulatedNcclFault(const char* fault) {
    if (fault) setenv("TRIVET_EMULATED_NCCL_FAULT", fault, 1);
  }
  ~EmulatedNcclFault() { unsetenv("TRIVET_EMULATED_NCCL_FAULT"); }
  EmulatedNcclFault(const EmulatedNcclFault&) = delete;
};

const std::vector<std::string> kOverNccl = {"device.kind=cuda", "comm.backend=nccl", "batch.global_batch_size=2"};

struct Row {
  const char* name;
  std::vector<std::string> faults;
  int exit_code;
  const char* error;    // a pattern
  int root_cause = -2;  // -2: any
  std::vector<std::string> sets = {};
  const char* nccl_fault = nullptr;  // of the emulated NCCL
};
void PrintTo(const Row& row, std::ostream* out) { *out << row.name; }

std::vector<std::string> over_nccl(const std::vector<std::string>& more = {}) {
  std::vector<std::string> sets = kOverNccl;
  sets.insert(sets.end(), more.begin(), more.end());
  return sets;
}

class FaultTable : public testing::TestWithParam<Row> {};

TEST_P(FaultTable, EndsTheRunWithItsCodeAndItsName) {
  const Row& row = GetParam();
  if (!row.sets.empty() && row.sets.front() == kOverNccl.front() && !nccl_is_emulated())
    GTEST_SKIP() << "of the emulated NCCL: the real one does not tell of calls that do not fit";
  // given
  RunFolder folder;
  const EmulatedNcclFault nccl_fault(row.nccl_fault);
  // The watchdog's limit exceeds ctest's own, so the watchdog does not end the run.
  std::vector<std::string> sets = {"parallel.tensor_model_parallel_size=2", "comm.timeout_s=3600"};
  sets.insert(sets.end(), row.sets.begin(), row.sets.end());
  // when
  const int code = folder.run(4, sets, row.faults);
  // then
  EXPECT_EQ(code, row.exit_code);
  expect_match(folder.error, row.error);
  const nlohmann::json outcome = folder.outcome();
  EXPECT_EQ(outcome.at("exit_code"), code);
  EXPECT_EQ(outcome.at("status"), code == 0 ? "done" : code == 124 ? "hung" : "failed");
  if (row.root_cause != -2) {
    EXPECT_EQ(outcome.at("root_cause_rank"), row.root_cause) << outcome;
  }
  if (code != 0) {
    expect_match(outcome.at("what"), row.error);
    for (const auto& dump : read_flight_folder(folder.run_dir()).dumps) EXPECT_TRUE(dump) << "each rank has dumped";
  }
  EXPECT_FALSE(std::filesystem::exists(folder.run_dir() + "/lock"));
}

INSTANTIATE_TEST_SUITE_P(
    Rows, FaultTable,
    testing::Values(
        Row{"none", {}, 0, "", -1}, Row{"error", {"throw:2:3:forward"}, 70, "step 3: an injected fault", 2},
        Row{"skipped_call", {"skip:1:2:forward"}, 70, "group 'tensor'.*rank 0 calls .* rank 1 calls", -1},
        Row{"additional_call", {"extra:last:2"}, 70, "rank [13] calls all_reduce.sum. of 1 int64|of 1 int64", -1},
        Row{"wrong_size", {"wrong_size:3:2"}, 70, "of [0-9]+ fp32, rank 3 calls .* of [0-9]+ fp32", -1},
        Row{"wrong_type", {"wrong_type:0:2"}, 70, "rank 0 calls .* bf16, rank [12] calls .* fp32", -1},
        Row{"no_memory", {"oom:1:0"}, 64, "out of memory: weights need .*micro_batch_size", 1},
        Row{"not_finite", {"nan:3:2:optimizer"}, 93, "gradients of .* on rank 3 .*samples 8 to 15", 3},
        Row{"not_finite_before_the_sums", {"nan:2:2"}, 93, "gradients of .* on rank 2 .*before their sum over", 2},
        Row{"loss_not_finite", {"nan:1:2:forward"}, 93, "loss of rank 1 .*replica .ranks 0, 1.*unknown rank", -1},
        Row{"other_bits",
            {"bitflip:1:2"},
            93,
            "ranks 1, 3, and no majority of them agrees",
            -2,
            {"train.check_weight_hash_across_dp_replicas_interval=1"}},
        // docs/checkpoints.md: before each save as well, whatever the interval.
        Row{"other_bits_before_a_save",
            {"bitflip:1:2"},
            93,
            "ranks 1, 3, and no majority of them agrees",
            -2,
            {"train.check_weight_hash_across_dp_replicas_interval=100", "checkpoint.save_interval=4"}},
        Row{"error_on_gpus", {"throw:2:2:forward"}, 70, "step 2: an injected fault", 2, over_nccl()},
        Row{"error_in_a_pipeline_on_gpus",
            {"throw:3:2:backward"},
            70,
            "step 2: an injected fault",
            3,
            over_nccl({"parallel.pipeline_model_parallel_size=2"})},
        Row{"no_memory_on_gpus", {"oom:1:0"}, 64, "out of memory: weights need .*micro_batch_size", 1, over_nccl()},
        Row{"not_finite_on_gpus", {"nan:3:1:optimizer"}, 93, "gradients of .* on rank 3", 3, over_nccl()},
        Row{"skipped_call_on_gpus",
            {"skip:1:1:forward"},
            70,
            "group 'tensor', its rank [01] of 2: .*rank 0 calls [a-z_]* of [0-9]+ .*rank 1 calls .*; this rank is in "
            "call [0-9]+ of group 'tensor', ",
            -2,
            over_nccl()},
        Row{"wrong_size_on_gpus",
            {"wrong_size:3:1"},
            70,
            "group '[a-z]*', its rank [01] of 2: .*rank 1 calls [a-z_]* of [0-9]+ ",
            -2,
            over_nccl()},
        Row{"connection_breaks_on_gpus",
            {},
            70,
            "group 'tensor', its rank 1 of 2: remote error .*; this rank is in call [0-9]+ of group '[a-z_-]+', ",
            -2,
            over_nccl(),
            "tensor:1:15"}),
    [](const auto& info) { return info.param.name; });

// ---- runs that cannot start as configured

// The mistake is the same on all ranks, so the error names none of them.
TEST(RunFolder, AFileInItsPlaceIsAMistakeInTheConfiguration) {
  RunFolder folder;
  const std::string file = std::filesystem::path(folder.run_dir()).parent_path() / "corpus.idx";
  for (const std::string& path : {file, file + "/below"}) {
    EXPECT_EQ(folder.run(3, {"batch.global_batch_size=6", "train.run_dir=" + path}, {}), 64);
    EXPECT_EQ(folder.error, "train.run_dir: " + path + ": " + file + " is a file, expected a folder, or a new name");
  }
  EXPECT_EQ(folder.run(2, {"data.path=/nowhere"}, {}), 64);
  EXPECT_TRUE(folder.error.starts_with("data.path: there is no dataset /nowhere")) << folder.error;
}

// Settings for many ranks that have no effect on one are left out, and the run says so.
TEST(RunFolder, SaysWhatItLeavesOut) {
  RunFolder folder;
  const std::vector<std::string> sets = {"parallel.data_parallel_sharding_strategy=optim",
                                         "overlap.overlap_param_gather=true"};
  EXPECT_EQ(folder.run(1, sets, {}), 0) << folder.error;
  for (const char* part : {"sharding_strategy: optim has no effect: the data parallel size is 1",
                           "overlap_param_gather: true has no effect"})
    EXPECT_NE(folder.output.find(part), std::string::npos) << folder.output;
  EXPECT_NE(read_text(folder.run_dir() + "/config.resolved.yaml").find("sharding_strategy: no_shard"),
            std::string::npos);
}

TEST(Straggler, IsNamedWithWhereItLosesItsTime) {
  RunFolder folder;
  // Far slower than a rank that merely waits for a core. With a sanitizer, steps are long even without the fault.
  const std::string fault = test::kMatrixStride == 1 ? "slow=400:1:2" : "slow=40:1:2";
  const int code = folder.run(
      3, {"batch.global_batch_size=12", "train.straggler_interval=4", "train.straggler_factor=1.5"}, {fault});
  EXPECT_EQ(code, 0) << folder.error;
  expect_match(folder.output, "rank 1 is slow: its own work takes .* loses most in outside of operations");
  EXPECT_EQ(folder.output.find("rank 0 is slow"), std::string::npos);
}

TEST(Straggler, IsComparedWithTheRanksOfItsStage) {
  const auto ms = [](int64_t compute, int64_t host) {
    StepStats stats;
    stats.compute = compute * 1'000'000;
    stats.host = host * 1'000'000;
    return stats;
  };
  // The second stage has four times the work by design.
  const std::vector<StepStats> work = {ms(10, 1), ms(11, 1), ms(40, 1), ms(41, 60)};
  const auto lines = find_stragglers(work, {0, 0, 1, 1}, 1, 2);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0],
            "rank 3 is slow: its own work takes 101.0 ms per step, its peers' 41.0 ms; it loses most in data loading "
            "(host)");
  EXPECT_TRUE(find_stragglers({ms(1, 1)}, {0}, 1, 2).empty());
  EXPECT_TRUE(find_stragglers(work, {0, 0, 1, 1}, 1000, 2).empty()) << "less than a millisecond a step";
}

TEST(Straggler, OfASlowWireIsTold) {
  const size_t pipeline = class_of(comm_of("pipeline"));
  const auto ms = [&](int64_t compute, int64_t wire, int64_t wait) {
    StepStats stats;
    stats.compute = compute * 1'000'000;
    stats.exposed[pipeline] = wire * 1'000'000;
    stats.wait[0] = wait * 1'000'000;
    return stats;
  };
  const std::vector<int> stages = {0, 0, 1, 1};
  const auto lines = find_stragglers({ms(20, 1, 40), ms(20, 1, 40), ms(20, 41, 0), ms(20, 11, 30)}, stages, 1, 2);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(
      lines[0],
      "rank 2 is slow: its exposed communication takes 41.0 ms per step, its peers' 11.0 ms; it loses most in the "
      "wire (pipeline)");
  // NCCL counts rank 3's wait for rank 2, which computes for longer, as wire time.
  const auto computes = find_stragglers({ms(20, 41, 0), ms(20, 41, 0), ms(60, 1, 0), ms(20, 41, 0)}, stages, 1, 2);
  ASSERT_EQ(computes.size(), 1u);
  expect_match(computes[0], "rank 2 is slow: its own work takes 60.0 ms .* most in compute");
}

TEST(Straggler, OfASlowDiskIsTold) {
  constexpr int64_t kSecond = 1'000'000'000;
  const auto lines = find_slow_disks({5 * kSecond, 10 * kSecond, 41 * kSecond, 9 * kSecond}, 2);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(
      lines[0],
      "rank 2 is slow: it wrote its part of the checkpoint in 41.0 s, its peers in 9.0 s; it loses most in the disk");
  EXPECT_TRUE(find_slow_disks({1, kSecond}, 2).empty()) << "less than a second";
  EXPECT_TRUE(find_slow_disks({kSecond}, 2).empty());
}

// ---- hangs

// Rank kOdd does not make the call that the others wait in; it leaves when they have failed. They wait on side streams
// before any watchdog starts: a rank that is late on a busy machine must not be mistaken for the one that hangs.
TEST(Watchdog, NamesTheRankThatDidNotJoin) {
  // given
  constexpr int kRanks = 4, kOdd = 2;
  const TempDir dir;
  std::atomic<int> waiting = 0, failed = 0;
  std::string error;
  // when
  try {
    run_thread_ranks(kRanks, [&](Communicator& plain) {
      const auto places = gather_places(plain);
      if (plain.rank() == 0) start_flight_folder(dir / "", places);
      plain.barrier();
      FlightRecorder recorder(plain.rank());
      const auto world = with_flight_recorder(plain, recorder);
      const auto pair = world->split({world->rank() & ~1, world->rank() | 1}, "pair", comm_of("tensor"));
      const std::atomic<int64_t> steps = 7;
      const auto device = create_cpu_device();
      float x = 1;
      const auto stream = device->create_side_stream(StreamPriority::normal);
      // Rank 3 waits for rank 2; 0 and 1 wait for rank 3, which is not to blame.
      if (world->rank() == 3) pair->all_reduce({&x, DType::f32, {1}}, Reduce::sum, *stream);
      if (world->rank() != kOdd) {
        world->all_reduce({&x, DType::f32, {1}}, Reduce::sum, *stream);
        while (!recorder.oldest_started()) std::this_thread::yield();
        ++waiting;
      }
      while (waiting < kRanks - 1) std::this_thread::yield();
      Watchdog watchdog(recorder, plain, steps,
                        {.timeout_s = 0.3, .grace_s = 60, .run_dir = dir / "", .places = places});
      try {
        while (world->rank() == kOdd && failed < kRanks - 1) std::this_thread::yield();
        stream->synchronize();
      } catch (const Error&) {
        ++failed;
        if (const auto fired = watchdog.fired(); fired.exit_code != 0) throw TimeoutError(fired.what);
        throw;
      }
    });
  } catch (const TimeoutError& e) {
    error = e.what();
  }
  // then
  expect_match(error,
               "no progress for 0.3 s: rank 2 on .* did not join call [01] of group '(pair|world)'.*it is computing");
  const auto outcome = parse_json(read_text(dir / "outcome.json"));
  EXPECT_EQ(outcome.at("status"), "hung");
  EXPECT_EQ(outcome.at("exit_code"), 124);
  EXPECT_EQ(outcome.at("root_cause_rank"), kOdd);
  EXPECT_EQ(outcome.at("step"), 7);
  const std::string description = describe_flight(read_flight_folder(dir / ""));
  expect_match(description, "rank 3 has waited for .* in call 0 of group 'pair' .ranks 2, 3.*missing: rank 2");
}

// docs/faults.md: time counts only while the process runs. Between two checks of an open call the process is suspended
// for longer than the limit; the call is reported with the time that it was open while the process ran.
TEST(Watchdog, DoesNotCountTheTimeOfASuspension) {
  // given
  const TempDir dir;
  int looks[2];
  ASSERT_EQ(pipe(looks), 0);
  const pid_t child = fork();
  if (child == 0) {
    run_thread_ranks(1, [&](Communicator& world) {
      const auto places = gather_places(world);
      start_flight_folder(dir / "", places);
      FlightRecorder recorder(0);
      recorder.start(recorder.enqueue(recorder.add_group("world", {0}, 0), {}));
      const std::atomic<int64_t> steps = 7;
      const Watchdog watchdog(recorder, world, steps,
                              {.timeout_s = 0.5, .grace_s = 0, .run_dir = dir / "", .places = places, .touch = [&] {
                                 if (write(looks[1], "x", 1) != 1) _exit(1);
                               }});
      for (;;) pause();  // the watchdog ends this process
    });
  }
  // when
  char look = 0;
  for (int i = 0; i < 2; ++i) ASSERT_EQ(read(looks[0], &look, 1), 1);
  kill(child, SIGSTOP);
  int status = 0;
  waitpid(child, &status, WUNTRACED);
  std::this_thread::sleep_for(std::chrono::seconds(2));
  kill(child, SIGCONT);
  waitpid(child, &status, 0);
  for (const int end : looks) close(end);
  // then
  EXPECT_EQ(WEXITSTATUS(status), 124);
  const std::string why = parse_json(read_text(dir / "flight/rank-0.json")).at("why");
  std::smatch open;
  ASSERT_TRUE(std::regex_search(why, open, std::regex("open for ([0-9.]+) s"))) << why;
  EXPECT_LT(std::stod(open[1]), 1) << why;  // at most four checks of 0.05 s above the limit
}

// An NCCL call that never finishes, although all ranks have joined it and none gets an error: the hosts wait for their
// streams.
TEST(Watchdog, EndsWhatTheStreamsOfGpusWaitIn) {
  if (!nccl_is_emulated()) GTEST_SKIP() << "of the emulated NCCL";
  // given
  const EmulatedNcclFault fault("world:1:1:silent");
  const TempDir dir;
  std::atomic<int> waiting = 0, ended = 0;
  std::string error;
  // when
  try {
    run_thread_ranks(2, [&](Communicator& plain) {
      const auto places = gather_places(plain);
      if (plain.rank() == 0) start_flight_folder(dir / "", places);
      FlightRecorder recorder(plain.rank());
      const auto device = create_cuda_device(plain.rank());
      const auto host = plain.twin("host", comm_of("data"));
      const auto unwatched = create_nccl_communicator(*host, *device, 3600);
      const auto nccl = with_flight_recorder(*unwatched, recorder);
      const std::atomic<int64_t> steps = 7;
      Arena arena(*device, "test");
      const Tensor x = arena.allocate(DType::f32, {4});
      const auto stream = device->create_compute_stream();
      for (int i = 0; i < 2; ++i) nccl->all_reduce(x, Reduce::sum, *stream);
      const auto in_the_second = [&] {
        const auto open = recorder.oldest_started();
        return open && open->number == 1;
      };
      while (!in_the_second()) std::this_thread::yield();
      ++waiting;
      while (waiting < 2) std::this_thread::yield();
      Watchdog watchdog(recorder, plain, steps,
                        {.timeout_s = 0.3, .grace_s = 60, .run_dir = dir / "", .places = places});
      try {
        stream->synchronize();
      } catch (const Error& end) {
        expect_match(end.what(), "has failed: no progress for 0.3 s: all ranks have joined call 1 of group 'world");
        ++ended;
        if (const auto fired = watchdog.fired(); fired.exit_code != 0) throw TimeoutError(fired.what);
        throw;
      }
    });
  } catch (const TimeoutError& e) {
    error = e.what();
  }
  // then
  EXPECT_EQ(ended, 2);
  expect_match(error, "no progress for 0.3 s: all ranks have joined call 1 of group 'world .devices.'.*all_reduce");
  EXPECT_EQ(parse_json(read_text(dir / "outcome.json")).at("status"), "hung");
}

// The dump of a rank that waits in the next call of one of its groups, or in none.
FlightDump dump_of(int rank, const std::vector<std::vector<int>>& groups, int waits_in, char main_thread = 'S') {
  FlightRecorder recorder(rank);
  for (const auto& ranks : groups)
    recorder.add_group("g" + std::to_string(ranks[0]), ranks,
                       static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin()));
  if (waits_in >= 0) recorder.start(recorder.enqueue(waits_in, {CommCall::barrier}));
  FlightDump dump{.place = {"host" + std::to_string(rank), 100 + rank}, .why = "a \"test\"\n"};
  dump.main_thread = main_thread;
  dump.log = recorder.log();
  return dump;
}

FlightVerdict verdict_of(const std::vector<FlightDump>& dumps, int world) {
  const TempDir dir;
  std::vector<RankPlace> places;
  for (int rank = 0; rank < world; ++rank) places.push_back({"host" + std::to_string(rank), 100 + rank});
  start_flight_folder(dir / "", places);
  for (const FlightDump& dump : dumps) write_flight_dump(dir / "", dump);
  return find_culprit(read_flight_folder(dir / ""));
}

TEST(FlightDumps, BlameTheEndOfAChainAndNotItsMiddle) {
  // 0 waits for 1, 1 waits for 2, 2 has written nothing
  const FlightVerdict verdict = verdict_of({dump_of(0, {{0, 1}}, 0), dump_of(1, {{0, 1}, {1, 2}}, 1)}, 3);
  EXPECT_EQ(verdict.rank, 2);
  expect_match(verdict.what,
               "rank 2 on host2 did not join call 0 of group 'g1' .ranks 1, 2.: barrier.*stopped, or dead");
}

TEST(FlightDumps, SayThatRanksWaitForEachOther) {
  const std::vector<std::vector<int>> groups = {{0, 1}, {1, 0}};
  const FlightVerdict verdict = verdict_of({dump_of(0, groups, 0), dump_of(1, groups, 1)}, 2);
  EXPECT_EQ(verdict.rank, -1);
  expect_match(verdict.what, "ranks wait for each other: rank 1 on host1 did not join .* rank 0 waits");
}

TEST(FlightDumps, SayWhereAllHaveJoined) {
  const std::vector<std::vector<int>> groups = {{0, 1}};
  const FlightVerdict verdict = verdict_of({dump_of(0, groups, 0), dump_of(1, groups, 0)}, 2);
  EXPECT_EQ(verdict.rank, -1);
  expect_match(verdict.what, "all ranks have joined call 0");
}

// Rank 1 of a pipeline waits for the second transfer from rank 0, which has sent to both other ranks.
TEST(FlightDumps, BlameASenderOnlyIfItHasNotSent) {
  const auto dump = [](int rank, const std::vector<std::pair<int, int>>& sent, int receives_from) {
    FlightRecorder recorder(rank);
    recorder.add_group("pipeline", {0, 1, 2}, rank);
    const auto transfer = [&](int peer, bool sends) {
      const int slot = recorder.enqueue(0, {CommCall::transfer}, peer, sends);
      recorder.start(slot);
      return slot;
    };
    for (const auto& [peer, count] : sent)
      for (int i = 0; i < count; ++i) recorder.finish(transfer(peer, true), false);
    if (receives_from >= 0) {
      recorder.finish(transfer(receives_from, false), false);
      transfer(receives_from, false);
    }
    FlightDump dump{.place = {"host" + std::to_string(rank), 100 + rank}, .why = "test"};
    dump.main_thread = 'R';
    dump.log = recorder.log();
    return dump;
  };
  const FlightDump waits = dump(1, {{0, 5}, {2, 5}}, 0), other = dump(2, {{0, 5}, {1, 5}}, -1);
  FlightVerdict verdict = verdict_of({dump(0, {{1, 2}, {2, 1}}, -1), waits, other}, 3);
  EXPECT_EQ(verdict.rank, -1);
  expect_match(verdict.what, "joined transfer 1 of group 'pipeline' to rank 1: .*data has not arrived at rank 1");
  verdict = verdict_of({dump(0, {{1, 1}, {2, 5}}, -1), waits, other}, 3);
  EXPECT_EQ(verdict.rank, 0);
  expect_match(verdict.what, "rank 0 on host0 did not join transfer 1 of group 'pipeline' to rank 1");
}

// Runs that end normally leave no dumps.
TEST(FlightDumps, OfARunThatEndedNormallyAreNotMissed) {
  const TempDir dir;
  const auto described = [&] { return describe_flight(read_flight_folder(dir / "")); };
  start_flight_folder(dir / "", {{"a", 1}, {"b", 2}});
  expect_match(described(), "there is no outcome.json: the run is still in progress");
  ASSERT_TRUE(write_outcome(dir / "", {.status = "done", .step = 5}));
  EXPECT_EQ(described(), "the run ended normally after step 5; no rank wrote a flight dump\n");
  clear_outcome(dir / "");
  ASSERT_TRUE(write_outcome(dir / "", {.status = "failed", .exit_code = 65, .what = "bad data", .step = 2}));
  EXPECT_EQ(described(), "the run failed after step 2: bad data; no rank wrote a flight dump\n");
  write_flight_dump(dir / "", dump_of(1, {{0, 1}}, 0));
  expect_match(described(), "rank 0 on a: wrote no dump");
}

TEST(FlightDumps, RefuseFilesThatAreNone) {
  const TempDir dir;
  start_flight_folder(dir / "", {{"a", 1}, {"b", 2}});
  for (const char* text : {"", "{}", "[]", "{\"rank\": 0", "\xff\xfe"}) {
    write_text(flight_path(dir / "", 1), text);
    const std::string message = message_of<DataError>([&] { read_flight_folder(dir / ""); });
    EXPECT_NE(message.find("rank-1.json"), std::string::npos);
    EXPECT_EQ(message.find("json.exception"), std::string::npos) << message;
  }
  // Indices out of range.
  const FlightDump good = dump_of(1, {{0, 1}}, 0);
  write_flight_dump(dir / "", good);
  const std::string text = read_text(flight_path(dir / "", 1));
  for (const auto& [from, to] : {std::pair{"\"ranks\":[0,1],\"rank\":1", "\"ranks\":[0,1],\"rank\":7"},
                                 {"\"group_index\":0", "\"group_index\":9"},
                                 {"\"peer\":-1", "\"peer\":-2"},
                                 {"\"main_thread\": \"S\"", "\"main_thread\": \"\""}}) {
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from << "\n" << text;
    write_text(flight_path(dir / "", 1), std::string(text).replace(at, std::string(from).size(), to));
    const std::string message = message_of<DataError>([&] { describe_flight(read_flight_folder(dir / "")); });
    EXPECT_EQ(message.rfind("rank-1.json"), message.find("rank-1.json")) << "named once: " << message;
    EXPECT_NE(message.find("rank-1.json"), std::string::npos) << to;
    EXPECT_EQ(message.find("basic_string"), std::string::npos) << message;
  }
  // A group with a rank that is not in the run.
  write_flight_dump(dir / "", dump_of(1, {{1, 5}}, 0));
  expect_match(message_of<DataError>([&] { read_flight_folder(dir / ""); }), "rank 5 of 2 does not belong in");
}

// ---- outcome, lock, parsing of faults

TEST(Outcome, TheFirstCountsAndKnowsTheLastCommittedStep) {
  const TempDir dir;
  std::filesystem::create_directories(dir / "checkpoints/step-00000120");
  write_text(dir / "checkpoints/latest", "step-00000120\n");
  EXPECT_TRUE(write_outcome(dir / "", {.status = "hung", .exit_code = 124, .root_cause_rank = 3, .step = 130}));
  EXPECT_FALSE(write_outcome(dir / "", {.status = "done"}));
  const auto json = parse_json(read_text(dir / "outcome.json"));
  EXPECT_EQ(json.at("status"), "hung");
  EXPECT_EQ(json.at("last_committed_step"), 120);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir / ""), {}), 2) << "nothing else is left";
  write_text(dir / "outcome.json.tmp-0123abcd", "{");  // of a process that was killed
  clear_outcome(dir / "");
  EXPECT_TRUE(write_outcome(dir / "", {.status = "done"}));
  EXPECT_FALSE(std::filesystem::exists(dir / "outcome.json.tmp-0123abcd"));
  EXPECT_FALSE(write_outcome(dir / "no/such/folder", {.status = "done"}));
  for (const char* text : {"", "garbage", "step-", "step-x"}) {
    write_text(dir / "checkpoints/latest", text);
    EXPECT_EQ(last_committed_step(dir / ""), -1) << text;
  }
}

TEST(RunLock, KeepsASecondRunOutUntilTheFirstIsGone) {
  // given: another process that holds the lock
  const TempDir dir;
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t holder = fork();
  if (holder == 0) {
    const RunLock lock(dir / "");
    const bool told = write(ready[1], "x", 1) == 1;
    while (told) pause();
    _exit(1);
  }
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);

  // when that process is alive: refused
  expect_match(message_of([&] { RunLock(dir / ""); }),
               "another run is using it .process " + std::to_string(holder) + " on ");
  // when it has been killed: taken over
  kill(holder, SIGKILL);
  waitpid(holder, nullptr, 0);
  {
    const RunLock lock(dir / "");
    expect_match(lock.taken_from(), "process " + std::to_string(holder) + ".*which has ended");
  }
  // then: nothing is left, and the next run has the folder to itself
  EXPECT_TRUE(std::filesystem::is_empty(dir / ""));
  EXPECT_EQ(RunLock(dir / "").taken_from(), "");
}

// After the host has restarted, the id of the process that held the lock belongs to another one.
TEST(RunLock, OfAProcessWhoseIdIsUsedAgainIsTakenOver) {
  // given: a lock whose process is alive, without a lock on its file (as on some file servers)
  const TempDir dir;
  std::string text;
  {
    const RunLock lock(dir / "");
    text = read_text(dir / "lock");
  }
  write_text(dir / "lock", text);
  // when that process holds it: refused; when the process has started at another time: taken over
  expect_match(message_of([&] { RunLock(dir / ""); }),
               fmt::format("another run is using it .process {} on ", getpid()));
  for (const int later : {-1, 1}) {
    nlohmann::json other = parse_json(text);
    other["process_start"] = other["process_start"].get<int64_t>() + later;
    write_text(dir / "lock", other.dump());
    expect_match(RunLock(dir / "").taken_from(), fmt::format("process {} on .*which has ended", getpid()));
  }
}

TEST(RunLock, RemovesWhatRunsThatWereKilledLeftAndNothingElse) {
  const TempDir dir;
  for (const char* name : {"lock.tmp-0123abcd", "locks"}) write_text(dir / name, "{}");
  const OutputFile of_another(dir / "lock");
  const RunLock lock(dir / "");
  EXPECT_FALSE(std::filesystem::exists(dir / "lock.tmp-0123abcd"));
  EXPECT_TRUE(std::filesystem::exists(dir / "locks"));
  EXPECT_TRUE(std::filesystem::exists(of_another.temporary())) << "it starts at the same time";
}

// Called four times a second, for longer than kTouch.
TEST(RunLock, IsTouchedHoweverOftenThatIsAskedFor) {
  const TempDir dir;
  RunLock lock(dir / "");
  const auto long_ago = std::filesystem::file_time_type::clock::now() - std::chrono::hours(1);
  const int64_t begin = now_ns();
  lock.touch(begin);
  std::filesystem::last_write_time(dir / "lock", long_ago);
  for (int i = 1; i < 4 * RunLock::kTouch; ++i) lock.touch(begin + i * int64_t{250'000'000});
  EXPECT_EQ(std::filesystem::last_write_time(dir / "lock"), long_ago);
  for (int i = 0; i < 4; ++i) lock.touch(begin + (4 * RunLock::kTouch + i) * int64_t{250'000'000});
  EXPECT_GT(std::filesystem::last_write_time(dir / "lock"), long_ago + std::chrono::minutes(30));
}

TEST(RunLock, JudgesALockOfAnotherHostByItsJobAndItsAge) {
  const TempDir dir;
  const std::string text = R"({"host": "elsewhere", "pid": 1, "process_start": 1, "job": "", "since": "then"})";
  write_text(dir / "lock", text);
  expect_match(message_of([&] { RunLock(dir / ""); }), "process 1 on elsewhere, since then");
  std::filesystem::last_write_time(
      dir / "lock", std::filesystem::file_time_type::clock::now() - std::chrono::seconds(RunLock::kStale + 100));
  expect_match(RunLock(dir / "").taken_from(), "has not touched it for [34]");
  write_text(dir / "lock", "half of a lo");  // of an unknown host, and recent
  expect_match(message_of([&] { RunLock(dir / ""); }), "unknown host");
}

// A suspended host whose lock the file server still holds: neither age nor job matters.
TEST(RunLock, IsNeverTakenWhereItIsSeenHeld) {
  const TempDir dir;
  ASSERT_EQ(setenv("SLURM_JOB_ID", "77", 1), 0);
  write_text(dir / "lock", R"({"host": "elsewhere", "pid": 1, "process_start": 1, "job": "77", "since": "then"})");
  std::filesystem::last_write_time(
      dir / "lock", std::filesystem::file_time_type::clock::now() - 2 * std::chrono::seconds(RunLock::kStale));
  for (const char* held : {"lock", ""}) {
    const int holder = open((dir / held).c_str(), O_RDONLY);
    ASSERT_EQ(flock(holder, LOCK_EX), 0);
    expect_match(message_of([&] { RunLock(dir / ""); }), "another run is using it .process 1 on elsewhere, job 77");
    close(holder);
  }
  expect_match(RunLock(dir / "").taken_from(), "an earlier attempt of this job");
  unsetenv("SLURM_JOB_ID");
  write_text(dir / "lock", R"({"host": "elsewhere", "pid": 1, "process_start": 1, "job": "77.pbs", "since": "then"})");
  ASSERT_EQ(setenv("PBS_JOBID", "77.pbs", 1), 0);
  expect_match(RunLock(dir / "").taken_from(), "an earlier attempt of this job");
  unsetenv("PBS_JOBID");
}

// Two containers of one host: neither sees the other's processes.
TEST(RunLock, OfAnotherContainerIsKeptAsLongAsItsFileIsOpen) {
  // given: a lock of this host, with a process id that does not exist here
  const TempDir dir;
  std::string mine;
  {
    const RunLock lock(dir / "");
    mine = read_text(dir / "lock");
  }
  nlohmann::json text = parse_json(mine);
  text["pid"] = 1 << 30;
  text["processes"] = "pid:[1]";
  write_text(dir / "lock", text.dump());
  const int holder = open((dir / "lock").c_str(), O_RDWR);
  ASSERT_EQ(flock(holder, LOCK_EX), 0);
  // when that process is alive: refused; when it has ended: taken over
  expect_match(message_of([&] { RunLock(dir / ""); }), "another run is using it .process 1073741824");
  close(holder);
  expect_match(RunLock(dir / "").taken_from(), "process 1073741824 .*which has ended");
  // and others see that a held lock is held
  const RunLock lock(dir / "");
  const int other = open((dir / "lock").c_str(), O_RDONLY);
  EXPECT_EQ(flock(other, LOCK_SH | LOCK_NB), -1);
  close(other);
}

// The lock's file may be removed with the directory's other contents, so the directory is locked, too.
TEST(RunLock, KeepsASecondRunOutWhenItsFileWasRemoved) {
  const TempDir dir;
  {
    const RunLock lock(dir / "");
    std::filesystem::remove(dir / "lock");
    expect_match(message_of([&] { RunLock(dir / ""); }), "another run is using it, whose .*/lock was removed");
    EXPECT_FALSE(std::filesystem::exists(dir / "lock"));
  }
  EXPECT_EQ(RunLock(dir / "").taken_from(), "");
}

TEST(RunDirectory, IsNotMadeForARunThatItsCpuCannotDo) {
  for (size_t i = 0; i < kCpuIsaNames.size(); ++i) {
    if (cpu_isa_problem(static_cast<CpuIsa>(i)).empty()) continue;
    RunFolder folder;
    EXPECT_EQ(folder.run(2, {fmt::format("device.cpu_isa={}", kCpuIsaNames[i])}, {}), 64);
    expect_match(folder.error, "device.cpu_isa: found ");
    EXPECT_FALSE(std::filesystem::exists(folder.run_dir()));
  }
}

TEST(RunDirectory, KnowsWhetherItIsTheSameDirectory) {
  const TempDir dir;
  std::filesystem::create_directory(dir / "run");
  const RunDirectory folder(dir / "run");
  EXPECT_EQ(folder.problem(), "");
  std::filesystem::rename(dir / "run", dir / "moved");
  expect_match(folder.problem(), "^train.run_dir .*/run: the directory of this run was renamed to .*/moved while");
  std::filesystem::create_directory(dir / "run");
  expect_match(folder.problem(), "was renamed to .*/moved, and another one is in its place$");
  std::filesystem::remove(dir / "run");
  std::filesystem::rename(dir / "moved", dir / "run");
  EXPECT_EQ(folder.problem(), "") << "it is back";
  std::filesystem::remove(dir / "run");
  expect_match(folder.problem(), "was deleted while the run was writing to it$");
  EXPECT_EQ(RunDirectory(dir / "none").problem(), "") << "another host does not see it";
}

// What deleting a directory leaves for a moment, or for good if a new file appears in between.
TEST(RunDirectory, IsEmptiedWithoutAllOfItsMarks) {
  const TempDir dir;
  for (const char* name : {"lock", "config", "log"}) write_text(dir / name, "");
  const RunDirectory folder(dir / "", "train.run_dir", {"lock", "config"});
  std::filesystem::remove(dir / "lock");
  EXPECT_EQ(folder.problem(), "");
  std::filesystem::remove(dir / "config");
  expect_match(folder.problem(), "^train.run_dir .*: the directory of this run was emptied while");
}

// A run that was suspended for a long time finds another run in its folder and leaves that run's lock alone.
TEST(RunLock, ThatWasTakenOverIsNotRemoved) {
  const TempDir dir;
  {
    const RunLock lock(dir / "");
    const RunDirectory folder(dir / "", "train.run_dir", {}, lock.text());
    EXPECT_EQ(folder.problem(), "");
    EXPECT_FALSE(folder.taken_over());
    write_text(dir / "other", "another's");
    std::filesystem::rename(dir / "other", dir / "lock");
    EXPECT_TRUE(folder.taken_over());
    expect_match(folder.problem(), "^train.run_dir .*: another run has taken the folder over: another's");
  }
  EXPECT_EQ(read_text(dir / "lock"), "another's");
}

// Or the other run has already ended: its outcome is there, but no lock.
TEST(RunLock, OfARunThatHasEndedSinceIsMissed) {
  const TempDir dir;
  const RunLock lock(dir / "");
  const RunDirectory folder(dir / "", "train.run_dir", {}, lock.text());
  std::filesystem::remove(dir / "lock");
  EXPECT_FALSE(folder.taken_over()) << "somebody has tidied up";
  write_text(dir / "outcome.json", "{}");
  EXPECT_TRUE(folder.taken_over());
  expect_match(folder.problem(),
               "another run has taken the folder over: it has ended by now; this run ends and writes");
}

TEST(Inject, ReadsFaultsAndRefusesOthersWithTheList) {
  const Fault slow = parse_fault("slow=2.5:last:4");
  EXPECT_EQ(slow.kind, FaultKind::slow);
  EXPECT_EQ(slow.factor, 2.5);
  EXPECT_TRUE(slow.strikes(3, 4));
  EXPECT_FALSE(slow.strikes(2, 4));
  EXPECT_TRUE(parse_fault("kill:all:1").strikes(2, 4));
  EXPECT_EQ(parse_fault("nan:0:1").phase, StepPhase::reduce);
  EXPECT_EQ(parse_fault("nan:0:1:optimizer").phase, StepPhase::optimizer);
  for (const char* text : {"",
                           "kill",
                           "kill:0",
                           "kill:0:1:2:3",
                           "boom:0:1",
                           "kill:x:1",
                           "kill:-1:1",
                           "kill:0:0",
                           "kill:0:1x",
                           "kill:0:1:lunch",
                           "slow:0:1",
                           "slow=0.5:0:1",
                           "slow=x:0:1",
                           "kill=2:0:1",
                           "oom:0:1",
                           "oom:0:0:save",
                           "nan:0:4:save",
                           "inf:0:4:step",
                           "eio:0:1:forward",
                           "kill:99999999999:1"})
    expect_match(message_of([&] { parse_fault(text); }), "--inject " + std::string(text) + ": .*expected FAULT:RANK");
  expect_match(message_of([] { FaultInjector({{parse_fault("kill:4:1")}}, 0, 4); }), "no rank 4 in a world of 4");
}

TEST(Inject, HandsWriteFaultsToTheWriterOnce) {
  const std::vector<Fault> faults = {parse_fault("enospc:1:5"), parse_fault("torn_write:0:5")};
  FaultInjector mine(faults, 1, 2);
  const Disk::Fault disk = mine.disk_fault();
  mine.begin(StepPhase::save, 4);
  EXPECT_EQ(disk(DiskOp::write, ""), DiskFate::normal);
  mine.begin(StepPhase::save, 5);
  EXPECT_EQ(disk(DiskOp::sync, ""), DiskFate::normal);
  EXPECT_EQ(disk(DiskOp::write, ""), DiskFate::no_space);
  EXPECT_EQ(disk(DiskOp::write, ""), DiskFate::normal);
}

TEST(SameEverywhere, NamesTheRankWithAnotherConfiguration) {
  const std::string error = message_of([] {
    run_thread_ranks(4, [](Communicator& world) {
      check_same_everywhere({{"configuration", world.rank() == 2 ? "b" : "a"}}, gather_places(world), world);
    });
  });
  expect_match(error, "the ranks do not run the same configuration: rank 2 on .* differs from the other 3");
}

// If there are two ranks, rank 1 is named; ranks may have more or fewer items after the first that differs.
TEST(SameEverywhere, ShowsTheDataOfTheRanksThatDiffer) {
  for (const auto& [ranks, odd] : {std::pair(2, 1), std::pair(4, 0), std::pair(5, 3)}) {
    const std::string error = message_of<DataError>([&, odd = odd] {
      run_thread_ranks(ranks, [&](Communicator& world) {
        const bool differs = world.rank() == odd;
        std::vector<Shared> shared = {{"program", ""},
                                      {"dataset data.path a", differs ? "7 tokens" : "8 tokens", true}};
        if (differs) shared.push_back({"more", ""});
        check_same_everywhere(shared, gather_places(world), world);
      });
    });
    expect_match(error, fmt::format("the same dataset data.path a: rank {0} on .* differs from the other {1}.*rank {0} "
                                    "found 7 tokens, expected 8 tokens",
                                    odd, ranks - 1));
  }
}

}  // namespace
}  // namespace trivet
