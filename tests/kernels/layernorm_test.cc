// Layer and RMS normalisation against their definitions in double.
#include "tests/support/ops_fixture.h"

namespace trivet::test {
namespace {

constexpr float kEps = 1e-5f;

struct Normalized {
  Values y, mean, rstd;
};

// Without beta: RMSNorm, whose mean is 0.
Normalized reference_forward(const Values& x, const Values& gamma, const Values& beta, double eps) {
  const size_t h = gamma.size(), n = x.size() / h;
  Normalized out{Values(x.size()), Values(n), Values(n)};
  for (size_t r = 0; r < n; ++r) {
    double mean = 0, variance = 0;
    for (size_t c = 0; c < h && !beta.empty(); ++c) mean += x[r * h + c] / static_cast<double>(h);
    for (size_t c = 0; c < h; ++c) variance += std::pow(x[r * h + c] - mean, 2) / static_cast<double>(h);
    const double rstd = 1 / std::sqrt(variance + eps);
    for (size_t c = 0; c < h; ++c)
      out.y[r * h + c] = (x[r * h + c] - mean) * rstd * gamma[c] + (beta.empty() ? 0 : beta[c]);
    out.mean[r] = mean;
    out.rstd[r] = rstd;
  }
  return out;
}

struct Gradients {
  Values dx, dgamma, dbeta;
};

Gradients reference_backward(const Values& dy, const Values& x, const Values& gamma, double eps, bool rms = false) {
  const size_t h = gamma.size(), n = x.size() / h;
  const Normalized forward = reference_forward(x, gamma, Values(rms ? 0 : h), eps);
  Gradients out{Values(x.size()), Values(h), Values(h)};
  for (size_t r = 0; r < n; ++r) {
    const auto xhat = [&](size_t c) { return (x[r * h + c] - forward.mean[r]) * forward.rstd[r]; };
    double g_mean = 0, gx_mean = 0;
    for (size_t c = 0; c < h; ++c) {
      if (!rms) g_mean += dy[r * h + c] * gamma[c] / static_cast<double>(h);
      gx_mean += dy[r * h + c] * gamma[c] * xhat(c) / static_cast<double>(h);
      out.dgamma[c] += dy[r * h + c] * xhat(c);
      out.dbeta[c] += dy[r * h + c];
    }
    for (size_t c = 0; c < h; ++c)
      out.dx[r * h + c] = forward.rstd[r] * (dy[r * h + c] * gamma[c] - g_mean - xhat(c) * gx_mean);
  }
  return out;
}

Values plus(Values a, const Values& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

using LayerNormTest = OpsTest;
INSTANTIATE_TEST_SUITE_P(BackEnds, LayerNormTest, all_types_and_back_ends(), case_name);

TEST_P(LayerNormTest, ForwardIsTheDefinition) {
  for (const auto& [n, h] : {std::pair<int64_t, int64_t>{67, 773}, {1, 1}, {3, 5}, {5, 32}, {7, 100}, {2, 16392}, {1, 20485}}) {
    const Tensor x = tensors.uniform(dtype, {n, h}, -1, 3);
    const Tensor gamma = tensors.uniform(dtype, {h}), beta = tensors.uniform(dtype, {h});
    const Tensor y = tensors.poisoned(dtype, {n, h});
    const Tensor mean = tensors.poisoned(DType::f32, {n}), rstd = tensors.poisoned(DType::f32, {n});

    ops->run(
        op::LayernormForward{.x = x, .gamma = gamma, .beta = beta, .eps = kEps, .y = y, .mean = mean, .rstd = rstd},
        *stream);

    const Normalized expected = reference_forward(values(x), values(gamma), values(beta), kEps);
    const double largest_rstd = *std::max_element(expected.rstd.begin(), expected.rstd.end());
    EXPECT_TRUE(near(y, expected.y, summed(dtype, expected.y, h, largest_rstd)));
    EXPECT_TRUE(near(mean, expected.mean, tolerance(DType::f32, h, 3)));
    EXPECT_TRUE(near(rstd, expected.rstd, tolerance(DType::f32, h, largest_rstd)));
  }
}

// One pass with E[x^2] - E[x]^2 would lose all precision here.
TEST_P(LayerNormTest, ForwardSurvivesALargeMean) {
  const int64_t h = 768;
  const Tensor x = tensors.make(dtype, {1, h}, [](int64_t i) { return 4096.0 + 32.0 * static_cast<double>(i % 4); });
  const Tensor gamma = tensors.full(dtype, {h}, 1), beta = tensors.full(dtype, {h}, 0);
  const Tensor y = tensors.poisoned(dtype, {1, h});
  const Tensor mean = tensors.poisoned(DType::f32, {1}), rstd = tensors.poisoned(DType::f32, {1});

  ops->run(op::LayernormForward{.x = x, .gamma = gamma, .beta = beta, .eps = kEps, .y = y, .mean = mean, .rstd = rstd},
           *stream);

  const Normalized expected = reference_forward(values(x), values(gamma), values(beta), kEps);
  EXPECT_TRUE(near(y, expected.y, tolerance(dtype, 1)));
}

TEST_P(LayerNormTest, BackwardIsTheDerivative) {
  // 768 (GPT-2 124M): on a GPU the sums of dgamma and dbeta take exactly 48 KiB of shared memory. It comes first: a
  // kernel keeps a raised limit. 4096 and 12288 (Llama 3.1 8B and GPT-3 175B): rows split over a block's threads, all
  // in registers, up to the last thread; and one element more.
  for (const auto& [n, h] : {std::pair<int64_t, int64_t>{9, 768},
                             {67, 773},
                             {1, 2},
                             {3, 5},
                             {33, 64},
                             {2, 2560},
                             {3, 4096},
                             {2, 4097},
                             {2, 12288},
                             {2, 16392},
                             {1, 20485}}) {
    const Tensor x = tensors.uniform(dtype, {n, h}), dy = tensors.uniform(dtype, {n, h});
    const Tensor gamma = tensors.uniform(dtype, {h}), residual = tensors.uniform(dtype, {n, h});
    const Normalized forward = reference_forward(values(x), values(gamma), Values(static_cast<size_t>(h)), kEps);
    const Tensor mean = tensors.of(DType::f32, forward.mean), rstd = tensors.of(DType::f32, forward.rstd);
    const Tensor dgamma = tensors.uniform(DType::f32, {h}), dbeta = tensors.uniform(DType::f32, {h});
    Gradients expected = reference_backward(values(dy), values(x), values(gamma), kEps);
    expected.dgamma = plus(expected.dgamma, values(dgamma));
    expected.dbeta = plus(expected.dbeta, values(dbeta));
    const double scale = 4 * *std::max_element(forward.rstd.begin(), forward.rstd.end());

    const Tensor dx = tensors.poisoned(dtype, {n, h});
    ops->run(
        op::LayernormBackward{
            .dy = dy, .x = x, .gamma = gamma, .mean = mean, .rstd = rstd, .dx = dx, .dgamma = dgamma, .dbeta = dbeta},
        *stream);

    EXPECT_TRUE(near(dx, expected.dx, summed(dtype, expected.dx, h, scale)));
    EXPECT_TRUE(near(dgamma, expected.dgamma, tolerance(DType::f32, n, 4)));
    EXPECT_TRUE(near(dbeta, expected.dbeta, tolerance(DType::f32, n, 4)));

    // The results have the same bits with the residual's gradient, and with dx in place of dy or of the residual.
    const Tensor with = tensors.poisoned(dtype, {n, h});
    const Tensor of_gamma = tensors.full(DType::f32, {h}, 0), of_beta = tensors.full(DType::f32, {h}, 0);
    ops->run(op::LayernormBackward{.dy = dy,
                                   .x = x,
                                   .gamma = gamma,
                                   .mean = mean,
                                   .rstd = rstd,
                                   .residual = residual,
                                   .dx = with,
                                   .dgamma = of_gamma,
                                   .dbeta = of_beta},
             *stream);
    const Values sum = plus(expected.dx, values(residual));
    EXPECT_TRUE(near(with, sum, summed(dtype, sum, h, scale)));
    const Tensor over_dy = tensors.copy(dy), over_residual = tensors.copy(residual);
    ops->run(op::LayernormBackward{.dy = over_dy,
                                   .x = x,
                                   .gamma = gamma,
                                   .mean = mean,
                                   .rstd = rstd,
                                   .residual = residual,
                                   .dx = over_dy,
                                   .dgamma = of_gamma,
                                   .dbeta = of_beta},
             *stream);
    ops->run(op::LayernormBackward{.dy = dy,
                                   .x = x,
                                   .gamma = gamma,
                                   .mean = mean,
                                   .rstd = rstd,
                                   .residual = over_residual,
                                   .dx = over_residual,
                                   .dgamma = of_gamma,
                                   .dbeta = of_beta},
             *stream);
    EXPECT_TRUE(same_bits(over_dy, with));
    EXPECT_TRUE(same_bits(over_residual, with));
  }
}

TEST_P(LayerNormTest, RunsRepeatBitForBit) {
  const int64_t n = 130, h = 769;
  const Tensor x = tensors.uniform(dtype, {n, h}), dy = tensors.uniform(dtype, {n, h});
  const Tensor gamma = tensors.uniform(dtype, {h});
  const Tensor mean = tensors.full(DType::f32, {n}, 0.1), rstd = tensors.full(DType::f32, {n}, 1.5);
  Tensor first[3];
  for (int run = 0; run < 3; ++run) {
    const Tensor dx = tensors.poisoned(dtype, {n, h});
    const Tensor dgamma = tensors.full(DType::f32, {h}, 0), dbeta = tensors.full(DType::f32, {h}, 0);
    ops->run(
        op::LayernormBackward{
            .dy = dy, .x = x, .gamma = gamma, .mean = mean, .rstd = rstd, .dx = dx, .dgamma = dgamma, .dbeta = dbeta},
        *stream);
    if (run == 0) first[0] = dx, first[1] = dgamma, first[2] = dbeta;
    EXPECT_TRUE(same_bits(dx, first[0]));
    EXPECT_TRUE(same_bits(dgamma, first[1]));
    EXPECT_TRUE(same_bits(dbeta, first[2]));
  }
}

TEST_P(LayerNormTest, WithoutMeanAndBetaItIsRmsNorm) {
  for (const auto& [n, h] : {std::pair<int64_t, int64_t>{9, 768}, {67, 773}, {1, 1}, {3, 5}, {33, 64}, {4, 1032}, {2, 16392}, {1, 20485}}) {
    const Tensor x = tensors.uniform(dtype, {n, h}, -1, 3), dy = tensors.uniform(dtype, {n, h});
    const Tensor gamma = tensors.uniform(dtype, {h}), residual = tensors.uniform(dtype, {n, h});
    const Tensor y = tensors.poisoned(dtype, {n, h}), rstd = tensors.poisoned(DType::f32, {n});
    const Tensor dx = tensors.poisoned(dtype, {n, h}), dgamma = tensors.uniform(DType::f32, {h});
    const Normalized expected = reference_forward(values(x), values(gamma), {}, kEps);
    Gradients gradients = reference_backward(values(dy), values(x), values(gamma), kEps, true);
    gradients.dgamma = plus(gradients.dgamma, values(dgamma));
    gradients.dx = plus(gradients.dx, values(residual));
    const double scale = 4 * *std::max_element(expected.rstd.begin(), expected.rstd.end());

    ops->run(op::LayernormForward{.x = x, .gamma = gamma, .beta = {}, .eps = kEps, .y = y, .mean = {}, .rstd = rstd},
             *stream);
    ops->run(op::LayernormBackward{.dy = dy,
                                   .x = x,
                                   .gamma = gamma,
                                   .mean = {},
                                   .rstd = rstd,
                                   .residual = residual,
                                   .dx = dx,
                                   .dgamma = dgamma,
                                   .dbeta = {}},
             *stream);

    EXPECT_TRUE(near(y, expected.y, summed(dtype, expected.y, h, scale)));
    EXPECT_TRUE(near(rstd, expected.rstd, tolerance(DType::f32, h, scale)));
    EXPECT_TRUE(near(dx, gradients.dx, summed(dtype, gradients.dx, h, 2 * scale)));
    EXPECT_TRUE(near(dgamma, gradients.dgamma, tolerance(DType::f32, n, 2 * scale)));
    const Tensor alone = tensors.poisoned(dtype, {n, h}), of_gamma = tensors.full(DType::f32, {h}, 0);
    ops->run(
        op::LayernormBackward{
            .dy = dy, .x = x, .gamma = gamma, .mean = {}, .rstd = rstd, .dx = alone, .dgamma = of_gamma, .dbeta = {}},
        *stream);
    gradients.dx = plus(gradients.dx, [&] {
      Values minus = values(residual);
      for (double& value : minus) value = -value;
      return minus;
    }());
    EXPECT_TRUE(near(alone, gradients.dx, summed(dtype, gradients.dx, h, 2 * scale)));
  }
}

// At any offset but 0, the last row would end outside the tensor.
TEST(LayerNorm, WithoutHeadsHasNoOffset) {
  std::vector<float> x(8), y(8), gamma(4), rstd(2);
  const auto of = [](std::vector<float>& memory, Shape shape) { return Tensor{memory.data(), DType::f32, shape}; };
  op::LayernormForward norm{.x = of(x, {2, 4}),
                            .gamma = of(gamma, {4}),
                            .beta = {},
                            .eps = 1e-5f,
                            .y = of(y, {2, 4}),
                            .mean = {},
                            .rstd = of(rstd, {2})};
  check_arguments(norm);
  norm.rows.x.first = 1;
  EXPECT_THROW(check_arguments(norm), Error);
  norm.rows = {.y = {.first = 4}};
  EXPECT_THROW(check_arguments(norm), Error);
}

// Rows are heads of a packed tensor that also contains others, x and y lie in tensors with different strides, and
// gradients are computed in place.
TEST_P(LayerNormTest, HeadsOfAViewAreItsRows) {
  struct Case {
    int64_t s, b, heads, kv_heads, d;
  };
  for (const Case& c : {Case{3, 2, 4, 2, 8},
                        {5, 1, 6, 2, 5},
                        {2, 3, 3, 3, 64},
                        {9, 2, 4, 1, 80},
                        {2, 2, 2, 1, 128},
                        {2, 1, 4, 2, 264},
                        {1, 2, 2, 1, 1032}})
    for (const bool centered : {true, false})
      for (const bool of_keys : {false, true}) {
        SCOPED_TRACE(std::to_string(c.d) + (centered ? " layer norm" : " rms norm") + (of_keys ? " of keys" : ""));
        // given: queries or keys in one packed tensor, to be written among other heads of another
        const int64_t columns = (c.heads + 2 * c.kv_heads) * c.d, heads = of_keys ? c.kv_heads : c.heads;
        const int64_t n = c.s * c.b * heads;
        const auto view_of = [&](const Tensor& packed) {
          const QkvViews views = qkv_views(packed, c.heads, c.kv_heads);
          return of_keys ? views.k : views.q;
        };
        const auto places = [&](const HeadsView& view) {  // positions of the elements, row by row
          std::vector<size_t> at;
          for (int64_t row = 0; row < n; ++row)
            for (int64_t i = 0; i < c.d; ++i)
              at.push_back(static_cast<size_t>(view.first +
                                               view.layout.at(row / heads / c.b, row / heads % c.b, row % heads) + i));
          return at;
        };
        const auto gathered = [&](const HeadsView& view) {
          Values rows;
          const Values all = values(view.memory);
          for (const size_t at : places(view)) rows.push_back(all[at]);
          return rows;
        };
        const Tensor packed = tensors.uniform(dtype, {c.s, c.b, columns}, -1, 3);
        const Tensor written = tensors.uniform(dtype, {c.s + 1, c.b, columns});  // the last positions of a longer text
        const HeadsView x = view_of(packed), y = last_positions(view_of(written), c.s);
        const Tensor gamma = tensors.uniform(dtype, {c.d}), beta = tensors.uniform(dtype, {c.d});
        const Tensor mean = tensors.poisoned(DType::f32, {n}), rstd = tensors.poisoned(DType::f32, {n});
        const Normalized expected =
            reference_forward(gathered(x), values(gamma), centered ? values(beta) : Values{}, kEps);
        const auto spread = [&](Values all, const HeadsView& view, const Values& rows) {
          for (size_t i = 0; const size_t at : places(view)) all[at] = rows[i++];
          return all;
        };
        const Values expected_y = spread(values(written), y, expected.y);

        // when
        ops->run(op::LayernormForward{.x = packed,
                                      .gamma = gamma,
                                      .beta = centered ? beta : Tensor{},
                                      .eps = kEps,
                                      .y = written,
                                      .mean = centered ? mean : Tensor{},
                                      .rstd = rstd,
                                      .rows = {x.rows(), y.rows()}},
                 *stream);

        // then: each row matches the definition, and the elements between rows stay unchanged
        const double scale = 4 * *std::max_element(expected.rstd.begin(), expected.rstd.end());
        EXPECT_TRUE(near(written, expected_y, summed(dtype, expected_y, c.d, scale)));
        EXPECT_TRUE(near(rstd, expected.rstd, tolerance(DType::f32, c.d, scale)));
        if (centered) {
          EXPECT_TRUE(near(mean, expected.mean, tolerance(DType::f32, c.d, 3)));
        }

        // and so does the gradient
        const Tensor grad = tensors.uniform(dtype, {c.s + 1, c.b, columns});
        const HeadsView dy = last_positions(view_of(grad), c.s);
        const Tensor dgamma = tensors.uniform(DType::f32, {c.d}), dbeta = tensors.uniform(DType::f32, {c.d});
        Gradients gradients = reference_backward(gathered(dy), gathered(x), values(gamma), kEps, !centered);
        const Values expected_dx = spread(values(grad), dy, gradients.dx);
        const Values expected_dgamma = plus(gradients.dgamma, values(dgamma));
        const Values expected_dbeta = plus(gradients.dbeta, values(dbeta));
        ops->run(op::LayernormBackward{.dy = grad,
                                       .x = packed,
                                       .gamma = gamma,
                                       .mean = centered ? mean : Tensor{},
                                       .rstd = rstd,
                                       .dx = grad,
                                       .dgamma = dgamma,
                                       .dbeta = centered ? dbeta : Tensor{},
                                       .rows = {x.rows(), dy.rows()}},
                 *stream);
        EXPECT_TRUE(near(grad, expected_dx, summed(dtype, expected_dx, c.d, 2 * scale)));
        EXPECT_TRUE(near(dgamma, expected_dgamma, tolerance(DType::f32, n, 2 * scale)));
        if (centered) {
          EXPECT_TRUE(near(dbeta, expected_dbeta, tolerance(DType::f32, n, 4)));
        }
      }
}

// Checks the reference itself: its gradients are the slopes of its forward pass.
TEST(LayerNormReference, AgreesWithFiniteDifferences) {
  std::mt19937_64 random(5);
  std::uniform_real_distribution<double> draw(-1, 1);
  Values x(3 * 7), gamma(7), beta(7), dy(3 * 7);
  for (Values* v : {&x, &gamma, &beta, &dy})
    for (double& element : *v) element = draw(random);

  const Gradients found = reference_backward(dy, x, gamma, kEps);

  const auto of_x = [&](const Values& at) { return dot(dy, reference_forward(at, gamma, beta, kEps).y); };
  const auto of_gamma = [&](const Values& at) { return dot(dy, reference_forward(x, at, beta, kEps).y); };
  const auto of_beta = [&](const Values& at) { return dot(dy, reference_forward(x, gamma, at, kEps).y); };
  for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(found.dx[i], numeric_gradient(of_x, x, i), 1e-7);
  for (size_t c = 0; c < gamma.size(); ++c) {
    EXPECT_NEAR(found.dgamma[c], numeric_gradient(of_gamma, gamma, c), 1e-7);
    EXPECT_NEAR(found.dbeta[c], numeric_gradient(of_beta, beta, c), 1e-7);
  }

  const Gradients rms = reference_backward(dy, x, gamma, kEps, true);
  const auto rms_of_x = [&](const Values& at) { return dot(dy, reference_forward(at, gamma, {}, kEps).y); };
  const auto rms_of_gamma = [&](const Values& at) { return dot(dy, reference_forward(x, at, {}, kEps).y); };
  for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(rms.dx[i], numeric_gradient(rms_of_x, x, i), 1e-7);
  for (size_t c = 0; c < gamma.size(); ++c) EXPECT_NEAR(rms.dgamma[c], numeric_gradient(rms_of_gamma, gamma, c), 1e-7);
}

TEST_P(LayerNormTest, WrongArgumentsAreNamed) {
  const Tensor x = tensors.uniform(dtype, {4, 6}), h = tensors.uniform(dtype, {6});
  const Tensor n = tensors.uniform(DType::f32, {4}), sum = tensors.uniform(DType::f32, {6});
  const Tensor short_h = tensors.uniform(dtype, {5}), whole = tensors.integers(DType::i32, {4, 6}, 0, 1);
  const auto forward = [&](Tensor x, Tensor gamma, Tensor beta, Tensor y, Tensor mean, Tensor rstd) {
    return [=, this] {
      ops->run(
          op::LayernormForward{.x = x, .gamma = gamma, .beta = beta, .eps = kEps, .y = y, .mean = mean, .rstd = rstd},
          *stream);
    };
  };
  EXPECT_TRUE(throws_naming(forward(whole, h, h, x, n, n), {"layernorm_forward", " x ", "int32", "fp32 or bf16"}));
  EXPECT_TRUE(throws_naming(forward(x, short_h, h, x, n, n), {"layernorm_forward", "gamma", "[5]", "[6]"}));
  EXPECT_TRUE(throws_naming(forward(x, h, short_h, x, n, n), {"layernorm_forward", "beta", "[5]", "[6]"}));
  EXPECT_TRUE(throws_naming(forward(x, h, h, {}, n, n), {"layernorm_forward", " y ", "null", "[4, 6]"}));
  EXPECT_TRUE(throws_naming(forward(x, h, h, x, sum, n), {"layernorm_forward", "mean", "[6]", "[4]"}));
  EXPECT_TRUE(throws_naming(forward(x, h, h, x, n, sum), {"layernorm_forward", "rstd", "[6]", "[4]"}));
  EXPECT_TRUE(throws_naming(forward(x, h, {}, x, n, n), {"layernorm_forward", "beta", "null"}));
  EXPECT_TRUE(throws_naming(forward(x, h, h, x, {}, n), {"layernorm_forward", "mean", "null"}));

  const HeadsView heads = heads_view(x.view({2, 2, 6}), 2, 1);  // each 3 columns wide
  const auto of_heads = [&](const op::NormRows& rows, const Tensor& gamma, const Tensor& rstd) {
    return [=, this] {
      ops->run(
          op::LayernormForward{
              .x = x, .gamma = gamma, .beta = {}, .eps = kEps, .y = x, .mean = {}, .rstd = rstd, .rows = rows},
          *stream);
    };
  };
  const Tensor three = tensors.uniform(dtype, {3}), eight = tensors.uniform(DType::f32, {8});
  op::NormRows rows{heads.rows(), heads.rows()};
  EXPECT_NO_THROW(of_heads(rows, three, eight)());
  EXPECT_TRUE(throws_naming(of_heads(rows, h, eight), {"layernorm_forward", "gamma", "[6]", "[3]"}));
  EXPECT_TRUE(throws_naming(of_heads(rows, three, n), {"layernorm_forward", "rstd", "[4]", "[8]"}));
  EXPECT_TRUE(throws_naming(of_heads({heads.rows(), {}}, three, eight), {"layernorm_forward", " y ", "no heads"}));
  EXPECT_TRUE(throws_naming(of_heads({{}, heads.rows()}, three, eight), {"layernorm_forward", " x ", "no heads"}));
  rows.y.layout.s = 1;
  EXPECT_TRUE(
      throws_naming(of_heads(rows, three, eight), {"layernorm_forward", " y ", "[1, 2, 2, 3]", "[2, 2, 2, 3]"}));
  rows.x.first = 1;
  EXPECT_TRUE(throws_naming(of_heads(rows, three, eight), {"layernorm_forward", " x ", "at least the 25 elements"}));

  const auto backward = [&](Tensor dy, Tensor gamma, Tensor mean, Tensor rstd, Tensor residual, Tensor dx,
                            Tensor dgamma, Tensor dbeta) {
    return [=, this] {
      ops->run(op::LayernormBackward{.dy = dy,
                                     .x = x,
                                     .gamma = gamma,
                                     .mean = mean,
                                     .rstd = rstd,
                                     .residual = residual,
                                     .dx = dx,
                                     .dgamma = dgamma,
                                     .dbeta = dbeta},
               *stream);
    };
  };
  const auto named = [](const char* argument) { return std::vector<std::string>{"layernorm_backward", argument}; };
  EXPECT_TRUE(throws_naming(backward(h, h, n, n, {}, x, sum, sum), named(" dy ")));
  EXPECT_TRUE(throws_naming(backward(x, short_h, n, n, {}, x, sum, sum), named(" gamma ")));
  EXPECT_TRUE(throws_naming(backward(x, h, sum, n, {}, x, sum, sum), named(" mean ")));
  EXPECT_TRUE(throws_naming(backward(x, h, n, sum, {}, x, sum, sum), named(" rstd ")));
  EXPECT_TRUE(throws_naming(backward(x, h, n, n, h, x, sum, sum), named(" residual ")));
  EXPECT_TRUE(throws_naming(backward(x, h, n, n, {}, h, sum, sum), named(" dx ")));
  EXPECT_TRUE(throws_naming(backward(x, h, n, n, {}, x, n, sum), named(" dgamma ")));
  EXPECT_TRUE(throws_naming(backward(x, h, n, n, {}, x, sum, n), named(" dbeta ")));
  EXPECT_TRUE(throws_naming(backward(x, h, {}, n, {}, x, sum, sum), named(" mean ")));
  EXPECT_TRUE(throws_naming(backward(x, h, n, n, {}, x, sum, {}), named(" dbeta ")));
}

}  // namespace
}  // namespace trivet::test
