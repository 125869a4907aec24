// The headline test: every parallel layout reproduces one rank's loss curve. Bitwise where the order of additions is
// unchanged (pipeline schedules with untied embeddings, overlap switches, bucket sizes), else within 2e-5 relative.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/support/message_of.h"
#include "tests/support/training.h"

namespace trivet::test {
namespace {

constexpr int kSteps = std::min(kMatrixSteps, 4);

const Curve& one_rank(bool tied) {
  static const Curve curves[2] = {[] {
                                    Config config = tiny_config();
                                    config.model.untie_embeddings_and_output_weights = true;
                                    return train_on_threads(config, 1, kSteps);
                                  }(),
                                  train_on_threads(tiny_config(), 1, kSteps)};
  return curves[tied];
}

const Curve& one_llama() {
  static const Curve curve = train_on_threads(tiny_model(true), 1, kSteps);
  return curve;
}

TEST(Layouts, OneRankLearns) {
  for (const bool llama : {false, true}) {
    const Curve curve = train_on_threads(tiny_model(llama), 1, 10);
    EXPECT_NEAR(curve.losses.front(), std::log(61.0), 0.1);
    EXPECT_LT(curve.losses.back(), curve.losses.front() - 0.3);
  }
}

// ---- models: mixtures of components

class Mixture : public testing::TestWithParam<LayoutCase> {};

TEST_P(Mixture, HasTheLossesOfOneRank) {
  // given: a modified Llama or GPT, whose modification has an effect
  Config config = config_of({.name = "", .set = GetParam().set});
  const Curve reference = train_on_threads(config, 1, kSteps);
  EXPECT_NE(reference.losses, one_rank(true).losses);
  EXPECT_NE(reference.losses, one_llama().losses);
  // then
  expect_near(train_on_threads(config_of(GetParam()), 8, kSteps, true), reference);
  const Cut zero_bubble{.t = 2, .p = 2, .sequence_parallel = true, .schedule = "zb-h1", .strategy = "no_shard"};
  expect_near(train_on_threads(cut(config, zero_bubble), 4, kSteps, true), reference);
}

constexpr Cut kEight{.t = 2, .p = 2, .d = 2, .sequence_parallel = true, .strategy = "optim"};
// A Llama, or a GPT, with a few keys changed.
LayoutCase mixture(const char* name, bool llama, std::vector<std::pair<const char*, const char*>> keys) {
  return {name, kEight, [=](Config& c) {
            if (llama) as_llama(c);
            for (const auto& [key, value] : keys) set_key(c, std::string("model.") + key, value);
          }};
}

INSTANTIATE_TEST_SUITE_P(
    Models, Mixture,
    testing::Values(mixture("layernorm_and_rope", true, {{"normalization", "LayerNorm"}}),
                    mixture("learned_positions", true, {{"position_embedding_type", "learned_absolute"}}),
                    mixture("gelu_and_groups", true, {{"swiglu", "false"}}),
                    mixture("biases", true, {{"add_bias_linear", "true"}}),
                    mixture("qkv_bias", true, {{"add_qkv_bias", "true"}}),
                    mixture("tied", true, {{"untie_embeddings_and_output_weights", "false"}}),
                    mixture("dropout", true, {{"hidden_dropout", "0.1"}, {"attention_dropout", "0.1"}}),
                    mixture("part_of_a_head", true, {{"rotary_percent", "0.5"}, {"rotary_base", "100"}}),
                    mixture("scaled", true,
                            {{"use_rope_scaling", "true"},
                             {"rope_scaling_factor", "2"},
                             {"rope_scaling_original_max_position_embeddings", "16"}}),
                    mixture("norms_of_heads", true, {{"qk_layernorm", "true"}}),
                    mixture("layernorms_of_heads", true, {{"qk_layernorm", "true"}, {"normalization", "LayerNorm"}}),
                    mixture("gpt_with_norms_of_heads", false, {{"qk_layernorm", "true"}, {"num_query_groups", "2"}}),
                    mixture("gpt_with_rmsnorm", false, {{"normalization", "RMSNorm"}}),
                    mixture("gpt_with_groups", false, {{"num_query_groups", "2"}}),
                    mixture("gpt_with_wide_heads", false, {{"kv_channels", "12"}}),
                    mixture("gpt_with_swiglu", false, {{"swiglu", "true"}})),
    [](const auto& info) { return info.param.name; });

// Each rank owns some of the heads, so its norm gradients are partial sums even if it holds all positions.
TEST(Mixture, NormsOfHeadsAreSummedOverTheTensorGroup) {
  for (const Norm norm : {Norm::rmsnorm, Norm::layernorm}) {
    Config config = tiny_config();
    as_qwen3(config);
    config.model.normalization = norm;
    // Norm gradients are small compared with those of matrices; Adam's learning rate is the same for all.
    const Curve reference = train_on_threads(config, 1, kSteps);
    for (const bool sequence_parallel : {false, true})
      for (const int t : {2, 4}) {
        const Config of_ranks = cut(config, {.t = t, .sequence_parallel = sequence_parallel});
        expect_near(train_on_threads(of_ranks, t, kSteps), reference);
        with_trainers(of_ranks, t, [](Trainer& trainer) {
          size_t norms = 0;
          for (const Param& param : trainer.state().params.all())
            if (param.spec.name.find("k_layernorm") != std::string::npos) {
              EXPECT_TRUE(param.summed_over.has(Axis::tp)) << param.spec.name;
              ++norms;
            }
          EXPECT_GE(norms, 4u);
        });
      }
  }
}

// A query group is on one rank, so a single group rules out tensor parallelism.
TEST(Mixture, OneHeadOfKeysAndValues) {
  Config config = tiny_model(true);
  config.model.num_query_groups = 1;
  const Curve reference = train_on_threads(config, 1, kSteps);
  expect_near(train_on_threads(cut(config, {.p = 2, .d = 2, .strategy = "optim_grads_params"}), 4, kSteps, true),
              reference);
  EXPECT_EQ(message_of<ConfigError>([&] { resolved(cut(config, {.t = 2}), 2); }),
            "test: parallel.tensor_model_parallel_size: 2 does not divide num_query_groups (1): a head of keys and "
            "values is on one rank, with the attention heads that share it; 1 would work");
}

// ---- tensor and data parallel

struct TensorData {
  int t;
  bool sequence_parallel;
  int d;
  bool llama = false;
};

class TensorDataLayout : public testing::TestWithParam<TensorData> {};

TEST_P(TensorDataLayout, HasTheLossesOfOneRank) {
  const auto [t, sequence_parallel, d, llama] = GetParam();
  const Config config = cut(tiny_model(llama), {.t = t, .sequence_parallel = sequence_parallel});
  const Curve curve = train_on_threads(config, t * d, kSteps);
  expect_near(curve, llama ? one_llama() : one_rank(true));
  const Curve again = train_on_threads(config, t * d, kSteps);
  expect_equal(again, curve);
  EXPECT_EQ(again.weights_hash, curve.weights_hash);
}

INSTANTIATE_TEST_SUITE_P(Matrix, TensorDataLayout,
                         testing::ValuesIn(with_llama<TensorData>({{1, false, 1},
                                                                   {1, false, 2},
                                                                   {1, false, 4},
                                                                   {2, false, 1},
                                                                   {2, false, 2},
                                                                   {2, false, 4},
                                                                   {2, true, 1},
                                                                   {2, true, 2},
                                                                   {2, true, 4},
                                                                   {4, false, 1},
                                                                   {4, false, 2},
                                                                   {4, true, 1},
                                                                   {4, true, 2}})),
                         [](const auto& info) {
                           return fmt::format("t{}{}_d{}{}", info.param.t, info.param.sequence_parallel ? "_sp" : "",
                                              info.param.d, info.param.llama ? "_llama" : "");
                         });

TEST(Layouts, DropoutIsTheSameUnderEveryLayout) {
  Config config = tiny_config();
  config.model.hidden_dropout = 0.1;
  config.model.attention_dropout = 0.1;
  const Curve reference = train_on_threads(config, 1, kSteps);
  EXPECT_GT(std::abs(reference.losses[1] - one_rank(true).losses[1]), 1e-4) << "dropout does something";
  config.parallel.tensor_model_parallel_size = 2;
  expect_near(train_on_threads(config, 4, kSteps), reference);
  config.parallel.sequence_parallel = true;
  expect_near(train_on_threads(config, 4, kSteps), reference);
}

// So do layouts that leave a rank fewer threads.
TEST(Layouts, ThreadsChangeNoBit) {
  for (const bool llama : {false, true})
    for (const DType dtype : {DType::f32, DType::bf16}) {
      Config config = tiny_model(llama);
      config.precision.dtype = dtype;
      config.model.hidden_dropout = 0.1;
      const Curve reference = train_on_threads(config, 1, kSteps);
      for (const int threads : {2, 3}) {
        config.device.threads_per_rank = threads;
        const Curve curve = train_on_threads(config, 1, kSteps);
        expect_equal(curve, reference, std::to_string(threads));
        EXPECT_EQ(curve.weights_hash, reference.weights_hash);
      }
    }
}

TEST(Layouts, BucketSizeAndBatchCutsChangeNothing) {
  Config config = tiny_config();
  const Curve reference = train_on_threads(config, 2, kSteps);
  for (const int64_t bucket_size : {1, 1000, 7777}) {
    config.parallel.bucket_size = bucket_size;
    const Curve curve = train_on_threads(config, 2, kSteps);
    expect_equal(curve, reference);
    EXPECT_EQ(curve.weights_hash, reference.weights_hash);
  }
  config.batch.micro_batch_size = 4;  // other micro-batches: the same samples, summed in another order
  expect_near(train_on_threads(config, 1, kSteps), one_rank(true));
}

// Three steps of 4 samples, then steps of 8: each part has its own pipeline schedule.
TEST(Layouts, HaveTheLossesOfOneRankWhileTheBatchGrows) {
  Config config = tiny_config();
  config.model.untie_embeddings_and_output_weights = true;
  config.optimizer.lr_warmup_iters = 0;
  config.optimizer.lr_decay_iters.reset();
  config.optimizer.lr_warmup_samples = 8;
  config.train.train_iters = 0;
  config.train.train_samples = 36;
  config.batch.rampup_batch_size = std::vector<int64_t>{4, 4, 12};
  const Curve reference = train_on_threads(config, 1, 6);
  EXPECT_NE(reference.losses[0], one_rank(false).losses[0]) << "the first batch is smaller";
  for (const Cut& how : {Cut{.p = 2}, Cut{.p = 2, .schedule = "gpipe"}, Cut{.p = 2, .schedule = "zb-h1"},
                         Cut{.p = 2, .schedule = "zb-v"}, Cut{.p = 2, .schedule = "interleaved", .v = 2}})
    expect_equal(train_on_threads(cut(config, how), 2, 6, true), reference, how.schedule);
  for (const char* strategy : {"no_shard", "optim", "optim_grads", "optim_grads_params"}) {
    Config overlapped = cut(config, {.d = 2, .strategy = strategy});
    overlapped.overlap.overlap_grad_reduce = true;
    expect_near(train_on_threads(overlapped, 2, 6, true), reference, strategy);
  }
  expect_near(train_on_threads(cut(config, {.t = 2, .p = 2, .d = 2, .sequence_parallel = true}), 8, 6), reference);
  config.batch.rampup_batch_size.reset();
  config.batch.step_batch_size_schedule = "0:4 192:8";  // tokens
  expect_equal(train_on_threads(config, 1, 6), reference);
}

// Fewer micro-batches do not always need less memory: interleaved, three pass through two chunks as one group of three,
// but four as groups of two.
TEST(Layouts, HaveTheLossesOfOneRankWhereASmallerBatchNeedsMoreRoom) {
  Config config = tiny_config();
  config.model.untie_embeddings_and_output_weights = true;
  config.batch.micro_batch_size = 1;
  config.batch.global_batch_size = 4;
  config.batch.rampup_batch_size = std::vector<int64_t>{3, 1, 6};
  config.optimizer.lr_warmup_iters = 0;
  config.optimizer.lr_decay_iters.reset();
  config.train.train_iters = 0;
  config.train.train_samples = 18;
  expect_equal(train_on_threads(cut(config, {.p = 2, .schedule = "interleaved", .v = 2}), 2, 5),
               train_on_threads(config, 1, 5));
}

// A batch that shrinks, through odd numbers of micro-batches: 4, 3, 3 and 1 of two samples.
TEST(Layouts, HaveTheLossesOfOneRankWhileTheBatchShrinks) {
  Config config = tiny_config();
  config.model.untie_embeddings_and_output_weights = true;
  config.model.hidden_dropout = 0.1;
  config.optimizer.lr_warmup_iters = 0;
  config.optimizer.lr_decay_iters.reset();
  config.optimizer.lr_warmup_samples = 8;
  config.train.train_iters = 0;
  config.train.train_samples = 24;
  config.batch.step_batch_size_schedule = "0:8 128:6 320:2";  // tokens
  const auto batches = [](const Config& run, int ranks) {
    std::vector<int64_t> samples;
    with_trainers(run, ranks, [&](Trainer& trainer) {
      for (int i = 0; i < 5; ++i)
        if (const int64_t n = trainer.step().samples; trainer.world().rank() == 0) samples.push_back(n);
    });
    return samples;
  };
  EXPECT_EQ(batches(config, 1), (std::vector<int64_t>{8, 6, 6, 2, 2}));
  const Curve reference = train_on_threads(config, 1, 5);
  for (const Cut& how : {Cut{.p = 2}, Cut{.p = 2, .schedule = "zb-v"}})
    expect_equal(train_on_threads(cut(config, how), 2, 5, true), reference, how.schedule);
  config.batch.micro_batch_size = 1;
  const Curve by_one = train_on_threads(config, 1, 5);
  for (const char* strategy : {"optim", "optim_grads_params"}) {
    Config overlapped = cut(config, {.d = 2, .strategy = strategy});
    overlap_data_parallel(overlapped);
    overlapped.overlap.collectives_in_flight = 2;
    expect_near(train_on_threads(overlapped, 2, 5, true), by_one, strategy);
  }
}

// With every instruction set that this machine supports, not only with the best one.
TEST(Layouts, HaveTheLossesOfOneRankUnderEachCpuIsa) {
  for (const CpuIsa isa : usable_cpu_isas())
    for (const DType dtype : {DType::f32, DType::bf16}) {
      SCOPED_TRACE(fmt::format("{} {}", name_of(isa), name_of(dtype)));
      Config config = tiny_config();
      config.device.cpu_isa = isa;
      config.precision.dtype = dtype;
      config.model.untie_embeddings_and_output_weights = true;
      const Curve reference = train_on_threads(config, 1, kSteps);
      expect_equal(train_on_threads(cut(config, {.p = 2, .schedule = "zb-h1"}), 2, kSteps), reference);
      if (dtype == DType::bf16) continue;
      expect_near(reference, one_rank(false));
      expect_near(train_on_threads(cut(config, {.t = 2, .d = 2, .sequence_parallel = true}), 4, kSteps), reference);
    }
}

TEST(Layouts, ACpuIsaThatThisMachineOrBuildLacksIsRefused) {
  for (size_t i = 0; i < kCpuIsaNames.size(); ++i) {
    Config config = tiny_config();
    config.device.cpu_isa = static_cast<CpuIsa>(i);
    if (cpu_isa_problem(*config.device.cpu_isa).empty()) continue;
    const std::string message = message_of<Error>([&] { train_on_threads(config, 2, 1); });
    EXPECT_NE(message.find(fmt::format("device.cpu_isa: found {}, but this ", kCpuIsaNames[i])), std::string::npos)
        << message;
  }
}

// An emulated link changes when things arrive, never what.
TEST(Layouts, LinksChangeNothing) {
  for (const Cut& c :
       {Cut{.t = 2, .d = 2, .sequence_parallel = true}, Cut{.p = 2, .d = 2}, Cut{.p = 2, .schedule = "zb-v"},
        Cut{.t = 2, .p = 2, .sequence_parallel = true, .schedule = "interleaved", .v = 2}}) {
    Config config = cut(tiny_config(), c);
    const Curve reference = train_on_threads(config, c.ranks(), 3);
    config.comm.link_latency_us = 20;
    config.comm.link_gbps = 4;
    config.comm.links[class_of(comm_of("pipeline"))].gbps = 0.5;
    const Curve linked = train_on_threads(config, c.ranks(), 3, true);
    expect_equal(linked, reference);
    EXPECT_EQ(linked.weights_hash, reference.weights_hash);
  }
}

// ---- tensor overlap

struct TensorOverlapCase {
  int t;
  const char* mode;
  const char* dtype = "fp32";
  const char* schedule = "1f1b";
  int p = 1;
  bool llama = false;
};

class TensorOverlapLayout : public testing::TestWithParam<TensorOverlapCase> {};

// A GEMM's rows are independent of each other, and sums are taken in rank order however the parts arrive.
TEST_P(TensorOverlapLayout, ChangesNoNumber) {
  const TensorOverlapCase& c = GetParam();
  Config config = cut(tiny_model(c.llama), {.t = c.t, .p = c.p, .sequence_parallel = true, .schedule = c.schedule});
  set_key(config, "precision.dtype", c.dtype);
  const Curve reference = train_on_threads(config, c.t * c.p, kSteps);
  set_key(config, "overlap.tp_comm_overlap", c.mode);
  const Curve curve = train_on_threads(config, c.t * c.p, kSteps);
  if (std::string(c.dtype) == "bf16" && c.t > 2 && std::string(c.mode) == "ring") {
    for (size_t i = 0; i < curve.losses.size(); ++i) EXPECT_NEAR(curve.losses[i], reference.losses[i], 0.01);
  } else {
    expect_equal(curve, reference);
    EXPECT_EQ(curve.weights_hash, reference.weights_hash);
  }
}

INSTANTIATE_TEST_SUITE_P(Matrix, TensorOverlapLayout,
                         testing::ValuesIn(with_llama<TensorOverlapCase>({{2, "bulk"},
                                                                          {2, "ring"},
                                                                          {2, "pipeline"},
                                                                          {4, "bulk"},
                                                                          {4, "ring"},
                                                                          {4, "pipeline"},
                                                                          {2, "ring", "bf16"},
                                                                          {4, "ring", "bf16"},
                                                                          {4, "pipeline", "bf16"},
                                                                          {2, "ring", "fp32", "zb-h1", 2},
                                                                          {2, "pipeline", "fp32", "zb-v", 2}})),
                         [](const auto& info) {
                           const TensorOverlapCase& c = info.param;
                           std::string name =
                               fmt::format("t{}_{}_{}_{}{}", c.t, c.mode, c.dtype, c.schedule, c.llama ? "_llama" : "");
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(TensorOverlap, IsChosenForEachLinear) {
  Config config = tiny_config();
  config.parallel.tensor_model_parallel_size = 2;
  config.parallel.sequence_parallel = true;
  const Curve reference = train_on_threads(config, 2, kSteps);
  config.overlap.tp_comm_overlap = TensorOverlap::pipeline;
  config.overlap.tp_comm_overlap_qkv = TensorOverlap::ring;
  config.overlap.tp_comm_overlap_fc1 = TensorOverlap::bulk;
  config.overlap.tp_comm_overlap_fc2 = TensorOverlap::none;
  expect_equal(train_on_threads(config, 2, kSteps), reference);
}

// ---- deferred gradients of the output weight

TEST(Layouts, DeferredHeadsChangeNothing) {
  for (const bool tied : {false, true})
    for (const char* schedule : {"1f1b", "zb-h1", "zb-v"}) {
      Config config = tiny_config();
      config.model.untie_embeddings_and_output_weights = !tied;
      config.parallel.pipeline_model_parallel_size = 2;
      config.parallel.pipeline_schedule = schedule;
      config.parallel.data_parallel_sharding_strategy = Sharding::optim;
      config.overlap.overlap_grad_reduce = true;
      config.batch.global_batch_size = 16;  // four micro-batches
      const Curve reference = train_on_threads(config, 4, kSteps);
      config.overlap.defer_embedding_wgrad_compute = true;
      for (const int64_t limit : {0, 1, 3}) {
        config.overlap.wgrad_deferral_limit = limit;
        const Curve curve = train_on_threads(config, 4, kSteps, true);
        // zb-v with tied embeddings: the embedding adds to the same gradient on the same rank, now before the head.
        if (tied && std::string(schedule) == "zb-v") expect_near(curve, reference);
        else expect_equal(curve, reference);
      }
    }
}

// ---- activation recompute

struct RecomputeCase {
  const char* granularity;
  const char* modules = "core_attn";
  const char* method = "none";
  int layers = 0;
  const char* schedule = "1f1b";
  int p = 1, t = 1;
  bool llama = false;
};

class RecomputeLayout : public testing::TestWithParam<RecomputeCase> {};

Config with_recompute(Config config, const RecomputeCase& c) {
  set_key(config, "model.recompute_granularity", c.granularity);
  set_key(config, "model.recompute_modules", c.modules);
  set_key(config, "model.recompute_method", c.method);
  config.model.recompute_num_layers = c.layers;
  return config;
}

TEST_P(RecomputeLayout, ChangesNoNumber) {
  const RecomputeCase& c = GetParam();
  for (const bool dropout : {false, true}) {
    Config config =
        cut(tiny_model(c.llama), {.t = c.t, .p = c.p, .sequence_parallel = c.t > 1, .schedule = c.schedule});
    config.model.num_layers = 8;
    config.model.hidden_dropout = config.model.attention_dropout = dropout ? 0.1 : 0;
    const Curve kept = train_on_threads(config, c.p * c.t, 4);
    // Poisoned: what is not recomputed is NaN.
    const Curve curve = train_on_threads(with_recompute(config, c), c.p * c.t, 4, true);
    expect_equal(curve, kept);
    EXPECT_EQ(curve.weights_hash, kept.weights_hash);
  }
}

TEST(Recompute, OfNormsOfHeadsChangesNoNumber) {
  for (const RecomputeCase& c :
       {RecomputeCase{"selective"}, RecomputeCase{"selective", "layernorm"},
        RecomputeCase{"selective", "core_attn,layernorm,mlp", "none", 0, "zb-h2", 2, 2},
        RecomputeCase{"full", "core_attn", "uniform", 2, "zb-h1", 2}, RecomputeCase{"full", "core_attn", "block", 3}}) {
    Config config = cut(tiny_config(), {.t = c.t, .p = c.p, .sequence_parallel = c.t > 1, .schedule = c.schedule});
    as_qwen3(config);
    const Curve kept = train_on_threads(config, c.p * c.t, 4);
    const Curve curve = train_on_threads(with_recompute(config, c), c.p * c.t, 4, true);
    expect_equal(curve, kept, c.modules);
    EXPECT_EQ(curve.weights_hash, kept.weights_hash);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Matrix, RecomputeLayout,
    testing::ValuesIn(sampled(with_llama<RecomputeCase>(
        {RecomputeCase{"selective"}, RecomputeCase{"selective", "layernorm"}, RecomputeCase{"selective", "mlp"},
         RecomputeCase{"selective", "core_attn, layernorm, mlp"}, RecomputeCase{"full", "core_attn", "uniform", 1},
         RecomputeCase{"full", "core_attn", "uniform", 3}, RecomputeCase{"full", "core_attn", "uniform", 8},
         RecomputeCase{"full", "core_attn", "block", 5}, RecomputeCase{"full", "core_attn", "uniform", 2, "1f1b", 2, 2},
         RecomputeCase{"full", "core_attn", "block", 1, "interleaved", 2},
         RecomputeCase{"full", "core_attn", "uniform", 2, "zb-h1", 2},
         RecomputeCase{"full", "core_attn", "block", 1, "zb-v", 2, 2},
         RecomputeCase{"selective", "core_attn,layernorm,mlp", "none", 0, "zb-h2", 2, 2}}))),
    [](const auto& info) {
      const RecomputeCase& c = info.param;
      std::string name = fmt::format("{}_{}_{}_{}_{}_p{}_t{}{}", c.granularity, c.modules, c.method, c.layers,
                                     c.schedule, c.p, c.t, c.llama ? "_llama" : "");
      std::erase_if(name, [](char letter) { return letter == ' '; });
      std::replace_if(
          name.begin(), name.end(), [](char letter) { return letter == '-' || letter == ','; }, '_');
      return name;
    });

// ---- pipeline

struct PipelineCase {
  std::string schedule;
  int p, v, global_batch;
  int t = 1, d = 1;
  bool tied = false, llama = false;
};

void PrintTo(const PipelineCase& c, std::ostream* out) { *out << c.schedule << " p " << c.p << " v " << c.v; }

class PipelineLayout : public testing::TestWithParam<PipelineCase> {};

Config uncut(const PipelineCase& c) {
  Config config = tiny_model(c.llama);
  // Several layers per chunk with a Llama; with a GPT, one per chunk if that makes at least four layers.
  config.model.num_layers = c.llama ? (c.v == 3 ? 12 : 8) : std::max(c.p * c.v, c.v == 3 ? 6 : 4);
  config.model.untie_embeddings_and_output_weights = !c.tied;
  config.batch.global_batch_size = c.global_batch;
  return config;
}

TEST_P(PipelineLayout, HasTheLossesOfOneRank) {
  const PipelineCase& c = GetParam();
  const int ranks = c.p * c.t * c.d;
  const Curve reference = train_on_threads(uncut(c), 1, kSteps);
  const bool same_order = !c.tied && c.t == 1 && c.d == 1;
  Config config = cut(uncut(c), {c.t, c.p, c.d, c.t > 1, c.schedule.c_str(), c.v});
  // Poisoned slots: reading an expired activation returns NaN.
  const Curve curve = train_on_threads(config, ranks, kSteps, true);
  if (same_order) expect_equal(curve, reference);
  else expect_near(curve, reference);
  // Overlap changes time, never numbers: one switch with a GPT, the other with the Llama of the same schedule.
  if (c.p > 1) {
    if (c.llama) config.overlap.overlap_p2p_comm = false;
    else config.overlap.p2p_receive_ahead = 4;
    expect_equal(train_on_threads(config, ranks, kSteps), curve);
  }
}

std::vector<PipelineCase> pipeline_cases() {
  std::vector<PipelineCase> cases;
  for (const char* kind : {"gpipe", "1f1b", "1f1b-eager", "zb-h1", "zb-h2"})
    for (const int p : {1, 2, 4})
      for (const int micro_batches : {1, 3, 8}) cases.push_back({kind, p, 1, 2 * micro_batches});
  for (const char* kind : {"interleaved", "interleaved-bfs"})
    for (const int p : {2, 4})
      for (const int v : {2, 3})
        for (const int micro_batches : {4, 8}) cases.push_back({kind, p, v, 2 * micro_batches});
  // m not a multiple of p, or below p
  cases.push_back({"interleaved", 2, 2, 2 * 5});
  cases.push_back({"interleaved", 4, 3, 2 * 6});
  cases.push_back({"interleaved-bfs", 4, 2, 2 * 6});
  cases.push_back({"interleaved-bfs", 4, 3, 2 * 3});
  cases.push_back({"interleaved-bfs", 2, 3, 2 * 1});
  cases.push_back({"interleaved-bfs", 1, 2, 2 * 3});
  cases.push_back({"interleaved", 1, 3, 2 * 4});
  for (const int p : {1, 2, 4})
    for (const int micro_batches : {1, 4, 7, 8}) cases.push_back({"zb-v", p, 2, 2 * micro_batches});
  for (const int p : {1, 2, 4}) cases.push_back({"dualpipe-v", p, 2, 2 * 8});
  // with tied embeddings, tensor and data parallelism
  cases.push_back({"1f1b", 2, 1, 8, 1, 1, true});
  cases.push_back({"1f1b", 4, 1, 8, 1, 1, true});
  cases.push_back({"interleaved", 2, 2, 8, 1, 1, true});
  cases.push_back({"zb-v", 2, 2, 8, 1, 1, true});
  for (const char* kind : {"gpipe", "1f1b", "1f1b-eager", "zb-h1", "zb-h2", "interleaved", "interleaved-bfs", "zb-v"}) {
    const int v = kind[0] == 'i' || std::string(kind) == "zb-v" ? 2 : 1;
    cases.push_back({kind, 2, v, 8, 2, 1, false});
    cases.push_back({kind, 2, v, 16, 1, 2, false});
    cases.push_back({kind, 2, v, 16, 2, 2, true});
  }
  return sampled(with_llama(cases));
}

INSTANTIATE_TEST_SUITE_P(Matrix, PipelineLayout, testing::ValuesIn(pipeline_cases()), [](const auto& info) {
  const PipelineCase& c = info.param;
  std::string name = fmt::format("{}_p{}_v{}_m{}_t{}_d{}{}{}", c.schedule, c.p, c.v, c.global_batch / 2 / c.d, c.t, c.d,
                                 c.tied ? "_tied" : "", c.llama ? "_llama" : "");
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

}  // namespace
}  // namespace trivet::test
