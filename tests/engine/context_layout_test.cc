// Context parallelism in the headline test: ranks that share each sequence give the losses, the norms and each weight's
// gradient of one rank, over either comm type and beside every other dimension.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <map>

#include "tests/support/message_of.h"
#include "tests/support/training.h"

namespace trivet::test {
namespace {

constexpr int kSteps = kMatrixSteps;
constexpr auto kRing = CpCommType::p2p, kGathered = CpCommType::all_gather;

// Without clipping, which would hide a factor, as Adam does.
Config unclipped(bool llama) {
  Config config = tiny_model(llama);
  config.optimizer.clip_grad = 0;
  return config;
}
const Curve& one(bool llama) {
  static const Curve curves[2] = {train_on_threads(unclipped(false), 1, kSteps),
                                  train_on_threads(unclipped(true), 1, kSteps)};
  return curves[llama];
}

class ContextLayout : public testing::TestWithParam<Cut> {};

TEST_P(ContextLayout, HasTheLossesOfOneRank) {
  for (const bool llama : {false, true}) {
    SCOPED_TRACE(llama);
    Config config = cut(unclipped(llama), GetParam());
    const Curve curve = train_on_threads(config, GetParam().ranks(), kSteps, true);
    expect_near(curve, one(llama));
    // A second run, without overlap, has the same bits.
    config.overlap.overlap_cp_comm = false;
    const Curve again = train_on_threads(config, GetParam().ranks(), kSteps);
    expect_equal(again, curve);
    EXPECT_EQ(again.weights_hash, curve.weights_hash);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Matrix, ContextLayout,
    testing::Values(
        Cut{.c = 2}, Cut{.c = 2, .cp_comm_type = kGathered}, Cut{.c = 4}, Cut{.c = 4, .cp_comm_type = kGathered},
        Cut{.c = 8}, Cut{.t = 2, .c = 2}, Cut{.t = 2, .sequence_parallel = true, .c = 2},
        Cut{.t = 2, .sequence_parallel = true, .c = 2, .cp_comm_type = kGathered}, Cut{.p = 2, .c = 2},
        Cut{.p = 2, .schedule = "zb-h1", .c = 2, .cp_comm_type = kGathered},
        Cut{.p = 2, .schedule = "interleaved", .v = 2, .c = 2}, Cut{.d = 2, .c = 2},
        Cut{.d = 2, .strategy = "optim", .c = 2}, Cut{.d = 2, .strategy = "optim_grads", .c = 2},
        Cut{.strategy = "optim_grads_params", .c = 2, .cp_comm_type = kGathered},
        Cut{.t = 2, .p = 2, .sequence_parallel = true, .strategy = "optim", .c = 2}),
    [](const auto& info) {
      const Cut& c = info.param;
      std::string name = fmt::format("{}_c{}_t{}{}_p{}_{}_d{}_{}", c.cp_comm_type == kRing ? "ring" : "gathered", c.c, c.t,
                                     c.sequence_parallel ? "_sp" : "", c.p, c.schedule, c.d, c.strategy);
      std::ranges::replace(name, '-', '_');
      return name;
    });

// Each of a rank's parts of activations: dropout of both kinds, recomputation, norms of heads, one head of keys and
// values; a rank of three has a part of a piece under sequence parallelism.
TEST(ContextLayout, HasTheLossesOfOneRankWhateverIsAskedFor) {
  using Keys = std::vector<std::pair<const char*, const char*>>;
  const Keys sets[] = {
      {{"model.hidden_dropout", "0.1"}},
      {{"model.attention_dropout", "0.1"}, {"model.seq_length", "64"}},
      {{"model.recompute_granularity", "selective"}, {"model.recompute_modules", "core_attn,layernorm,mlp"}},
      {{"model.recompute_granularity", "full"}, {"model.recompute_method", "uniform"}, {"model.recompute_num_layers", "1"}},
      {{"model.qk_layernorm", "true"}},
      {{"overlap.average_in_collective", "true"}},
      {{"overlap.overlap_grad_reduce", "true"}},
      {{"overlap.tp_comm_overlap", "ring"}}};
  for (const Keys& keys : sets)
    for (const bool llama : {false, true}) {
      SCOPED_TRACE(keys.front().first);
      Config config = unclipped(llama), alone = config;
      for (const auto& [key, value] : keys) {
        set_key(config, key, value);
        if (std::string_view(key).starts_with("model.")) set_key(alone, key, value);
      }
      const Curve reference = train_on_threads(alone, 1, kSteps);
      for (const CpCommType type : {kRing, kGathered})
        expect_near(train_on_threads(cut(config, {.t = 2, .sequence_parallel = true, .c = 2, .cp_comm_type = type}), 4,
                                     kSteps, true),
                    reference);
    }
}

// Megatron-LM 1464: dQ, dK and dV were wrong while the loss looked sane.
using Gradients = std::map<std::string, std::vector<float>>;
Gradients gradients_after_one_step(const Config& config, int ranks) {
  Gradients found;
  with_trainers(config, ranks, [&](Trainer& trainer) {
    trainer.step();
    if (trainer.world().rank() != 0) return;
    for (const Param& param : trainer.state().params.all()) {
      const float* const grad = param.grad.as<float>();
      found[param.spec.name] = {grad, grad + param.grad.numel()};
    }
  });
  return found;
}
TEST(ContextLayout, HasEachWeightsGradientOfOneRank) {
  for (const bool llama : {false, true}) {
    const Gradients wanted = gradients_after_one_step(unclipped(llama), 1);
    for (const Cut& how : {Cut{.c = 2}, Cut{.c = 4}, Cut{.d = 2, .c = 2, .cp_comm_type = kGathered},
                           Cut{.c = 4, .cp_comm_type = kGathered}}) {
      const Gradients found = gradients_after_one_step(cut(unclipped(llama), how), how.ranks());
      ASSERT_EQ(found.size(), wanted.size());
      for (const auto& [name, of_one] : wanted) {
        const std::vector<float>& grad = found.at(name);
        float largest = 0;
        for (const float x : of_one) largest = std::max(largest, std::abs(x));
        ASSERT_EQ(grad.size(), of_one.size());
        for (size_t i = 0; i < grad.size(); ++i)
          ASSERT_NEAR(grad[i], of_one[i], 1e-5 * largest) << name << " " << i << " c " << how.c << " d " << how.d;
      }
    }
  }
}

}  // namespace
}  // namespace trivet::test
