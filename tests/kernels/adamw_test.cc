// AdamW against Loshchilov and Hutter's algorithm 2 in double, over several steps.
#include "tests/support/ops_fixture.h"

namespace trivet::test {
namespace {

using AdamWTest = OpsTest;
INSTANTIATE_TEST_SUITE_P(BackEnds, AdamWTest, testing::Combine(testing::Values(DType::f32), back_ends()), case_name);

struct State {
  Values weight, m, v;
};

void reference_step(State& state, const Values& grad, double grad_scale, const AdamW& how) {
  const double step = static_cast<double>(how.step);
  for (size_t i = 0; i < grad.size(); ++i) {
    const double g = grad[i] * grad_scale;
    state.m[i] = how.beta1 * state.m[i] + (1 - how.beta1) * g;
    state.v[i] = how.beta2 * state.v[i] + (1 - how.beta2) * g * g;
    const double m_hat = state.m[i] / (1 - std::pow(how.beta1, step));
    const double v_hat = state.v[i] / (1 - std::pow(how.beta2, step));
    state.weight[i] -= how.learning_rate * (m_hat / (std::sqrt(v_hat) + how.eps) + how.weight_decay * state.weight[i]);
  }
}

TEST_P(AdamWTest, FollowsTheAlgorithm) {
  for (const int64_t n : {1, 5, 40'003}) {
    const Tensor weight = tensors.uniform(DType::f32, {n}), model_weight = tensors.poisoned(DType::bf16, {n});
    const Tensor m = tensors.full(DType::f32, {n}, 0), v = tensors.full(DType::f32, {n}, 0);
    const Tensor grad_scale = tensors.full(DType::f32, {1}, 0.125);
    State expected{values(weight), values(m), values(v)};
    AdamW how{.learning_rate = 0.01f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f};
    for (how.step = 1; how.step <= 4; ++how.step) {
      const Tensor grad = tensors.uniform(DType::f32, {n}, -3, 3);

      ops->run(op::AdamWStep{.shards = {{weight, grad, m, v, model_weight}}, .grad_scale = grad_scale, .how = how},
               *stream);

      reference_step(expected, values(grad), 0.125, how);
      EXPECT_TRUE(near(m, expected.m, tolerance(DType::f32, how.step)));
      EXPECT_TRUE(near(v, expected.v, tolerance(DType::f32, how.step)));
      EXPECT_TRUE(near(weight, expected.weight, tolerance(DType::f32, how.step)));
      EXPECT_TRUE(same_bits(model_weight, tensors.make(DType::bf16, {n}, [&](int64_t i) { return get(weight, i); })));
    }
  }
}

// The optimizer's state is partitioned over ranks at any element; results must not depend on where.
TEST_P(AdamWTest, AnyCutGivesTheSameBits) {
  const int64_t n = 33'333;
  const Tensor grad = tensors.uniform(DType::f32, {n}, -3, 3), grad_scale = tensors.full(DType::f32, {1}, 0.7);
  const Tensor weight = tensors.uniform(DType::f32, {n}), m = tensors.uniform(DType::f32, {n});
  const Tensor v = tensors.uniform(DType::f32, {n}, 0, 1), model_weight = tensors.poisoned(DType::bf16, {n});
  const Tensor cut_weight = tensors.copy(weight), cut_m = tensors.copy(m), cut_v = tensors.copy(v);
  const Tensor cut_model_weight = tensors.poisoned(DType::bf16, {n});
  const AdamW how{.learning_rate = 0.01f, .weight_decay = 0.1f, .step = 3};

  ops->run(op::AdamWStep{.shards = {{weight, grad, m, v, model_weight}}, .grad_scale = grad_scale, .how = how},
           *stream);
  for (int64_t begin = 0, size = 1; begin < n; begin += size) {
    size = std::min(size * 2 + 1, n - begin);
    const auto part = [&](const Tensor& t) { return t.slice(begin, size); };
    ops->run(op::AdamWStep{.shards = {{part(cut_weight), part(grad), part(cut_m), part(cut_v), part(cut_model_weight)}},
                           .grad_scale = grad_scale,
                           .how = how},
             *stream);
  }

  EXPECT_TRUE(same_bits(weight, cut_weight));
  EXPECT_TRUE(same_bits(m, cut_m));
  EXPECT_TRUE(same_bits(v, cut_v));
  EXPECT_TRUE(same_bits(model_weight, cut_model_weight));
}

// More shards than a GPU handles in one launch, of all sizes; some do not decay, some have no model weight.
TEST_P(AdamWTest, ManyPiecesAtOnceGetTheBitsOfEachAlone) {
  const int64_t n = 20'000;
  const Tensor grad = tensors.uniform(DType::f32, {n}, -3, 3), grad_scale = tensors.full(DType::f32, {1}, 0.7);
  const Tensor weight = tensors.uniform(DType::f32, {n}), m = tensors.uniform(DType::f32, {n});
  const Tensor v = tensors.uniform(DType::f32, {n}, 0, 1), model_weight = tensors.full(DType::bf16, {n}, 0);
  const Tensor alone_weight = tensors.copy(weight), alone_m = tensors.copy(m), alone_v = tensors.copy(v);
  const Tensor alone_model_weight = tensors.copy(model_weight);
  const AdamW how{.learning_rate = 0.01f, .weight_decay = 0.1f, .step = 3};
  AdamW without_decay = how;
  without_decay.weight_decay = 0;

  std::vector<AdamWShard> pieces;
  for (int64_t begin = 0; begin < n;) {
    const auto i = static_cast<int64_t>(pieces.size());
    const int64_t size = std::min(i == 5 ? 9'000 : i % 37 + 1, n - begin);
    const bool decays = i % 3 != 0, has_model_weight = i % 5 != 0;
    const auto part = [&](const Tensor& t) { return t.slice(begin, size); };
    pieces.push_back(
        {part(weight), part(grad), part(m), part(v), has_model_weight ? part(model_weight) : Tensor{}, decays});
    ops->run(op::AdamWStep{.shards = {{part(alone_weight), part(grad), part(alone_m), part(alone_v),
                                       has_model_weight ? part(alone_model_weight) : Tensor{}}},
                           .grad_scale = grad_scale,
                           .how = decays ? how : without_decay},
             *stream);
    begin += size;
  }
  ASSERT_GT(pieces.size(), 400u);
  ops->run(op::AdamWStep{.shards = pieces, .grad_scale = grad_scale, .how = how}, *stream);
  ops->run(op::AdamWStep{.shards = {}, .grad_scale = grad_scale, .how = how}, *stream);

  EXPECT_TRUE(same_bits(weight, alone_weight));
  EXPECT_TRUE(same_bits(m, alone_m));
  EXPECT_TRUE(same_bits(v, alone_v));
  EXPECT_TRUE(same_bits(model_weight, alone_model_weight));
}

TEST_P(AdamWTest, WithoutGradientOnlyDecay) {
  const Tensor weight = tensors.full(DType::f32, {9}, 2), zero = tensors.full(DType::f32, {9}, 0);
  const Tensor m = tensors.full(DType::f32, {9}, 0), v = tensors.full(DType::f32, {9}, 0);
  const Tensor one = tensors.full(DType::f32, {1}, 1);

  ops->run(
      op::AdamWStep{
          .shards = {{weight, zero, m, v}}, .grad_scale = one, .how = {.learning_rate = 0.5f, .weight_decay = 0.25f}},
      *stream);

  EXPECT_TRUE(near(weight, Values(9, 1.75), 0));
}

TEST_P(AdamWTest, WrongArgumentsAreNamed) {
  const Tensor n = tensors.uniform(DType::f32, {8}), wrong = tensors.uniform(DType::f32, {7});
  const Tensor one = tensors.uniform(DType::f32, {1}), half = tensors.uniform(DType::bf16, {8});
  const auto step = [&](Tensor weight, Tensor grad, Tensor m, Tensor v, Tensor model_weight, Tensor scale,
                        AdamW how = {}) {
    return [=, this] {
      ops->run(op::AdamWStep{.shards = {{weight, grad, m, v, model_weight}}, .grad_scale = scale, .how = how}, *stream);
    };
  };
  EXPECT_TRUE(throws_naming(step(half, n, n, n, {}, one), {"adamw", " weight ", "bf16", "fp32"}));
  EXPECT_TRUE(throws_naming(step(n, wrong, n, n, {}, one), {"adamw", " grad ", "[7]", "[8]"}));
  EXPECT_TRUE(throws_naming(step(n, n, wrong, n, {}, one), {"adamw", " m ", "[7]", "[8]"}));
  EXPECT_TRUE(throws_naming(step(n, n, n, {}, {}, one), {"adamw", " v ", "null", "[8]"}));
  EXPECT_TRUE(throws_naming(step(n, n, n, n, n, one), {"adamw", " model_weight ", "fp32", "bf16"}));
  EXPECT_TRUE(throws_naming(step(n, n, n, n, half, n), {"adamw", " grad_scale ", "[8]", "[1]"}));
  EXPECT_TRUE(throws_naming(step(n, n, n, n, half, one, {.step = 0}), {"adamw", "step", "1"}));
}

}  // namespace
}  // namespace trivet::test
