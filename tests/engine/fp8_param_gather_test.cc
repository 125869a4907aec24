// precision.fp8_param_gather: data-parallel ranks gather codes, each quantised by its owner with the largest magnitude
// of the whole weight. All numbers of a run must equal those with weights gathered in bf16 and quantised where they are
// used; only traffic and memory differ.
#include <cmath>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <limits>
#include <map>
#include <set>

#include "engine/train/checkpointing.h"
#include "kernels/base/fp8.h"
#include "parallel/comm/world.h"
#include "tests/support/hostile.h"
#include "tests/support/temp_dir.h"
#include "tests/support/training.h"

namespace trivet::test {
namespace {

constexpr int kGatherSteps = std::min(kMatrixSteps, 3);

Config in_fp8(bool llama) {
  Config config = tiny_model(llama);
  config.precision.dtype = DType::bf16;
  config.precision.fp8 = Fp8::hybrid;
  config.batch.global_batch_size = 8;
  return config;
}
Config gathered(Config config) {
  config.precision.fp8_param_gather = true;
  return config;
}

struct GatherCase {
  const char* name;
  Cut cut;
  bool llama = false;
  std::function<void(Config&)> set = [](Config&) {};
  MakeBackend make_backend = make_split_backend;  // streams run as late as their waits allow
};
void PrintTo(const GatherCase& c, std::ostream* out) { *out << c.name; }

class Fp8ParamGather : public testing::TestWithParam<GatherCase> {};

TEST_P(Fp8ParamGather, ChangesNoNumber) {
  const GatherCase& c = GetParam();
  Config config = cut(in_fp8(c.llama), c.cut);
  c.set(config);
  const Curve bf16 = train_on_threads(config, c.cut.ranks(), kGatherSteps, {.make_backend = make_split_backend});
  const Curve fp8 = train_on_threads(gathered(config), c.cut.ranks(), kGatherSteps,
                                     {.poison = true, .make_backend = c.make_backend}, true);
  expect_equal(fp8, bf16);
}

void overlap_three(Config& c) {
  overlap_data_parallel(c);
  c.overlap.collectives_in_flight = 3;
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, Fp8ParamGather,
    testing::Values(GatherCase{"optim", {.d = 2, .strategy = "optim"}},
                    // Some ranks own nothing of a weight, and buckets end within a layer.
                    GatherCase{"small_buckets",
                               {.d = 3, .strategy = "optim"},
                               true,
                               [](Config& c) {
                                 overlap_three(c);
                                 c.parallel.bucket_size = 1;
                                 c.batch.global_batch_size = 6;
                                 c.train.check_weight_hash_across_dp_replicas_interval = 1;
                               }},
                    GatherCase{"tensor_ranks",
                               {.t = 2, .d = 2, .sequence_parallel = true, .strategy = "optim_grads"},
                               false,
                               overlap_data_parallel},
                    GatherCase{"streamed_in_turn", {.d = 2, .strategy = "optim_grads_params"}, true},
                    GatherCase{"streamed_ahead",
                               {.d = 4, .strategy = "optim_grads_params"},
                               false,
                               [](Config& c) {
                                 overlap_three(c);
                                 c.model.recompute_granularity = RecomputeGranularity::full;
                                 c.model.recompute_method = RecomputeMethod::uniform;
                                 c.model.recompute_num_layers = 2;
                               },
                               make_hostile_backend({.seed = 2})},
                    GatherCase{"chunks",
                               {.p = 2, .d = 2, .schedule = "interleaved", .v = 2, .strategy = "optim"},
                               false,
                               [](Config& c) {
                                 overlap_three(c);
                                 c.overlap.align_param_gather = true;
                               }},
                    GatherCase{"context_ranks",
                               {.strategy = "optim_grads_params", .c = 2},
                               false,
                               [](Config& c) {
                                 overlap_data_parallel(c);
                                 c.precision.first_last_layers_bf16 = true;
                               }},
                    GatherCase{"graphs",
                               {.d = 2, .strategy = "optim"},
                               true,
                               [](Config& c) {
                                 overlap_data_parallel(c);
                                 c.device.cuda_graph_impl = CudaGraphs::local;
                                 c.device.kind.reset();  // the tests' device
                               }}),
    [](const auto& info) { return std::string(info.param.name); });

// Megatron-Bridge 3076, and state left by a step: the first step, a refused step, a run resumed from a checkpoint
// written with the key on or off, and an evaluation in each.
TEST(Fp8ParamGatherRuns, GoOnAfterRefusedStepsAndFromCheckpointsOfEither) {
  const TempDir dir;
  Config config = cut(in_fp8(false), {.d = 2, .strategy = "optim"});
  config.train.non_finite_policy = StepAction::skip;
  config.checkpoint.save_interval = 2;
  const auto train = [&](Config run, const std::string& from, const std::string& to) {
    std::vector<double> numbers;
    run.train.run_dir = dir / to;
    std::filesystem::create_directories(run.train.run_dir);
    const Layout layout = resolved(run, 2).layout;
    with_trainers(run, 2,
                  [&](Trainer& trainer) {
                    Checkpointing checkpointing(trainer.config(), layout, trainer, nullptr, {}, now_ns());
                    if (!from.empty())
                      checkpointing.resume({CheckpointStore(dir / from + "/checkpoints").path_of(2)}, false);
                    std::vector<double> mine;
                    while (trainer.steps_done() < 4) {
                      const StepResult step = trainer.step();
                      if (step.step > 2) mine.insert(mine.end(), {step.skipped ? 0 : step.loss, step.grad_norm});
                      if (step.step == 2) checkpointing.after_step({});
                    }
                    mine.push_back(evaluate(trainer, 1));
                    if (trainer.world().rank() == 0) numbers = mine;
                  },
                  {.poison = true}, {"nan:1:3:reduce"});
    return numbers;
  };
  const std::vector<double> bf16 = train(config, "", "bf16"), fp8 = train(gathered(config), "", "fp8");
  ASSERT_EQ(bf16.size(), 5u);
  EXPECT_EQ(bf16[0], 0) << "skipped";
  const auto expect_same = [&](const std::vector<double>& numbers) {
    EXPECT_EQ(std::vector(numbers.begin() + 2, numbers.end()), std::vector(bf16.begin() + 2, bf16.end()));
  };
  expect_same(fp8);
  expect_same(train(gathered(config), "fp8", "fp8 again"));
  expect_same(train(gathered(config), "bf16", "fp8 after bf16"));
  expect_same(train(config, "fp8", "bf16 after fp8"));
}

// pytorch/ao PR 590: a gather meant to run in FP8 ran in bf16, unnoticed. Also, each group reduces scales once per
// step; without the key, the tensor ranks would reduce one for each of 16 weights.
TEST(Fp8ParamGatherRuns, SendAByteForAWeightAndReduceAllScalesAtOnce) {
  const Cut two_by_two{.t = 2, .d = 2, .sequence_parallel = true, .strategy = "optim_grads_params"};
  for (const char* strategy : {"optim", "optim_grads_params"}) {
    Cut how = two_by_two;
    how.strategy = strategy;
    const bool streams = how.strategy == std::string("optim_grads_params");
    int64_t reductions[2] = {};
    for (const bool on : {false, true}) {
      Config config = cut(in_fp8(false), how);
      overlap_data_parallel(config);
      config.precision.fp8_param_gather = on;
      const std::vector<TracedStep> ranks = traced_steps(config, how.ranks());
      for (const std::vector<Span>& row : ranks[0].rows)
        for (const Span& span : row) reductions[on] += span.info.name == std::string("all_reduce");
      // given: the bytes of each bucket's weights
      std::map<int, int64_t> bytes;
      int codes = 0;
      with_trainers(config, how.ranks(), [&](Trainer& trainer) {
        if (trainer.world().rank() != 0) return;
        const FlatBuffer& flat = trainer.state().flat;
        for (size_t i = 0; i < flat.buckets.size(); ++i) {
          bytes[static_cast<int>(i)] = flat.buckets[i].numel() * (flat.buckets[i].quantised ? 1 : 2);
          codes += flat.buckets[i].quantised;
          for (const FlatSegment& segment : flat.segments_of(flat.buckets[i]))
            EXPECT_EQ(flat.buckets[i].quantised, on && segment.param->spec.quantised) << segment.param->spec.name;
        }
      });
      EXPECT_EQ(codes > 0, on);
      // then
      std::set<int> seen;
      for (const Span& span : ranks[0].spans("weights", "all_gather")) {
        EXPECT_EQ(span.info.bytes, bytes[span.info.label.bucket]) << span.info.label.bucket;
        seen.insert(span.info.label.bucket);
      }
      EXPECT_EQ(seen.size(), bytes.size());
    }
    // Without the key, a streamed weight is quantised for each of 4 micro-batches, forward and backward.
    if (streams) EXPECT_LT(reductions[1], reductions[0] - 16);
    else EXPECT_EQ(reductions[1], reductions[0] - 16 + 2);
  }
}

// Uses the planned memory, scratch to its last byte.
TEST(Fp8ParamGatherRuns, TakeWhatWasPlanned) {
  for (const char* strategy : {"optim", "optim_grads_params"}) {
    const Config config = gathered(cut(in_fp8(false), {.d = 2, .strategy = strategy}));
    const Layout layout = resolved(config, 2).layout;
    with_trainers(config, 2, [&](Trainer& trainer) {
      trainer.step();
      EXPECT_EQ(trainer.state().memory().items, plan_memory(trainer.config(), layout, trainer.mesh().at).items);
      EXPECT_EQ(trainer.state().scratch.high_water(), trainer.state().scratch.capacity()) << strategy;
    });
  }
}

TEST(Fp8ParamGatherRuns, CompareCodesOverReplicas) {
  Config config = gathered(cut(in_fp8(false), {.d = 3, .strategy = "optim"}));
  config.batch.global_batch_size = 6;
  with_trainers(config, 3, [&](Trainer& trainer) {
    trainer.check_replicas();
    const QuantisedShard& shard = trainer.state().flat.quantised[5];
    if (trainer.world().rank() == 1) static_cast<uint8_t*>(shard.param->fp8.data)[7] ^= 1;
    try {
      trainer.check_replicas();
      ADD_FAILURE() << "a code of one rank is another";
    } catch (const NumericsError& error) {
      EXPECT_NE(std::string(error.what()).find("the weight " + shard.param->spec.name + " of rank 1 differs"),
                std::string::npos)
          << error.what();
    }
  });
}

// The scale is that of the whole weight, whichever of 2 x 3 ranks owns its largest number; with an infinity, all codes
// are those of scale 1.
TEST(Fp8ParamGatherCodes, AreThoseOfTheWholeWeight) {
  constexpr int kTensor = 2, kData = 3;
  constexpr int64_t kRows = 12, kColumns = 40;
  constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
  for (const float outlier : {300.0f, -1e-38f, kInfinity, kNan})
    for (int64_t place = 5; place < kTensor * kRows * kColumns; place += 187) {
      const auto value = [&](int64_t at) {  // of an element of the whole weight
        const float usual = std::isfinite(outlier) && std::abs(outlier) < 1 ? 1e-41f : 0.01f;
        return bf16(at == place ? outlier : usual * static_cast<float>(std::sin(static_cast<double>(at))));
      };
      float amax = 0;
      for (int64_t at = 0; at < kTensor * kRows * kColumns; ++at) {
        const float magnitude = std::abs(static_cast<float>(value(at)));
        amax = magnitude > amax || std::isnan(magnitude) ? magnitude : amax;
        if (std::isnan(amax)) break;
      }
      const float scale = E4m3::scale_for(std::isnan(amax) ? kInfinity : amax);
      run_thread_ranks(kTensor * kData, [&](Communicator& world) {
        const int t = world.rank() % kTensor, d = world.rank() / kTensor;
        const auto tensor = world.split({2 * d, 2 * d + 1}, "tensor", comm_of("tensor"));
        const auto data = world.split({t, t + 2, t + 4}, "data", comm_of("data"));
        const auto device = create_cpu_device();
        const auto ops = create_cpu_ops(1);
        const auto compute = device->create_compute_stream();
        ParamList params({{Axis::tp, kTensor}}, {{Axis::tp, t}});
        params.begin_unit(0);
        for (const char* name : {"weight", "small"}) {
          const bool small = name == std::string("small");
          params.declare({.name = name,
                          .global_shape = {small ? 2 : kTensor * kRows, small ? 3 : kColumns},
                          .placement = {{Axis::tp, partitioned(0)}},
                          .quantised = true});
        }
        params.declare({.name = "norm", .global_shape = {kColumns}});
        Arena weights(*device, "weights"), gradients(*device, "gradients");
        FlatBuffer flat(params,
                        {.dtype = DType::bf16,
                         .bucket_size = 1 << 20,
                         .sharding = Sharding::optim,
                         .rank = d,
                         .ranks = kData,
                         .gathers_fp8 = true},
                        weights, gradients);
        flat.initialize(
            [&](const Param& param) {
              for (int64_t i = 0; i < param.weight.numel(); ++i)
                param.weight.as<bf16>()[i] = value(t * kRows * kColumns + i);
            },
            *ops, *compute);
        ParamGather gather(flat, *ops, {*device, *compute, *data}, {.poison = true, .tensor = tensor.get()});
        gather.updated();
        gather.finish();
        compute->synchronize();
        const Param& param = params.all().front();
        EXPECT_EQ(param.fp8_scale.as<float>()[0], 1 / scale) << outlier;
        EXPECT_EQ(param.weight.data, nullptr);
        EXPECT_TRUE(param.fp8_is_current);
        const auto* const codes = static_cast<const uint8_t*>(param.fp8.data);
        for (int64_t i = 0, wrong = 0; i < kRows * kColumns && wrong == 0; ++i) {
          const uint8_t expected = E4m3::encode(static_cast<float>(value(t * kRows * kColumns + i)) * scale);
          wrong += codes[i] != expected;
          EXPECT_EQ(codes[i], expected) << outlier << " at " << place << ", " << i << " of rank " << world.rank();
        }
        EXPECT_EQ(params.all().back().weight.as<bf16>()[3].bits, value(t * kRows * kColumns + 3).bits);
      });
    }
}

}  // namespace
}  // namespace trivet::test
