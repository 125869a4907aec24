// Predictions: what holds on any system, and where the numbers come from.
#include "tools/plan/predict.h"

#include <gtest/gtest.h>

#include "base/json.h"
#include "engine/metrics/trace_file.h"
#include "engine/train/rank_state.h"
#include "tests/support/message_of.h"
#include "tests/support/temp_dir.h"
#include "tests/support/training.h"
#include "tests/support/where.h"
#include "tools/plan/planned_run.h"

namespace trivet::test {
namespace {

System h100(const std::vector<std::string>& sets = {}) {
  return load_system("h100-sxm", sets, source_path("configs/systems"));
}

const Resolved& small_run_of_eight() {
  static const Resolved run = [] {
    Config config = tiny_config();
    overlap_data_parallel(config);
    set_key(config, "precision.dtype", "bf16");
    set_key(config, "device.cuda_graph_impl", "none");
    return resolved(cut(config, {.t = 2, .p = 2, .d = 2, .sequence_parallel = true, .strategy = "optim"}), 8);
  }();
  return run;
}

Prediction predicted(const std::vector<std::string>& sets = {}) {
  return predict(small_run_of_eight().config, small_run_of_eight().layout, h100(sets));
}

TEST(Predict, TheTimesOfAllRanksAddUpToTheStep) {
  const Prediction p = predicted();
  const StepStats& s = p.step.stats;
  EXPECT_EQ(s.compute + s.optimizer + StepStats::sum(s.exposed) + StepStats::sum(s.wait) + s.host + s.idle, s.window);
  EXPECT_NEAR(static_cast<double>(s.window) * 1e-9 / 8, p.step.step_seconds, 0.02 * p.step.step_seconds);
  EXPECT_GT(p.step.step_seconds,
            flops_per_step(model_spec_of(small_run_of_eight().config.model), 8, FlopsConvention::causal) /
                (8 * h100().bf16_tflops * 1e12));
}

// Wire time is hidden, exposed, or shared with a class that counts first, and no shorter than the ports allow.
TEST(Predict, AClassOfCommunicationHasItsFloor) {
  for (const char* nodes : {"gpus_per_node=2", "gpus_per_node=4", "gpus_per_node=8"}) {
    const StepStats s = predicted({nodes}).step.stats;
    for (size_t k = 0; k < kCommClasses.size(); ++k) {
      EXPECT_EQ(s.floor[k] > 0, kCommClasses[k] != "context") << nodes;
      EXPECT_LE(s.floor[k], s.wire[k]) << nodes;
      EXPECT_LE(s.hidden[k] + s.exposed[k], s.wire[k]);
    }
  }
}

// NCCL passes a broadcast around a ring; only on an emulated link does one rank send it to each of the others.
TEST(Predict, BroadcastsOfPiecesHaveTheFloorOfARing) {
  Config config = tiny_config();
  set_key(config, "precision.dtype", "bf16");
  set_key(config, "overlap.tp_comm_overlap", "pipeline");
  const Resolved run = resolved(cut(config, {.t = 4, .d = 2, .sequence_parallel = true}), 8);
  const StepStats s = predict(run.config, run.layout, h100({"nvlink_gb_per_s=0.001", "nvls_gb_per_s=0"})).step.stats;
  const size_t tensor = class_of(comm_of("tensor"));
  EXPECT_LE(s.floor[tensor], s.wire[tensor]);
  EXPECT_GT(s.floor[tensor], s.wire[tensor] / 3) << "bound by the link";
}

TEST(Predict, FasterHardwareIsNoSlower) {
  const double before = predicted().step.step_seconds;
  for (const char* faster : {"bf16_tflops=3000", "memory_gb_per_s=9000", "nvlink_gb_per_s=2000", "nvlink_us=0.01",
                             "kernel_us=0.1", "host_us=0.1", "contention=1"})
    EXPECT_LE(predicted({faster}).step.step_seconds, before) << faster;
  EXPECT_GT(predicted({"host_us=40"}).step.step_seconds, 2 * before);  // a run this small is then launch-bound
}

// A layer of Llama 3.1 8B on an H100, and two micro-batches of one sample. The gain and cost of FP8, counted: the three
// GEMMs of each linear layer take half their time. To be quantised, an operand is read for its largest magnitude (2
// bytes per element in bf16), then read and written (3 bytes): the weight once a step, x forward and again for dW, and
// dy. To be transposed, it is read and written in FP8 (2 bytes): the weight for dx, x and dy for dW. With block scales
// nothing is read for a largest magnitude, but dy is quantised again for dW too.
TEST(Predict, Fp8HalvesTheGemmsOfLinearLayersAndCostsItsPasses) {
  const auto seconds = [](const char* fp8, const char* recipe, int length = 8192) {
    const std::vector<std::string> sets{"model.num_layers=1",
                                        fmt::format("model.seq_length={}", length),
                                        "parallel.tensor_model_parallel_size=1",
                                        "parallel.sequence_parallel=false",
                                        "batch.global_batch_size=2",
                                        std::string("precision.fp8=") + fp8,
                                        std::string("precision.fp8_recipe=") + recipe};
    const LegalRun run = legal_run(load_untrained(source_path("configs/llama31_8b.yaml"), sets), 1);
    const Prediction p = predict(run.loaded.config, run.layout, h100());
    EXPECT_EQ(json_of(p, h100())["mfu_peak"], fp8 == std::string_view("none") ? "bf16" : "fp8");
    EXPECT_NEAR(p.step.mfu * p.peak.tflops, p.step.model_tflops_per_rank, 1e-9);
    return p.step.step_seconds;
  };
  const double tokens = 8192, micro_batches = 2;
  double flops = 0, bytes = 0, block_bytes = 0;
  for (const auto& [in, out] : {std::pair{4096., 6144.}, {4096., 4096.}, {4096., 28672.}, {14336., 4096.}}) {
    const double weight = in * out, x = tokens * in, dy = tokens * out;
    flops += micro_batches * 3 * 2 * tokens * weight;
    bytes += 5 * weight + micro_batches * (5 * (2 * x + dy) + 2 * (weight + x + dy));
    block_bytes += 3 * weight + micro_batches * (3 * (2 * x + 2 * dy) + 2 * (weight + x + dy));
  }
  const double gained = flops / 0.678 * (1 / 989e12 - 1 / 1978.9e12), memory = 0.85 * 3350e9, passes = bytes / memory;
  const double bf16 = seconds("none", "tensorwise");
  EXPECT_NEAR(gained, 16e-3, 1e-3);
  EXPECT_NEAR(passes, 4.3e-3, 0.1e-3);
  for (const char* fp8 : {"hybrid", "e4m3"})
    EXPECT_NEAR(bf16 - seconds(fp8, "tensorwise"), gained - passes, 0.1 * gained) << fp8;
  EXPECT_NEAR(bf16 - seconds("e4m3", "blockwise"), gained - block_bytes / memory, 0.1 * gained);
  // If tokens are no multiple of 4, the library refuses blocks: their operands are decoded, and multiplied in bf16.
  EXPECT_LT(seconds("e4m3", "blockwise", 8188), seconds("none", "tensorwise", 8188));
  EXPECT_GT(seconds("e4m3", "blockwise", 8190), seconds("none", "tensorwise", 8190));
}

TEST(Predict, Fp8OnAGpuWithoutItIsRefused) {
  Config config = tiny_config();
  set_key(config, "precision.dtype", "bf16");
  set_key(config, "precision.fp8", "hybrid");
  const auto [run, layout] = resolved(config, 1);
  const System a100 = load_system("a100-80", {}, source_path("configs/systems"));
  EXPECT_EQ(message_of([&] { predict(run, layout, a100); }),
            "precision.fp8: found hybrid, but the spec a100-80 has no fp8_tflops, the peak of GEMMs in FP8; expected "
            "none, or --system-set fp8_tflops=NUMBER of a GPU with FP8 GEMMs");
  set_key(config, "precision.fp8", "e4m3");
  set_key(config, "precision.fp8_recipe", "blockwise");
  const Resolved blocks = resolved(config, 1);
  set_key(config, "precision.fp8_recipe", "tensorwise");
  set_key(config, "precision.fp8_accumulator_bits", "14");
  const Resolved narrow = resolved(config, 1);
  set_key(config, "precision.fp8_accumulator_bits", "24");
  set_key(config, "precision.fp8_report", "true");
  const Resolved reported = resolved(config, 1);
  for (const char* spec : {"h100-sxm", "cpu"}) {
    const System system = load_system(spec, {}, source_path("configs/systems"));
    EXPECT_TRUE(message_of([&] {
                  predict(narrow.config, narrow.layout, system);
                }).starts_with("precision.fp8_accumulator_bits: found 14, "));
    EXPECT_TRUE(message_of([&] {
                  predict(reported.config, reported.layout, system);
                }).starts_with("precision.fp8_report: found true, "));
  }
  set_key(config, "precision.fp8_report", "false");
  set_key(config, "precision.fp8_recipe", "blockwise");
  // CPUs multiply FP8 operands in bf16.
  const System cpu = load_system("cpu", {}, source_path("configs/systems"));
  const Prediction on_cpu = predict(run, layout, cpu);
  EXPECT_EQ(on_cpu.peak.arithmetic, std::string_view("bf16"));
  set_key(config, "precision.fp8", "none");
  set_key(config, "precision.fp8_recipe", "tensorwise");
  EXPECT_GT(on_cpu.step.step_seconds, predict(resolved(config, 1).config, layout, cpu).step.step_seconds);
  // Block scales need no separate pass, but x and dy are quantised again for the weight gradients.
  EXPECT_NE(predict(blocks.config, layout, cpu).step.step_seconds, on_cpu.step.step_seconds);
}

// With two GPUs per node, the data-parallel ranks are on different nodes.
TEST(Predict, ASlowNetworkIsExposed) {
  const auto exposed = [](const std::vector<std::string>& sets) {
    return predicted(sets).step.stats.exposed[class_of(comm_of("data"))];
  };
  const int64_t one_node = exposed({}), nodes = exposed({"gpus_per_node=2"});
  EXPECT_GT(nodes, one_node);
  EXPECT_GT(exposed({"gpus_per_node=2", "network_gb_per_s=0.1"}), 2 * nodes);
}

TEST(Predict, MemoryIsTheEnginesPlanAndTheReserves) {
  const auto& [config, layout] = small_run_of_eight();
  int64_t most = 0;
  for (int rank = 0; rank < 8; ++rank)
    most = std::max(most, plan_memory(config, layout, position_of(rank, layout.mesh)).on_device());
  const Prediction p = predicted({"communicator_gib=0", "context_gib=1", "workspace_gib=2"});
  EXPECT_EQ(p.memory_bytes, most + (int64_t{3} << 30));
  EXPECT_TRUE(p.fits());
  const Prediction small = predicted({"memory_gib=1"});
  EXPECT_FALSE(small.fits());
  EXPECT_GT(small.step.step_seconds, 0);
}

TEST(Predict, TheTraceIsOneOfARun) {
  const TempDir dir;
  const auto& [config, layout] = small_run_of_eight();
  const Prediction p = predict(config, layout, h100(), {.trace = dir / "plan.json"});
  std::map<std::string, int> categories;
  for_each_span(dir / "plan.json", [&](const TraceSpan& span) { ++categories[span.category]; });
  for (const char* category : {"compute", "optimizer", "comm.tensor", "comm.pipeline", "comm.data"})
    EXPECT_GT(categories[category], 0) << category;
  EXPECT_EQ(ranks_of_trace(dir / "plan.json"), static_cast<int>(p.ranks.size()));
  EXPECT_EQ(json_of(p, h100()).dump(), json_of(predicted(), h100()).dump());
}

// Ranks on CPUs send the same bytes as ranks on GPUs, whether their links are emulated or copies between threads.
TEST(Predict, BytesAreThoseOfTheLayout) {
  const auto& [config, layout] = small_run_of_eight();
  const System cpu = load_system("cpu", {}, source_path("configs/systems"));
  Config linked = config;
  linked.comm.link_gbps = 1;
  const auto bytes = predicted().step.stats.wire_bytes;
  EXPECT_EQ(predict(config, layout, cpu).step.stats.wire_bytes, bytes);
  EXPECT_EQ(predict(linked, layout, cpu).step.stats.wire_bytes, bytes);
}

// Counted: per layer per micro-batch, the bytes of keys and values in bf16 and of their gradients as fp32 sums.
TEST(Predict, ContextParallelRanksSendWhatTheirAttentionNeeds) {
  Config config = tiny_model(true);
  set_key(config, "precision.dtype", "bf16");
  const int64_t d = *config.model.kv_channels,
                kv = config.model.seq_length * config.batch.micro_batch_size * 2 * *config.model.num_query_groups * d,
                passes = config.model.num_layers * *config.batch.global_batch_size / config.batch.micro_batch_size;
  const size_t context = class_of(comm_of("context"));
  for (const int c : {2, 4}) {
    const auto predicted_bytes = [&](CpCommType type) {
      const Resolved run = resolved(cut(config, {.c = c, .cp_comm_type = type}), c);
      const Prediction p = predict(run.config, run.layout, h100());
      EXPECT_EQ(p.step.stats.wire_bytes[context] % c, 0);
      return p.step.stats.wire_bytes[context] / c;  // per rank
    };
    const int64_t of_others = kv / c * (c - 1);
    EXPECT_EQ(predicted_bytes(CpCommType::p2p), passes * of_others * (2 + 2 + 4));
    EXPECT_EQ(predicted_bytes(CpCommType::all_gather), passes * of_others * (2 + 2 + 2));
  }
}

// A ring runs at the speed of the hop between nodes.
TEST(Predict, ARingAcrossNodesIsBoundByTheNetwork) {
  Config config = tiny_model(true);
  set_key(config, "precision.dtype", "bf16");
  const Resolved run = resolved(cut(config, {.c = 4}), 4);
  const auto wire = [&](const std::vector<std::string>& sets) {
    return predict(run.config, run.layout, h100(sets)).step.stats.wire[class_of(comm_of("context"))];
  };
  EXPECT_GT(wire({"gpus_per_node=2", "network_gb_per_s=0.01"}),
            10 * wire({"gpus_per_node=4", "network_gb_per_s=0.01"}));
}

TEST(Predict, JsonHasItsNumbers) {
  const Prediction p = predicted();
  const nlohmann::json json = json_of(p, h100());
  EXPECT_EQ(json["step_seconds"], p.step.step_seconds);
  EXPECT_EQ(json["memory_bytes"], p.memory_bytes);
  double sum = json["compute_seconds"].get<double>() + json["optimizer_seconds"].get<double>() +
               json["host_seconds"].get<double>() + json["idle_seconds"].get<double>();
  for (const char* part : {"exposed_seconds", "wait_seconds"})
    for (const auto& [name, value] : json[part].items()) sum += value.get<double>();
  EXPECT_NEAR(sum, p.step.step_seconds, 0.02 * p.step.step_seconds);
}

}  // namespace
}  // namespace trivet::test
