// Every op that writes bf16 rounds without bias: compared with the same op in fp32 on the same inputs, the signed
// errors of an output cancel. A tolerance would let truncation pass, although it makes every number a little too small.
#include <map>

#include "tests/support/ops_fixture.h"

namespace trivet::test {
namespace {

class RoundingTest : public OpsTest {
 protected:
  // run(dtype): the op's output, [n] in dtype; `input` draws its tensors, the same for each dtype.
  void expect_unbiased(const char* what, const std::function<Tensor(DType)>& run) {
    std::map<double, double> rounded_of;  // each number once: a function of one bf16 takes few values
    for (uint64_t seed = 1; seed <= 4; ++seed) {
      tensors.random().seed(seed);
      const Values rounded = values(run(DType::bf16));
      tensors.random().seed(seed);
      const Values exact = values(run(DType::f32));
      ASSERT_EQ(rounded.size(), exact.size());
      for (size_t i = 0; i < exact.size(); ++i) rounded_of[exact[i]] = rounded[i];
    }
    double sum = 0, squares = 0;
    for (const auto& [exact, rounded] : rounded_of) {
      // In ulps, positive if the magnitude grows.
      const double ulp = std::ldexp(1.0, std::ilogb(std::max(std::abs(exact), 1e-30)) - 7);
      const double error = std::copysign(1.0, exact) * (rounded - exact) / ulp;
      ASSERT_LT(std::abs(error), 1.01) << what << " of " << exact;
      sum += error, squares += error * error;
    }
    const auto n = static_cast<double>(rounded_of.size());
    EXPECT_GT(n, 1000) << what;
    EXPECT_GT(squares, 0.04 * n) << what << ": nothing is rounded";
    EXPECT_LT(std::abs(sum), 4.5 * std::sqrt(squares)) << what << ", of " << n << " numbers";
  }
  // Random numbers, rounded to bf16 whatever the dtype.
  Tensor input(DType dtype, Shape shape) {
    std::uniform_real_distribution<float> draw(-2, 2);
    return tensors.make(dtype, shape, [&](int64_t) { return static_cast<float>(bf16(draw(tensors.random()))); });
  }
  Tensor output(DType dtype, Shape shape) { return tensors.poisoned(dtype, shape); }
  void run(const AnyOp& op) { ops->run(op, *stream); }

  static constexpr int64_t kRows = 48, kColumns = 200;
  const Shape square{kRows, kColumns};
};
INSTANTIATE_TEST_SUITE_P(BackEnds, RoundingTest,
                         testing::Combine(testing::Values(DType::bf16), testing::Values(2, kOnCuda)), case_name);

TEST_P(RoundingTest, OfNormsHasNoBias) {
  for (const bool centred : {true, false}) {
    const auto row = [&] { return tensors.poisoned(DType::f32, {kRows}); };
    const auto forward = [&](DType t, const Tensor& x, const Tensor& gamma, const Tensor& mean, const Tensor& rstd) {
      const Tensor y = output(t, square);
      run(op::LayernormForward{.x = x,
                               .gamma = gamma,
                               .beta = centred ? input(t, {kColumns}) : Tensor{},
                               .eps = 1e-5f,
                               .y = y,
                               .mean = mean,
                               .rstd = rstd});
      return y;
    };
    expect_unbiased("norm forward", [&](DType t) {
      return forward(t, input(t, square), input(t, {kColumns}), centred ? row() : Tensor{}, row());
    });
    for (const bool residual : {true, false})
      expect_unbiased("norm backward", [&](DType t) {
        const Tensor x = input(t, square), gamma = input(t, {kColumns}), mean = centred ? row() : Tensor{};
        const Tensor rstd = row(), dx = output(t, square);
        forward(t, x, gamma, mean, rstd);
        run(op::LayernormBackward{.dy = input(t, square),
                                  .x = x,
                                  .gamma = gamma,
                                  .mean = mean,
                                  .rstd = rstd,
                                  .residual = residual ? input(t, square) : Tensor{},
                                  .dx = dx,
                                  .dgamma = tensors.full(DType::f32, {kColumns}, 0),
                                  .dbeta = centred ? tensors.full(DType::f32, {kColumns}, 0) : Tensor{}});
        return dx;
      });
  }
}

TEST_P(RoundingTest, OfActivationsHasNoBias) {
  const Shape twice{kRows, 2 * kColumns};
  expect_unbiased("gelu", [&](DType t) {
    const Tensor y = output(t, square);
    run(op::ActivationForward{input(t, square), y});
    return y;
  });
  expect_unbiased("gelu backward", [&](DType t) {
    const Tensor dx = output(t, square);
    run(op::ActivationBackward{input(t, square), input(t, square), dx});
    return dx;
  });
  expect_unbiased("swiglu", [&](DType t) {
    const Tensor y = output(t, square);
    run(op::ActivationForward{input(t, twice), y, Activation::swiglu});
    return y;
  });
  expect_unbiased("swiglu backward", [&](DType t) {
    const Tensor dx = output(t, twice);
    run(op::ActivationBackward{input(t, twice), input(t, square), dx, Activation::swiglu});
    return dx;
  });
}

TEST_P(RoundingTest, OfTheResidualStreamHasNoBias) {
  const Shape cube{12, 4, kColumns};
  const Dropout dropout{.probability = 0.1f, .seed = 5, .site = 6, .first_sample = tensors.number(7), .seq_length = 12};
  for (const bool with_bias : {true, false})
    expect_unbiased("bias dropout add", [&](DType t) {
      const Tensor out = output(t, cube);
      run(op::BiasDropoutAdd{.x = input(t, cube),
                             .bias = with_bias ? input(t, {kColumns}) : Tensor{},
                             .residual = input(t, cube),
                             .dropout = dropout,
                             .out = out});
      return out;
    });
  expect_unbiased("dropout backward", [&](DType t) {
    const Tensor dx = output(t, cube);
    run(op::DropoutBackward{.dout = input(t, cube), .dropout = dropout, .dx = dx});
    return dx;
  });
  expect_unbiased("positions", [&](DType t) {
    const Tensor out = output(t, cube);
    run(op::PositionForward{
        .x = input(t, cube), .positions = input(t, {12, kColumns}), .dropout = dropout, .out = out});
    return out;
  });
  expect_unbiased("positions backward", [&](DType t) {
    const Tensor dx = output(t, cube);
    run(op::PositionBackward{.dout = input(t, cube),
                             .dropout = dropout,
                             .dx = dx,
                             .dpositions = tensors.full(DType::f32, {12, kColumns}, 0)});
    return dx;
  });
  // Half of these sums are ties: they round to even, not away from zero.
  expect_unbiased("add", [&](DType t) {
    const Tensor out = output(t, square);
    run(op::Add{input(t, square), input(t, square), out});
    return out;
  });
}

TEST_P(RoundingTest, OfRopeHasNoBias) {
  const int64_t s = 12, b = 4, heads = 2, d = 16;
  for (const bool inverse : {false, true})
    expect_unbiased("rope", [&](DType t) {
      const Tensor qkv = input(t, {s, b, 3 * heads * d});
      const QkvViews views = qkv_views(qkv, heads, heads);
      const Tensor table = tensors.poisoned(DType::f32, {s, d});
      run(op::RotaryTable{{.width = d}, table});
      run(op::Rope{.q = views.q, .k = views.k, .table = table, .inverse = inverse});
      // Position 0 is not rotated, and values never are.
      Values turned;
      for (int64_t i = b * 3 * heads * d; i < qkv.numel(); ++i)
        if (i % (3 * d) < 2 * d) turned.push_back(get(qkv, i));
      return tensors.of(t, turned);
    });
}

TEST_P(RoundingTest, OfGemmsHasNoBias) {
  const Shape left{kRows, 64}, right{kColumns, 64};
  expect_unbiased("matmul", [&](DType t) {
    const Tensor c = output(t, square);
    run(op::Matmul{.a = input(t, left), .b = input(t, right), .c = c, .transpose_b = true});
    return c;
  });
  expect_unbiased("matmul with bias", [&](DType t) {
    const Tensor c = output(t, square);
    run(op::Matmul{
        .a = input(t, left), .b = input(t, right), .c = c, .transpose_b = true, .bias = input(t, {kColumns})});
    return c;
  });
  expect_unbiased("pre-activation", [&](DType t) {
    const Tensor c = output(t, square), before = output(t, square);
    run(op::Matmul{.a = input(t, left),
                   .b = input(t, right),
                   .c = c,
                   .transpose_b = true,
                   .bias = input(t, {kColumns}),
                   .pre_activation = before});
    return before;
  });
}

TEST_P(RoundingTest, OfTheLossAndOfWeightsHasNoBias) {
  expect_unbiased("cross-entropy backward", [&](DType t) {
    const Tensor logits = input(t, square), targets = tensors.integers(DType::i32, {kRows}, 0, kColumns - 1);
    const Tensor max = tensors.poisoned(DType::f32, {kRows}), sum = tensors.poisoned(DType::f32, {kRows});
    run(op::CrossEntropyForward{.logits = logits,
                                .targets = targets,
                                .first_column = 0,
                                .vocab_size = kColumns,
                                .row_max = max,
                                .row_sum = sum,
                                .target_logit = tensors.poisoned(DType::f32, {kRows})});
    run(op::CrossEntropyBackward{.logits = logits,
                                 .targets = targets,
                                 .first_column = 0,
                                 .vocab_size = kColumns,
                                 .row_max = max,
                                 .row_sum = sum,
                                 .scale = 0.37f});
    return logits;
  });
  expect_unbiased("AdamW", [&](DType t) {
    const Tensor weight = input(DType::f32, square), rounded = output(DType::bf16, square);
    run(op::AdamWStep{.shards = {{weight, input(DType::f32, square), tensors.full(DType::f32, square, 0),
                                  tensors.full(DType::f32, square, 0), rounded}},
                      .grad_scale = tensors.full(DType::f32, {1}, 1),
                      .accepted = tensors.full(DType::f32, {1}, 1),
                      .how = {.learning_rate = 0.0123f}});
    return t == DType::f32 ? weight : rounded;
  });
  expect_unbiased("convert", [&](DType t) {
    const Tensor x = tensors.uniform(DType::f32, square), to = output(t, square);
    run(op::Convert{x, to});
    return to;
  });
}

}  // namespace
}  // namespace trivet::test
