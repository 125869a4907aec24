// Data-parallel sharding and its overlap: every strategy gives the losses of one rank and, if sums are taken in the
// same order, the same bits. All runs are poisoned: weights that are not yet gathered are NaN.
#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <map>

#include "engine/train/rank_state.h"
#include "tests/support/training.h"

namespace trivet::test {
namespace {

constexpr int kShardingSteps = std::min(kMatrixSteps, 4);

constexpr const char* kStrategies[] = {"no_shard", "optim", "optim_grads", "optim_grads_params"};

struct Case {
  int t = 1, p = 1, d = 2, v = 1;
  int micro_batches = 2;
  bool tied = true;
  const char* schedule = "1f1b";
  const char* dtype = "fp32";
  bool llama = false;
  int ranks() const { return t * p * d; }
};

std::string name_of_case(const Case& c) {
  std::string name = fmt::format("t{}_p{}_d{}_v{}_m{}_{}_{}{}{}", c.t, c.p, c.d, c.v, c.micro_batches, c.schedule,
                                 c.dtype, c.tied ? "_tied" : "", c.llama ? "_llama" : "");
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

Config config_of(const Case& c, const char* strategy) {
  Config config = cut(tiny_model(c.llama), {c.t, c.p, c.d, c.t > 1, c.schedule, c.v, strategy});
  config.model.untie_embeddings_and_output_weights = !c.tied;
  config.batch.global_batch_size = config.batch.micro_batch_size * c.d * c.micro_batches;
  set_key(config, "precision.dtype", c.dtype);
  return config;
}

class ShardingLayout : public testing::TestWithParam<Case> {};

TEST_P(ShardingLayout, HasTheLossesOfOneRank) {
  const Case& c = GetParam();
  Case alone = c;
  alone.t = alone.p = alone.d = alone.v = 1;
  alone.schedule = "1f1b";
  alone.micro_batches = c.micro_batches * c.d;
  const Curve one_rank = train_on_threads(config_of(alone, "no_shard"), 1, kShardingSteps);
  const bool fp32 = std::string(c.dtype) == "fp32";
  Curve no_shard;
  for (const std::string strategy : kStrategies) {
    if (strategy.starts_with("optim_grads") && std::string(c.schedule).starts_with("zb")) continue;  // refused
    Config config = config_of(c, strategy.c_str());
    const Curve curve = train_on_threads(config, c.ranks(), kShardingSteps, true);
    if (fp32) expect_near(curve, one_rank, strategy);
    if (strategy == "no_shard") no_shard = curve;
    // Under the last two strategies, gradients are summed over ranks before they are summed over micro-batches.
    if (strategy == "optim" || c.micro_batches == 1) expect_equal(curve, no_shard, strategy);
    if (strategy == "optim") {
      EXPECT_EQ(curve.weights_hash, no_shard.weights_hash);
    }
    if (c.d == 1) continue;
    // Overlap changes time, never numbers: both switches together, and one with a GPT, the other with a Llama.
    OverlapConfig& overlap = config.overlap;
    const bool sharded = strategy != "no_shard";
    overlap.overlap_param_gather = sharded && c.llama;
    overlap.overlap_grad_reduce = !overlap.overlap_param_gather;
    expect_equal(train_on_threads(config, c.ranks(), kShardingSteps, true), curve, strategy + ", one overlap");
    if (!sharded) continue;
    overlap.overlap_param_gather = overlap.overlap_grad_reduce = true;
    overlap.collectives_in_flight = 3;
    expect_equal(train_on_threads(config, c.ranks(), kShardingSteps, true), curve, strategy + " both, three in flight");
  }
}

INSTANTIATE_TEST_SUITE_P(Matrix, ShardingLayout,
                         testing::ValuesIn(sampled(with_llama<Case>(
                             {Case{.d = 1}, Case{.d = 2}, Case{.d = 4}, Case{.d = 2, .micro_batches = 1},
                              Case{.d = 4, .micro_batches = 1, .tied = false}, Case{.d = 3, .tied = false},
                              Case{.t = 2, .d = 1}, Case{.t = 2, .d = 2}, Case{.t = 2, .d = 4}, Case{.p = 2, .d = 2},
                              Case{.p = 2, .d = 2, .micro_batches = 1},
                              Case{.p = 2, .d = 2, .v = 2, .schedule = "interleaved"},
                              Case{.p = 2, .d = 4, .v = 2, .micro_batches = 2, .schedule = "interleaved"},
                              Case{.t = 2, .p = 2, .d = 2, .v = 2, .schedule = "interleaved"},
                              Case{.p = 2, .d = 2, .micro_batches = 3, .schedule = "zb-h1"},
                              Case{.p = 2, .d = 2, .v = 2, .micro_batches = 3, .schedule = "zb-v"},
                              Case{.d = 2, .dtype = "bf16"}, Case{.t = 2, .p = 2, .d = 2, .dtype = "bf16"}}))),
                         [](const auto& info) { return name_of_case(info.param); });

// One parameter per bucket, everything in one bucket, and sizes that divide nothing evenly.
TEST(Sharding, BucketSizeChangesNothing) {
  for (const std::string strategy : {"no_shard", "optim"}) {
    Config config = config_of({.d = 3}, strategy.c_str());
    const Curve reference = train_on_threads(config, 3, kShardingSteps);
    config.overlap.overlap_grad_reduce = true;
    config.overlap.overlap_param_gather = strategy == "optim";
    for (const int64_t bucket_size : {1, 1000, 7777, 1 << 30}) {
      config.parallel.bucket_size = bucket_size;
      const Curve curve = train_on_threads(config, 3, kShardingSteps, true);
      expect_equal(curve, reference, fmt::format("{} bucket_size {}", strategy, bucket_size));
      EXPECT_EQ(curve.weights_hash, reference.weights_hash);
    }
    // Three collectives in flight, on streams that run as late as their waits allow: each bucket is waited for.
    config.parallel.bucket_size = 7777;
    config.overlap.collectives_in_flight = 3;
    expect_equal(train_on_threads(config, 3, kShardingSteps, {.poison = true, .make_backend = make_split_backend}),
                 reference, strategy + ", three in flight on split devices");
  }
}

// Megatron's alignment of collectives over pipeline ranks affects only timing.
TEST(Sharding, AlignmentChangesNothing) {
  for (const Case& c : {Case{.p = 2, .d = 2, .v = 2, .micro_batches = 4, .schedule = "interleaved"},
                        Case{.p = 4, .d = 2, .v = 1, .micro_batches = 4, .schedule = "1f1b"},
                        Case{.p = 2, .d = 2, .v = 2, .micro_batches = 4, .schedule = "zb-v"}}) {
    Config config = config_of(c, "optim");
    config.parallel.bucket_size = 2000;
    const Curve reference = train_on_threads(config, c.ranks(), kShardingSteps, true);
    config.overlap.overlap_grad_reduce = config.overlap.overlap_param_gather = true;
    config.overlap.align_grad_reduce = true;
    config.overlap.align_param_gather = c.v > 1;
    expect_equal(train_on_threads(config, c.ranks(), kShardingSteps, true), reference, c.schedule);
  }
}

TEST(Sharding, AverageInCollective) {
  for (const int d : {2, 3}) {
    Config config = config_of({.d = d}, "optim");
    const Curve reference = train_on_threads(config, d, kShardingSteps);
    config.overlap.average_in_collective = true;
    const Curve curve = train_on_threads(config, d, kShardingSteps);
    if (d == 2) {
      expect_equal(curve, reference, "halves are exact");
    } else {
      expect_near(curve, reference, "thirds");
      EXPECT_NE(curve.weights_hash, reference.weights_hash) << "thirds round elsewhere: it is on";
    }
  }
}

TEST(Sharding, WorksWithRecompute) {
  for (const std::string strategy : {"optim", "optim_grads_params"}) {
    Config config = config_of({.d = 2}, strategy.c_str());
    config.overlap.overlap_grad_reduce = config.overlap.overlap_param_gather = true;
    const Curve reference = train_on_threads(config, 2, kShardingSteps, true);
    config.model.recompute_granularity = RecomputeGranularity::full;
    config.model.recompute_method = RecomputeMethod::uniform;
    // If two layers are recomputed together, the last one prefetches weights that are never used.
    for (const auto& [layers, in_flight] : {std::pair<int64_t, int>{1, 1}, {3, 1}, {2, 3}}) {
      config.model.recompute_num_layers = layers;
      config.overlap.collectives_in_flight = in_flight;
      expect_equal(train_on_threads(config, 2, kShardingSteps, true), reference,
                   fmt::format("{} {} {}", strategy, layers, in_flight));
    }
  }
}

// Of 12.9e9 weights, each of two ranks owns more than 2^32. No two tensors of a rank's state share an element, and a
// shard is where its parameter is.
TEST(Sharding, NoTwoWeightsOfALargeModelShareTheirState) {
  for (const std::string strategy : kStrategies)
    for (const int d : {0, 1}) {
      Config config = config_of({.d = 2, .dtype = "bf16"}, strategy.c_str());
      config.model.hidden_size = 16384, config.model.ffn_hidden_size = 4 * 16384;
      config.model.num_attention_heads = 128;
      const auto [run, layout] = resolved(config, 2);
      const auto device = create_planning_device();
      const RankState state(run, layout, {{Axis::dp, d}}, *device);
      std::map<int64_t, std::pair<int64_t, std::string>> places;  // by address
      const auto add = [&](Tensor tensor, const std::string& what) {
        const auto begin = reinterpret_cast<int64_t>(tensor.data);
        EXPECT_TRUE(places.insert({begin, {begin + tensor.bytes(), what}}).second) << what;
      };
      int64_t owned = 0;
      for (const OwnedShard& shard : state.flat.owned) {
        const Param& param = *shard.param;
        const std::string what = fmt::format("{} of {}, rank {}, ", param.spec.name, strategy, d);
        owned += shard.weight.numel();
        for (const auto& [of_shard, whole] : {std::pair{shard.weight, param.weight}, {shard.grad, param.grad}})
          if (whole) {
            EXPECT_EQ(of_shard.data, whole.view({whole.numel()}).slice(shard.first, of_shard.numel()).data) << what;
          }
        add(shard.weight, what + "weight");
        add(shard.grad, what + "gradient");
        add(state.optimizer->main_weights(shard), what + "main weight");
        for (const Optimizer::State& each : state.optimizer->states())
          add(Optimizer::part(each.owned, shard), what + std::string(each.name));
      }
      EXPECT_GT(owned, int64_t{1} << 32) << strategy;
      int64_t end = 0;
      for (const auto& [begin, place] : places) {
        EXPECT_GE(begin, end) << place.second;
        end = place.first;
      }
    }
}

// Bytes per rank, against the ZeRO formulas (flat_buffer.h) applied to the layout's elements.
TEST(Sharding, TakesTheMemoryOfTheFormulas) {
  for (const int d : {1, 2, 4, 8}) {
    for (const std::string asked : kStrategies) {
      const auto [run, layout] = resolved(config_of({.d = d, .tied = false, .dtype = "bf16"}, asked.c_str()), d);
      const std::string strategy = d == 1 ? "no_shard" : asked;  // one rank has nothing to shard
      std::map<std::string, int64_t> bytes;
      for (const MemoryItem& item : plan_memory(run, layout, {}).items) bytes[item.name] = item.bytes;
      // Elements of the layout: buckets of one unit are padded to 128 each, a single bucket as a whole.
      const int64_t h = 32, f = 128, s = 16, vocab = 61, layers = 4;
      const auto padded = [](int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; };
      const int64_t norm = 2 * padded(h, 64);
      const int64_t block = 2 * norm + padded(3 * h * h, 64) + padded(3 * h, 64) + h * h + padded(h, 64) + 2 * h * f +
                            padded(f, 64) + padded(h, 64);
      const int64_t embedding = padded(vocab * h, 64) + s * h, head = norm + padded(vocab * h, 64);
      const bool units = strategy.starts_with("optim_grads");
      const int64_t n = units ? padded(embedding, 128) + layers * padded(block, 128) + padded(head, 128)
                              : padded(embedding + layers * block + head, 128);
      const int64_t largest = std::max({padded(embedding, 128), padded(block, 128), padded(head, 128)});
      const int64_t of_optimizer = strategy == "no_shard" ? n : n / d;
      const int64_t buckets = units ? layers + 2 : 1;
      // The norms, a step's numbers, and the results of the searches in a rejected step.
      const int64_t small = 2 * (8 * kExactSumBins + 4 + 4) + 4 * RankState::kStepNumbers +
                            8 * RankState::kNonFiniteSearches * kNonFiniteNumbers * buckets;
      EXPECT_EQ(bytes["optimizer"], 12 * of_optimizer + small) << strategy << " d " << d;
      EXPECT_EQ(bytes["gradients"], units ? 4 * n / d + 2 * 4 * (largest + largest / d) : 4 * n)
          << strategy << " d " << d;
      EXPECT_EQ(bytes["weights"], strategy == "optim_grads_params" ? 2 * n / d + 2 * 2 * largest : 2 * n)
          << strategy << " d " << d;
    }
  }
}

}  // namespace
}  // namespace trivet::test
