// The engine on a device whose memory the host cannot touch and whose streams run only when waited for
// (tests/support/split_device.h), as on a GPU. The arithmetic is the CPU's and sums are taken in rank order, so all
// numbers must equal the CPU's bit for bit; a host that reads device memory, or reads too early, crashes or differs.
#include <algorithm>
#include <fstream>
#include <gtest/gtest.h>
#include <iterator>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "engine/model/modules.h"
#include "engine/train/run.h"
#include "kernels/op_fields.h"
#include "parallel/comm/nccl_comm.h"
#include "parallel/comm/world.h"
#include "tests/support/temp_dir.h"
#include "tests/support/training.h"

#ifdef TRIVET_EMULATED_GPU
#include "tests/emulation/runtime.h"
#endif

namespace trivet::test {
namespace {

constexpr int kDeviceSteps = std::min(kMatrixSteps, 4);
constexpr int kGpuSteps = 2;

void expect_same(const Curve& found, const Curve& expected) {
  expect_equal(found, expected);
  EXPECT_EQ(found.weights_hash, expected.weights_hash);
}

class OnADevice : public testing::TestWithParam<LayoutCase> {};

TEST_P(OnADevice, EveryNumberIsTheCpus) {
  const LayoutCase& c = GetParam();
  Config config = config_of(c);
  config.model.hidden_dropout = 0.1;
  const Curve cpu = train_on_threads(config, c.ranks(), kDeviceSteps);
  {
    SCOPED_TRACE("each step is finished before the next");
    expect_same(train_on_threads(config, c.ranks(), kDeviceSteps, {.make_backend = make_split_backend}), cpu);
  }
  {
    SCOPED_TRACE("a step ahead");
    expect_same(
        train_on_threads(config, c.ranks(), kDeviceSteps, {.poison = true, .make_backend = make_split_backend}, true),
        cpu);
  }
}

void tell_documents_apart(Config& c) {
  c.data.reset_position_ids = c.data.reset_attention_mask = c.data.eod_mask_loss = true;
}

void as_fp8(Config& c) {
  c.precision.dtype = DType::bf16;
  c.precision.fp8 = Fp8::hybrid;
}

void as_fp8_in_blocks(Config& c) {
  as_fp8(c);
  c.precision.fp8 = Fp8::e4m3;
  c.precision.fp8_recipe = Fp8Recipe::blockwise;
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, OnADevice,
    testing::Values(LayoutCase{"one"}, LayoutCase{"bf16", {}, [](Config& c) { c.precision.dtype = DType::bf16; }},
                    LayoutCase{"one_qwen3", {}, as_qwen3},
                    LayoutCase{"llama", {.t = 2, .p = 2, .sequence_parallel = true, .schedule = "zb-h1"}, as_llama},
                    LayoutCase{"llama_bf16",
                               {.d = 2, .strategy = "optim"},
                               [](Config& c) {
                                 as_llama(c);
                                 c.precision.dtype = DType::bf16;
                               }},
                    LayoutCase{"qwen3", {.t = 2, .p = 2, .schedule = "zb-h1"}, as_qwen3},
                    LayoutCase{"ring",
                               {.t = 2, .sequence_parallel = true},
                               [](Config& c) {
                                 c.overlap.tp_comm_overlap = TensorOverlap::ring;
                                 c.model.cross_entropy_chunk_rows = 7;
                               }},
                    LayoutCase{"tensor_and_pipeline",
                               {.t = 2, .p = 2, .sequence_parallel = true},
                               [](Config& c) { c.overlap.tp_comm_overlap = TensorOverlap::pipeline; }},
                    LayoutCase{"sharded_optimizer",
                               {.t = 2, .d = 2, .sequence_parallel = true, .strategy = "optim"},
                               [](Config& c) {
                                 c.overlap.tp_comm_overlap = TensorOverlap::bulk;
                                 c.parallel.bucket_size = 5000;
                                 overlap_data_parallel(c);
                               }},
                    LayoutCase{"sharded_weights", {.d = 2, .strategy = "optim_grads_params"}, overlap_data_parallel},
                    // Many gradients are in flight to a rank that starts its backward passes last.
                    LayoutCase{"gpipe",
                               {.p = 2, .schedule = "gpipe"},
                               [](Config& c) {
                                 c.parallel.decoder_first_pipeline_num_layers = 3;
                                 c.parallel.decoder_last_pipeline_num_layers = 1;
                                 c.batch.micro_batch_size = 1;
                                 c.model.cross_entropy_chunk_rows = 3;
                               }},
                    LayoutCase{"interleaved",
                               {.p = 2, .d = 2, .schedule = "interleaved", .v = 2, .strategy = "optim_grads"}},
                    LayoutCase{"context",
                               {.t = 2, .p = 2, .sequence_parallel = true, .c = 2},
                               [](Config& c) {
                                 as_llama(c);
                                 tell_documents_apart(c);
                               }},
                    LayoutCase{"context_gathered_bf16",
                               {.strategy = "optim", .c = 2, .cp_comm_type = CpCommType::all_gather},
                               [](Config& c) {
                                 c.precision.dtype = DType::bf16;
                                 tell_documents_apart(c);
                               }},
                    LayoutCase{"fp8", {.t = 2, .sequence_parallel = true}, as_fp8},
                    LayoutCase{"fp8_llama",
                               {.p = 2, .schedule = "zb-h1"},
                               [](Config& c) {
                                 as_llama(c);
                                 as_fp8(c);
                               }},
                    LayoutCase{"fp8_gathered",
                               {.d = 2, .strategy = "optim_grads_params"},
                               [](Config& c) {
                                 as_fp8(c);
                                 c.precision.fp8_param_gather = true;
                                 overlap_data_parallel(c);
                               }},
                    LayoutCase{"fp8_blocks", {.t = 2, .sequence_parallel = true}, as_fp8_in_blocks},
                    LayoutCase{"fp8_blocks_llama",
                               {.d = 2, .strategy = "optim_grads_params"},
                               [](Config& c) {
                                 as_llama(c);
                                 as_fp8_in_blocks(c);
                                 overlap_data_parallel(c);
                               }},
                    LayoutCase{"zero_bubble_recompute",
                               {.p = 2, .schedule = "zb-h1"},
                               [](Config& c) {
                                 c.model.recompute_granularity = RecomputeGranularity::selective;
                                 tell_documents_apart(c);
                               }}),
    [](const auto& info) { return info.param.name; });

// The same on GPUs: in fp32 within the layout tolerance, and bit for bit in a second run; in FP8 with captured graphs,
// which read scales where the captured pass did. The same over NCCL, with one GPU per rank: no group has more than two
// ranks, whose sum is the same in either order. On the emulation, half of the hardware queues run as late as they may
// in the first run, and the other half in the second.
TEST_P(OnADevice, AGpuAgreesWithTheCpuAndWithItself) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  const LayoutCase& c = GetParam();
  Config config = config_of(c);
  config.model.hidden_dropout = 0.1;
  const bool fp8 = config.precision.fp8 != Fp8::none;
  // An emulated GPU is slow, and the library's FP8 needs at least 16 tokens.
  config.batch = {.micro_batch_size = fp8 ? 2 : 1, .global_batch_size = 4};
  config.model.seq_length = 8;
  const int ranks = c.ranks();
  const Curve cpu = train_on_threads(config, ranks, kGpuSteps);
  config.device.kind = DeviceKind::cuda;
  config.comm.backend = CommBackend::staged;
  config.train.deterministic_mode = true;
#ifdef TRIVET_EMULATED_GPU
  const bool blocks = fp8 && config.precision.fp8_recipe == Fp8Recipe::blockwise;
  const int64_t fast = emulation::driver().fast_products, others = emulation::driver().fp8_products,
                in_blocks = emulation::driver().block_products, held = emulation::driver().held_back;
  emulation::driver().late_channels = 0xaaaaaaaaaaaaaaaau;
#endif

  const Curve gpu = train_on_threads(config, ranks, kGpuSteps, {.poison = true}, true);

#ifdef TRIVET_EMULATED_GPU
  EXPECT_EQ(emulation::driver().fast_products > fast, fp8 && !blocks) << "forward, by the library in FP8";
  EXPECT_EQ(emulation::driver().fp8_products > others, fp8) << "backward";
  EXPECT_EQ(emulation::driver().block_products > in_blocks, blocks);
  emulation::driver().late_channels = ~emulation::driver().late_channels;
#endif

  const double tolerance = config.precision.dtype == DType::bf16 ? 5e-3 : 2e-5;
  for (size_t i = 0; i < cpu.losses.size(); ++i) {
    EXPECT_NEAR(gpu.losses[i] / cpu.losses[i], 1, tolerance) << "step " << i + 1;
    EXPECT_NEAR(gpu.norms[i] / cpu.norms[i], 1, 100 * tolerance) << "step " << i + 1;
  }
  EXPECT_NEAR(gpu.validation_loss / cpu.validation_loss, 1, tolerance);
  if (ranks > 1 && built_with_nccl() && cuda_device_count() >= ranks) {
    config.comm.backend = CommBackend::nccl;
    config.comm.nccl_ub = c.cut.d > 1;
  }
  if (fp8) config.device.cuda_graph_impl = CudaGraphs::local;
  expect_same(train_on_threads(config, ranks, kGpuSteps, {.poison = true}, false), gpu);
#ifdef TRIVET_EMULATED_GPU
  emulation::driver().late_channels = 0;
  EXPECT_GT(emulation::driver().held_back, held);
#endif
}

// ---- what a step does not write twice

TEST(Gradients, OfMatricesAreLeftToTheFirstGemmToWrite) {
  with_trainers(tiny_config(), 1, [](Trainer& trainer) {
    trainer.data_parallel().grads.begin_step();
    for (const Param& param : trainer.state().params.all())
      EXPECT_EQ(param.overwrite,
                param.shape.rank == 2 && param.spec.name != name_of(Module::position_embeddings) + ".weight")
          << param.spec.name;
    trainer.step();
    for (const Param& param : trainer.state().params.all()) EXPECT_FALSE(param.overwrite) << param.spec.name;
  });
}

// ---- warming up

class SameBatch : public BatchSource {
 public:
  explicit SameBatch(const GptShape& shape)
      : batch_{std::vector<int32_t>(static_cast<size_t>(shape.tokens()), 1),
               std::vector<int32_t>(static_cast<size_t>(shape.tokens()), 2)} {}
  const Batch& next() override { return batch_; }
  void restart(int64_t) override {}

 private:
  const Batch batch_;
};

// The losses of three steps, after `warm_ups` steps whose update is refused.
std::vector<double> losses_behind(int warm_ups, const Config& config, const MakeBackend& make_backend) {
  std::vector<double> losses;
  with_trainers(config, 2,
                [&](Trainer& trainer) {
                  SameBatch batch(trainer.state().shape);
                  for (int i = 0; i < warm_ups; ++i) trainer.warm_up(batch);
                  for (int i = 0; i < 3; ++i) {
                    const double loss = trainer.step().loss;
                    if (trainer.world().rank() == 0) losses.push_back(loss);
                  }
                },
                {.make_backend = make_backend});
  return losses;
}

TEST(WarmingUp, LeavesWeightsAndMomentsOnADevice) {
  Config config = tiny_config();
  config.parallel.data_parallel_sharding_strategy = Sharding::optim;
  overlap_data_parallel(config);
  EXPECT_EQ(losses_behind(2, config, make_split_backend), losses_behind(0, config, make_split_backend));
  if (cuda_device_count() == 0) return;
  config.batch = {.micro_batch_size = 1, .global_batch_size = 4};  // an emulated GPU is slow
  config.model.seq_length = 8;
  config.device.kind = DeviceKind::cuda;
  config.comm.backend = CommBackend::staged;
  config.device.cuda_graph_impl = CudaGraphs::local;
  EXPECT_EQ(losses_behind(2, config, make_backend), losses_behind(0, config, make_backend));
}

// ---- preparing a device

// Records what has been run so far: kernels and plans depend on operation, types, sizes and which tensors are passed.
class NotedOps : public Ops {
 public:
  NotedOps(std::unique_ptr<Ops> ops, std::set<std::string>& seen) : ops_(std::move(ops)), seen_(seen) {}
  void run(const AnyOp& any, Stream& stream) override {
    std::visit([&](const auto& op) { seen_.insert(op.kSpan.name + fields_of(op)); }, any);
    ops_->run(any, stream);
  }

 private:
  template <class Struct>
  static std::string fields_of(const Struct& fields) {
    std::string text;
    for_each_field(fields, [&]<class T>(const T& field) {
      if constexpr (is_argument<T>) {
        text += field ? std::string(" ") + name_of(field.dtype) : " -";
        for (int i = 0; i < field.shape.rank; ++i) text += ',' + std::to_string(field.shape[i]);
      } else if constexpr (std::is_same_v<T, bool>) {
        text += field ? " yes" : " no";
      }
    });
    return text;
  }

  const std::unique_ptr<Ops> ops_;
  std::set<std::string>& seen_;
};

// Over all ranks: what each first ran in a step; and the losses of three steps.
struct Prepared {
  std::set<std::string> new_in_step;
  std::vector<double> losses;
  int64_t communicated = 0;  // spans of communication while the device was prepared
};
Prepared train_prepared(bool prepares, const LayoutCase& c, const Config& config, const MakeBackend& make) {
  Prepared all;
  std::mutex mutex;
  run_thread_ranks(c.ranks(), [&](Communicator& world) {
    std::set<std::string> seen;
    TinyTrainer tiny(config, world,
                     {.poison = true, .make_backend = [&](const Config& of, Communicator& ranks, int threads) {
                        Backend backend = make(of, ranks, threads);
                        backend.ops = std::make_unique<NotedOps>(std::move(backend.ops), seen);
                        return backend;
                      }});
    Trainer& trainer = *tiny;
    int64_t communicated = 0;
    if (prepares) {
      trainer.prepare_device();
      std::vector<Span> spans;
      trainer.rank().compute->synchronize();
      for (TraceRow& row : trainer.trace().rows()) {
        row.take(spans);
        communicated += std::ranges::count_if(spans, [](const Span& span) { return is_comm(span.info.category); });
      }
    }
    const std::set<std::string> before = seen;
    std::vector<double> losses;
    for (int i = 0; i < 3; ++i) losses.push_back(trainer.step().loss);
    losses.push_back(evaluate(trainer, 1));
    std::lock_guard lock(mutex);
    std::ranges::set_difference(seen, before, std::inserter(all.new_in_step, all.new_in_step.end()));
    all.communicated += communicated;
    if (world.rank() == 0) all.losses = losses;
  });
  return all;
}

// Everything that a run needs is prepared before its first step, and no number changes. The only communication is the
// weight gathers, which the ranks need at the end.
TEST_P(OnADevice, PreparedMeetsNothingNewInAStep) {
  const LayoutCase& c = GetParam();
  Config config = config_of(c);
  config.model.hidden_dropout = 0.1;
  const Prepared with = train_prepared(true, c, config, make_split_backend);
  const Prepared without = train_prepared(false, c, config, make_split_backend);
  EXPECT_EQ(with.losses, without.losses);
  EXPECT_EQ(with.new_in_step, std::set<std::string>{});
  EXPECT_GT(without.new_in_step.size(), 10u);
  if (c.cut.strategy == std::string("no_shard")) {
    EXPECT_EQ(with.communicated, 0);
  }
}

TEST(PreparedDevice, LeavesAGpusNumbers) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  const LayoutCase c{"gpu", {.t = 2, .d = 2, .sequence_parallel = true, .strategy = "optim_grads_params"}};
  Config config = config_of(c);
  config.batch = {.micro_batch_size = 1, .global_batch_size = 4};  // an emulated GPU is slow
  config.model.seq_length = 8;
  config.device.kind = DeviceKind::cuda;
  config.comm.backend = CommBackend::staged;
  config.train.deterministic_mode = true;
  overlap_data_parallel(config);
  const Prepared with = train_prepared(true, c, config, make_backend);
  EXPECT_EQ(with.losses, train_prepared(false, c, config, make_backend).losses);
  EXPECT_EQ(with.new_in_step, std::set<std::string>{});
}

// ---- which steps are measured

TEST(MeasuredSteps, OfADeviceAreTheFirstTenAndEveryTenth) {
  const TempDir dir;
  Config config = tiny_config();
  config.data.path = tiny_dataset_prefix();
  config.data.split = {100, 0, 0};
  config.train.train_iters = 21;
  config.optimizer.lr_decay_iters = 21;
  config.train.run_dir = dir / "run";
  config.device.peak_tflops = 1;
  RunOptions options;
  options.make_backend = make_split_backend;
  std::ostringstream log;
  run_thread_ranks(1, [&](Communicator& world) {
    run_training({.config = config, .origins = {}, .path = "test"}, options, world, log);
  });
  EXPECT_NE(log.str().find("prepared by passes on synthetic data"), std::string::npos);
  std::ifstream file(config.train.run_dir + "/metrics.jsonl");
  std::vector<bool> measured;
  for (std::string line; std::getline(file, line);)
    if (const auto json = nlohmann::json::parse(line); json.contains("compute_seconds")) {
      EXPECT_EQ(json["compute_fraction"].is_number(), json["compute_seconds"].is_number());
      EXPECT_TRUE(json["step_seconds"].is_number());
      measured.push_back(json["compute_seconds"].is_number());
    }
  std::vector<bool> expected(21);
  for (size_t step = 1; step <= 21; ++step) expected[step - 1] = step <= 10 || step == 20;
  EXPECT_EQ(measured, expected);
}

TEST(MeasuredSteps, OtherStepsOfAGpuHaveNoSpans) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  Config config = tiny_config();
  config.batch = {.micro_batch_size = 1, .global_batch_size = 1};  // an emulated GPU is slow
  config.model.seq_length = 8;
  config.device.kind = DeviceKind::cuda;
  config.train.deterministic_mode = true;
  with_trainers(config, 1, [](Trainer& trainer) {
    trainer.fast_forward(9);
    for (const bool expected : {true, false}) {
      EXPECT_EQ(trainer.measures(trainer.steps_done() + 1), expected);
      trainer.step();
      bool some = false;
      std::vector<Span> spans;
      for (TraceRow& row : trainer.trace().rows()) {
        row.take(spans);
        some |= std::ranges::any_of(spans, [](const Span& span) {
          return span.info.category == Category::compute || span.info.category == Category::phase;
        });
      }
      EXPECT_EQ(some, expected) << trainer.steps_done();
    }
  });
}

// ---- streams and multiprocessors

TEST(GpuShare, CountsStreamsAndGroups) {
  Config config = tiny_config();
  EXPECT_EQ(gpu_share_of(config, 1).streams, 2);
  EXPECT_EQ(gpu_share_of(config, 1).groups, 0);
  overlap_data_parallel(config);
  config.overlap.collectives_in_flight = 3;
  EXPECT_EQ(gpu_share_of(config, 2).streams, 8);
  EXPECT_EQ(gpu_share_of(config, 2).multiprocessors, 7 * 16);
  config.parallel.pipeline_model_parallel_size = 2;
  EXPECT_EQ(gpu_share_of(config, 4).streams, 12);
  EXPECT_EQ(gpu_share_of(config, 4).multiprocessors, 7 * 16 + 4 * 8);
}

TEST(GpuShare, MoreStreamsThanQueuesAreRefusedOrTold) {
  if (cuda_device_count() < 2) GTEST_SKIP() << "needs two GPUs";
  Config config = tiny_config();
  config.device.kind = DeviceKind::cuda;
  overlap_data_parallel(config);
  const auto exchange = [&](CommBackend backend, int lanes) {
    config.comm.backend = backend;
    config.overlap.collectives_in_flight = lanes;
    std::string text;
    try {
      run_thread_ranks(2, [&](Communicator& world) {
        const Backend made = make_backend(config, world, 1);
        if (world.rank() == 0) text = made.exchange_name;
      });
    } catch (const ConfigError& error) {
      return std::string("refused: ") + error.what();
    }
    return text;
  };
  const auto has = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
  EXPECT_FALSE(has(exchange(CommBackend::staged, 13), "may hang"));
  EXPECT_TRUE(has(exchange(CommBackend::staged, 14), "30 streams")) << exchange(CommBackend::staged, 14);
  if (!built_with_nccl()) return;
  const std::string few = exchange(CommBackend::nccl, 1);
  EXPECT_TRUE(has(few, "NCCL: 4 communicators, up to ")) << few;
  const std::string refused = exchange(CommBackend::nccl, 14);
  EXPECT_TRUE(has(refused, "refused: ") && has(refused, "overlap.collectives_in_flight: found 14") &&
              has(refused, "expected 2 fewer"))
      << refused;
}

#ifdef TRIVET_EMULATED_GPU
TEST(GpuShare, CommunicatorsLeaveAQuarterOfTheGpu) {
  if (!built_with_nccl()) GTEST_SKIP() << "needs NCCL";
  emulation::Driver& driver = emulation::driver();
  Config config = tiny_config();
  config.device.kind = DeviceKind::cuda;
  config.comm.backend = CommBackend::nccl;
  overlap_data_parallel(config);
  const int before = driver.multiprocessors;
  // 3 groups of up to 16 CTAs could hold 48 multiprocessors.
  struct {
    int multiprocessors, ctas;
    const char* text;
  } const cases[] = {
      {132, 16, "up to 48 of 132"}, {64, 16, "up to 48 of 64"}, {48, 12, "up to 36 of 48"}, {3, 1, "up to 2 of 3"}};
  for (const auto& c : cases) {
    driver.multiprocessors = c.multiprocessors;
    driver.greatest_ctas = 0;
    run_thread_ranks(2, [&](Communicator& world) {
      const Backend made = make_backend(config, world, 1);
      EXPECT_NE(made.exchange_name.find(c.text), std::string::npos) << made.exchange_name;
    });
    EXPECT_EQ(driver.greatest_ctas, c.ctas) << c.text;
  }
  driver.multiprocessors = before;
}
#endif

// ---- user buffers

Config with_user_buffers(const std::string& backend) {
  Config config = tiny_config();
  config.device.kind = DeviceKind::cuda;
  set_key(config, "comm.backend", backend);
  config.comm.nccl_ub = true;
  config.parallel.data_parallel_sharding_strategy = Sharding::optim;
  overlap_data_parallel(config);
  config.overlap.collectives_in_flight = 2;
  return config;
}

TEST(UserBuffers, AreAllWeightsAndGradientsForEachLane) {
  if (!built_with_nccl() || cuda_device_count() < 2) GTEST_SKIP() << "needs NCCL and two GPUs";
  with_trainers(with_user_buffers("nccl"), 2, [](Trainer& trainer) {
    RankState& state = trainer.state();
    EXPECT_EQ(trainer.data_parallel().grads.registered_bytes(), 2 * state.gradient_arena.bytes());
    EXPECT_EQ(trainer.data_parallel().weights.registered_bytes(), 2 * state.weight_arena.bytes());
    EXPECT_GT(state.weight_arena.bytes(), 0);
  });
}

TEST(UserBuffers, AreRefusedWhereNobodyKnowsThem) {
  const auto refusal = [](const Config& config) -> std::string {
    try {
      with_trainers(config, 2, [](Trainer&) {});
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "";
  };
  Config config = with_user_buffers("auto");
  config.device.kind = DeviceKind::cpu;
  EXPECT_NE(refusal(config).find("comm.nccl_ub: true has no effect where a run computes on CPUs"), std::string::npos);
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU for staged ranks";
  EXPECT_NE(refusal(with_user_buffers("staged")).find("comm.nccl_ub: true registers buffers with NCCL, but the GPUs "),
            std::string::npos);
}

// ---- a step ahead, and non-finite numbers

struct AheadCase {
  const char* name;
  MakeBackend make_backend;
};
void PrintTo(const AheadCase& c, std::ostream* out) { *out << c.name; }

class AStepAhead : public testing::TestWithParam<AheadCase> {};

// The outcome of each of five steps on two ranks, the third with a NaN: "2.345 skipped: why".
std::vector<std::string> five_steps(const Config& config, const MakeBackend& make_backend, bool ahead) {
  std::vector<std::string> events;
  try {
    with_trainers(config, 2,
                  [&](Trainer& trainer) {
                    const auto tell = [&](const StepResult& result) {
                      if (trainer.world().rank() == 0)
                        events.push_back(std::to_string(result.step) + " " + std::to_string(result.loss) + " " +
                                         std::to_string(result.learning_rate) + " " + result.warning);
                    };
                    for (int i = 0; i < 5; ++i) {
                      if (const auto earlier = trainer.queue_step()) tell(*earlier);
                      if (!ahead || i == 4) tell(trainer.finish_step());
                    }
                  },
                  {.make_backend = make_backend}, {"nan:1:3:reduce"});
  } catch (const NumericsError& error) {
    const std::string text = error.what();  // "rank 1: …": whichever rank came first
    events.push_back(text.substr(text.find("step ")));
  }
  return events;
}

TEST_P(AStepAhead, ASkippedStepIsTheSame) {
  Config config = tiny_config();
  config.train.non_finite_policy = StepAction::skip;
  const auto expected = five_steps(config, make_backend, false);
  ASSERT_EQ(expected.size(), 5u) << expected.back();
  EXPECT_NE(expected[2].find("the step is skipped, 1 so far"), std::string::npos) << expected[2];
  EXPECT_NE(expected[2].find("gradients of "), std::string::npos) << expected[2];

  EXPECT_EQ(five_steps(config, GetParam().make_backend, true), expected);
}

TEST_P(AStepAhead, ARunThatStopsNamesTheSameCause) {
  const auto expected = five_steps(tiny_config(), make_backend, false);
  ASSERT_EQ(expected.size(), 3u);
  EXPECT_TRUE(expected[2].starts_with("step 3: ")) << expected[2];

  EXPECT_EQ(five_steps(tiny_config(), GetParam().make_backend, true), expected);
}

INSTANTIATE_TEST_SUITE_P(BackEnds, AStepAhead,
                         testing::Values(AheadCase{"cpu", make_backend}, AheadCase{"device", make_split_backend}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace trivet::test
