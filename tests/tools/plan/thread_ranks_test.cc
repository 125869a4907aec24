// Ranks as threads on CPUs: hand-computed times of small tapes, properties of whole runs, and the measurement of a
// spec.
#include "tools/plan/thread_ranks.h"

#include <gtest/gtest.h>

#include "engine/train/rank_state.h"
#include "tests/support/training.h"
#include "tests/support/where.h"
#include "tools/plan/measure.h"
#include "tools/plan/predict.h"

namespace trivet::test {
namespace {

// Only GEMMs, attention and links take time, and so much that rounding to nanoseconds does not matter.
System cpu(std::vector<std::string> sets) {
  for (const char* set :
       {"wake_us=0", "kernel_us=0", "team_us=0", "contention=1", "copy_gb_per_s=100000", "fp32_tflops=0.01"})
    sets.insert(sets.begin(), set);
  return load_system("cpu", sets, source_path("configs/systems"));
}

double step_seconds(const Config& config, int ranks, const std::vector<std::string>& sets = {}) {
  const auto [run, layout] = resolved(config, ranks);
  return predict(run, layout, cpu(sets)).step.step_seconds;
}

TEST(ThreadRanks, ShareTheCores) {
  const Config config = cut(tiny_config(), {.d = 4});
  const double alone = step_seconds(config, 4, {"cores=4"});
  EXPECT_NEAR(step_seconds(config, 4, {"cores=2"}), 2 * alone, 1e-3 * alone);
  EXPECT_NEAR(step_seconds(config, 4, {"cores=1"}), 4 * alone, 1e-3 * alone);
  EXPECT_NEAR(step_seconds(config, 4, {"cores=4", "contention=1.5"}), 1.5 * alone, 1e-3 * alone);
}

TEST(ThreadRanks, OneAmongManyCoresIsNotSlowed) {
  EXPECT_EQ(step_seconds(tiny_config(), 1, {"cores=4", "contention=1.5"}), step_seconds(tiny_config(), 1, {"cores=4"}));
}

TEST(ThreadRanks, ComputeOnAsManyThreadsAsTheyAreGiven) {
  Config config = tiny_config();
  config.device.threads_per_rank = 0;
  const double two = step_seconds(config, 1, {"cores=2"});
  config.device.threads_per_rank = 1;
  EXPECT_NEAR(step_seconds(config, 1, {"cores=2"}), 2 * two, 1e-4 * two);
}

// A rank's peak is that of all its threads together.
TEST(ThreadRanks, AreMeasuredAgainstThePeakOfTheirThreads) {
  for (const int threads : {1, 2}) {
    Config config = tiny_config();
    config.device.threads_per_rank = threads;
    const auto [run, layout] = resolved(config, 1);
    const StepReport step = predict(run, layout, cpu({"cores=2"})).step;
    EXPECT_NEAR(step.mfu * 0.01 * threads / step.model_tflops_per_rank, 1, 1e-9) << threads;
  }
}

// Without overlap, a step is longer by its collectives' time on the link.
TEST(ThreadRanks, KeepTheLinksOfTheRun) {
  Config config = cut(tiny_config(), {.d = 2});
  const double without = step_seconds(config, 2);
  set_key(config, "comm.link_gbps", "0.5");
  set_key(config, "comm.link_latency_us", "70");
  const auto [run, layout] = resolved(config, 2);
  TapeGroups groups;
  const Tape tape = record_tape(run, layout, 0, groups, {.steps = 1, .one_ahead = false, .cpu = true});
  int64_t wire_ns = 0;
  for (const TapeRecord& record : tape.records)
    if (record.kind == TapeRecord::call)
      wire_ns += wire_time({.latency_us = 70, .gbps = 0.5}, tape.calls[record.what].cost).total();
  EXPECT_GT(wire_ns, 100'000);
  EXPECT_NEAR(step_seconds(config, 2) - without, static_cast<double>(wire_ns) * 1e-9, 1e-6);
}

// A sender and a receiver. A FLOP takes 1 ns; a message takes 1 ns per byte, plus 5 ns.
class Pair {
 public:
  Pair() {
    rehearsal_.tapes.resize(2);
    for (int rank = 0; rank < 2; ++rank) {
      Tape& tape = rehearsal_.tapes[static_cast<size_t>(rank)];
      tape = {.rank = rank, .streams = {"compute", "one", "two"}, .labels = {{}}, .groups = {0, 1}, .steps = 1};
      rehearsal_.players.push_back({.tape = &tape, .rank = rank, .groups = {0, 1}, .places = {rank, rank}});
    }
    for (const char* name : {"one", "two"})
      rehearsal_.groups.add({.name = name, .world_ranks = {0, 1}, .category = comm_of("pipeline")});
  }
  Pair& work(size_t rank, int64_t ns) {
    Tape& tape = rehearsal_.tapes[rank];
    tape.works.push_back({.flops = ns});
    return add(rank, TapeRecord::work, 0, tape.works.size() - 1);
  }
  Pair& transfer(size_t rank, uint8_t stream, int group, int64_t bytes) {
    Tape& tape = rehearsal_.tapes[rank];
    tape.calls.push_back({.kind = CommCall::transfer, .sends = rank == 0, .group = group, .ahead = 1, .bytes = bytes});
    return add(rank, TapeRecord::call, stream, tape.calls.size() - 1);
  }
  // The time at which each rank finishes.
  std::vector<int64_t> ends() {
    for (size_t rank : {0, 1}) add(rank, TapeRecord::mark, 0, 0);
    play_on_threads(rehearsal_, {});
    class Costs : public ReplayCosts {
      int64_t work_ns(const TapeWork& work, bool) const override { return work.flops; }
      CallCost call_cost(const TapeCall& call, const TapeGroups::Group&) const override {
        return {.ns = call.bytes, .queue = 0, .latency_ns = 5};
      }
      bool buffered_sends() const override { return true; }
    };
    const Replayed replayed = replay(rehearsal_.players, rehearsal_.groups, Costs());
    return {replayed.step_ends[0][0], replayed.step_ends[1][0]};
  }

 private:
  Pair& add(size_t rank, TapeRecord::Kind kind, uint8_t stream, size_t what) {
    rehearsal_.tapes[rank].records.push_back({.kind = kind, .stream = stream, .what = static_cast<uint32_t>(what)});
    return *this;
  }
  Rehearsal rehearsal_;
};

TEST(ThreadRanks, QueueForOtherStreamsWhenTheyHaveComputed) {
  EXPECT_EQ(Pair().work(0, 100).transfer(0, 1, 0, 10).work(0, 7).transfer(1, 0, 0, 10).ends(),
            (std::vector<int64_t>{107, 115}));
}

TEST(ThreadRanks, TakeTheirPortFirstComeFirstServed) {
  EXPECT_EQ(Pair().transfer(0, 1, 0, 10).transfer(0, 2, 1, 20).transfer(1, 0, 0, 10).transfer(1, 0, 1, 20).ends(),
            (std::vector<int64_t>{0, 35}));
}

TEST(ThreadRanks, ReceiveLateWhatHasArrived) {
  EXPECT_EQ(Pair().transfer(0, 1, 0, 10).work(1, 12).transfer(1, 0, 0, 10).ends(), (std::vector<int64_t>{0, 15}));
  EXPECT_EQ(Pair().transfer(0, 1, 0, 10).work(1, 50).transfer(1, 0, 0, 10).ends(), (std::vector<int64_t>{0, 50}));
}

// The measurement matches each span of a real step with a record of its tape.
TEST(Measure, FindsTheTapesOpsInARun) {
  const std::vector<std::string> fp8{"precision.dtype=bf16", "precision.fp8=hybrid"};
  const std::vector<std::string> blocks{"precision.dtype=bf16", "precision.fp8=e4m3", "precision.fp8_recipe=blockwise"};
  for (std::vector<std::string> sets :
       {{"precision.dtype=bf16"}, {"parallel.tensor_model_parallel_size=2"}, fp8, blocks}) {
    const int ranks = sets.front().starts_with("parallel") ? 2 : 1;
    sets.insert(sets.end(),
                {"model.num_layers=1", "model.hidden_size=32", "model.seq_length=32", "batch.global_batch_size=2"});
    const MeasuredOps run = measure_run(sets, ranks, 2);
    double flops = 0;
    for (const auto& [what, seconds] : run.works) {
      EXPECT_GE(seconds, 0) << what.name;
      flops += static_cast<double>(what.flops);
    }
    EXPECT_GT(flops, 1e6);
    // Quantised: the weights of four linear layers and, for each of two samples, the layers' inputs (proj's twice) and
    // output gradients. With block scales, all inputs and gradients are quantised twice.
    const auto quantised = std::ranges::count_if(
        run.works, [](const auto& work) { return work.what.name == std::string_view("quantize"); });
    EXPECT_EQ(quantised, sets.size() > 6 ? 4 + 2 * (8 + 8) : sets.size() > 5 ? 4 + 2 * (5 + 4) : 0);
    EXPECT_EQ(run.calls.empty(), ranks == 1);
  }
}

TEST(Measure, AFitGivesBackTheConstants) {
  // given: the ops of a step with a known machine's times
  const System known =
      cpu({"kernel_us=0.5", "fp32_tflops=0.09983", "bf16_tflops=0.2112", "cache_gb_per_s=10.2", "vector_g_per_s=4.316",
           "score_g_per_s=3.1", "memory_gb_per_s=28.88", "attention_forward=0.6707", "attention_backward=0.6899"});
  std::vector<MeasuredOps::Work> works;
  for (const char* dtype : {"precision.dtype=fp32", "precision.dtype=bf16"})
    for (const auto& work : measure_run({"model.num_layers=1", "model.hidden_size=64", dtype}, 1, 1).works)
      works.push_back({work.what, cpu_work_seconds(known, work.what, 1)});
  // when
  System found = known;
  found.fp32_tflops = found.bf16_tflops = found.cache_gb_per_s = found.score_g_per_s = found.vector_g_per_s =
      found.memory_gb_per_s = 1;
  fit_ops(works, found);
  // then
  for (const auto& [what, seconds] : works) {
    if (what.kind == TapeWork::memory || what.kind == TapeWork::loss) continue;
    EXPECT_NEAR(cpu_work_seconds(found, what, 1) / seconds, 1, 0.02) << what.name;
  }
  EXPECT_NEAR(found.fp32_tflops / known.fp32_tflops, 1, 0.03);
  EXPECT_NEAR(found.bf16_tflops / known.bf16_tflops, 1, 0.03);
}

TEST(Measure, APageIsReadBack) {
  const System system = cpu({"cores=7", "wake_us=12.5"});
  const System read = parse_system(page_of({system, "a processor", {}}), "page.yaml");
  for (const SystemKey& key : system_keys()) {
    if (!key.is_of(SystemKind::cpu)) continue;
    EXPECT_NEAR(value_of(read, key), value_of(system, key), 1e-3 * value_of(system, key)) << key.name;
  }
}

}  // namespace
}  // namespace trivet::test
