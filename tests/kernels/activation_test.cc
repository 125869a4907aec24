// GELU against its definition in double, alone and in a GEMM; SwiGLU alone.
#include <numbers>

#include "tests/support/matmul_options.h"
#include "tests/support/ops_fixture.h"

namespace trivet::test {
namespace {

double gelu(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}
double gelu_gradient(double x) {
  const double root = std::sqrt(2 / std::numbers::pi);
  const double t = std::tanh(root * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * root * (1 + 3 * 0.044715 * x * x);
}

class ActivationTest : public OpsTest {
 protected:
  void expect_gemm_with_gelu();
  void expect_gemm_with_derivative();
};
INSTANTIATE_TEST_SUITE_P(BackEnds, ActivationTest, all_types_and_back_ends(), case_name);

// Far below zero, 1 + tanh cancels in fp32, so the error is absolute: that of values of size |x|.
double allowed(DType dtype, double x, double expected) {
  return tolerance(DType::f32, 1, std::max(1.0, std::abs(x))) + tolerance(dtype, 1, std::abs(expected));
}

TEST_P(ActivationTest, GeluIsTheDefinition) {
  for (const int64_t n : {1, 7, 40'007}) {
    const Tensor x = tensors.uniform(dtype, {n}, -12, 12), y = tensors.poisoned(dtype, {n});

    ops->run(op::ActivationForward{x, y}, *stream);

    Values expected;
    for (const double at : values(x)) expected.push_back(gelu(at));
    EXPECT_TRUE(near(y, expected, [&](int64_t i) { return allowed(dtype, get(x, i), expected[size_t(i)]); }));
  }
}

TEST_P(ActivationTest, GeluBackwardIsTheDerivative) {
  for (const int64_t n : {1, 7, 40'007}) {
    const Tensor x = tensors.uniform(dtype, {n}, -12, 12), dy = tensors.uniform(dtype, {n});
    const Tensor dx = tensors.poisoned(dtype, {n});

    ops->run(op::ActivationBackward{.x = x, .dy = dy, .dx = dx}, *stream);

    Values expected;
    for (int64_t i = 0; i < n; ++i) expected.push_back(get(dy, i) * gelu_gradient(get(x, i)));
    EXPECT_TRUE(near(dx, expected, [&](int64_t i) { return allowed(dtype, get(x, i), expected[size_t(i)]); }));
    const Tensor over_dy = tensors.copy(dy);
    ops->run(op::ActivationBackward{.x = x, .dy = over_dy, .dx = over_dy}, *stream);
    EXPECT_TRUE(same_bits(over_dy, dx));
  }
}

// If tanh rounds to 1, the gradient is exactly 0 or 1, not infinity * 0.
TEST_P(ActivationTest, GeluIsFlatFarOut) {
  const Values far = {-1e30, -1e4, -50, 50, 1e4, 1e30};
  const Tensor x = tensors.of(dtype, far), dy = tensors.full(dtype, {6}, 1);
  const Tensor y = tensors.poisoned(dtype, {6}), dx = tensors.poisoned(dtype, {6});

  ops->run(op::ActivationForward{x, y}, *stream);
  ops->run(op::ActivationBackward{.x = x, .dy = dy, .dx = dx}, *stream);

  for (int64_t i = 0; i < 6; ++i) {
    EXPECT_NEAR(get(y, i), i < 3 ? 0 : get(x, i), 1e-3);
    EXPECT_NEAR(get(dx, i), i < 3 ? 0 : 1, 1e-6);
  }
}

TEST_P(ActivationTest, NotANumberStaysOne) {
  const Tensor x = tensors.full(dtype, {40}, std::nan("")), y = tensors.full(dtype, {40}, 0);
  ops->run(op::ActivationForward{x, y}, *stream);
  for (const double value : values(y)) EXPECT_TRUE(std::isnan(value));
}

// ---- SwiGLU

double silu(double x) { return x / (1 + std::exp(-x)); }
double silu_gradient(double x) {
  const double s = 1 / (1 + std::exp(-x));
  return s * (1 + x * (1 - s));
}

TEST_P(ActivationTest, SwigluAndItsGradientsAreTheDefinition) {
  for (const auto& [n, f] : {std::pair<int64_t, int64_t>{1, 1}, {3, 7}, {5, 40}, {67, 1031}}) {
    const Tensor x = tensors.uniform(dtype, {n, 2 * f}, -12, 12), dy = tensors.uniform(dtype, {n, f});
    const Tensor y = tensors.poisoned(dtype, {n, f}), dx = tensors.poisoned(dtype, {n, 2 * f});

    ops->run(op::ActivationForward{.x = x, .y = y, .kind = Activation::swiglu}, *stream);
    ops->run(op::ActivationBackward{.x = x, .dy = dy, .dx = dx, .kind = Activation::swiglu}, *stream);

    Values of_y(static_cast<size_t>(n * f)), of_x(static_cast<size_t>(2 * n * f));
    for (int64_t i = 0; i < n * f; ++i) {
      const int64_t at = i / f * 2 * f + i % f;
      const double gate = get(x, at), up = get(x, at + f), d = get(dy, i);
      of_y[static_cast<size_t>(i)] = silu(gate) * up;
      of_x[static_cast<size_t>(at)] = d * up * silu_gradient(gate);
      of_x[static_cast<size_t>(at + f)] = d * silu(gate);
    }
    EXPECT_TRUE(near(y, of_y, [&](int64_t i) { return allowed(dtype, 144, of_y[size_t(i)]); }));
    EXPECT_TRUE(near(dx, of_x, [&](int64_t i) { return allowed(dtype, 144, of_x[size_t(i)]); }));
  }
}

// e^-gate is infinity or 0: no product is NaN.
TEST_P(ActivationTest, SwigluIsFlatFarOut) {
  const Tensor x = tensors.of(dtype, {-1e30, -200, -90, 90, 200, 1e30, 1, 1, 1, 1, 1, 1}).view({1, 12});
  const Tensor dy = tensors.full(dtype, {1, 6}, 1), y = tensors.poisoned(dtype, {1, 6});
  const Tensor dx = tensors.poisoned(dtype, {1, 12});

  ops->run(op::ActivationForward{.x = x, .y = y, .kind = Activation::swiglu}, *stream);
  ops->run(op::ActivationBackward{.x = x, .dy = dy, .dx = dx, .kind = Activation::swiglu}, *stream);

  for (int64_t i = 0; i < 6; ++i) {
    EXPECT_NEAR(get(y, i), i < 3 ? 0 : get(x, i), 1e-3);
    EXPECT_NEAR(get(dx, i), i < 3 ? 0 : 1, 1e-6);
    EXPECT_NEAR(get(dx, 6 + i), i < 3 ? 0 : get(x, i), 1e-3);
  }
}

// ---- in a GEMM

struct Sizes {
  int64_t m, n, k;
};
// The last GEMM has fused kernels on a GPU; the rows of the first are not aligned.
constexpr Sizes kGemms[] = {{5, 7, 3}, {37, 70, 45}, {64, 256, 96}, {24, 72, 40}, {16, 80, 50}};

// Tolerance of a b (both as given) against the sum in double, before rounding to dtype.
double of_sum(int64_t k) { return tolerance(DType::f32, k, std::sqrt(static_cast<double>(k))); }

void ActivationTest::expect_gemm_with_gelu() {
  for (const auto& [m, n, k] : kGemms) {
    const Tensor a = tensors.uniform(dtype, {m, k}, -2, 2), b = tensors.uniform(dtype, {n, k});
    const Tensor bias = tensors.uniform(dtype, {n});
    const Tensor before = tensors.poisoned(dtype, {m, n}), c = tensors.poisoned(dtype, {m, n});

    ops->run(op::Matmul{.a = a, .b = b, .c = c, .transpose_b = true, .bias = bias, .pre_activation = before}, *stream);

    Values sums, expected;
    for (int64_t i = 0; i < m * n; ++i) {
      double sum = get(bias, i % n);
      for (int64_t l = 0; l < k; ++l) sum += get(a, i / n * k + l) * get(b, i % n * k + l);
      sums.push_back(sum);
      expected.push_back(gelu(sum));
    }
    const auto of_before = [&](int64_t i) { return of_sum(k) + tolerance(dtype, 1, std::abs(sums[size_t(i)])); };
    EXPECT_TRUE(near(before, sums, of_before));
    EXPECT_TRUE(near(c, expected, [&](int64_t i) {  // gelu' is at most 1.13
      return 1.13 * of_before(i) + allowed(dtype, sums[size_t(i)], expected[size_t(i)]);
    }));
    if (threads == kOnCuda) continue;

    // On a CPU: the bits of the separate ops, also for a subset of the rows.
    const Tensor x = tensors.poisoned(dtype, {m, n}), y = tensors.poisoned(dtype, {m, n});
    ops->run(op::Matmul{.a = a, .b = b, .c = x, .transpose_b = true, .bias = bias}, *stream);
    ops->run(op::ActivationForward{x, y}, *stream);
    EXPECT_TRUE(same_bits(before, x));
    EXPECT_TRUE(same_bits(c, y));
    const Tensor part_before = tensors.poisoned(dtype, {2, n}), part = tensors.poisoned(dtype, {2, n});
    ops->run(
        op::Matmul{
            .a = a.slice(1, 2), .b = b, .c = part, .transpose_b = true, .bias = bias, .pre_activation = part_before},
        *stream);
    EXPECT_TRUE(same_bits(part_before, x.slice(1, 2)));
    EXPECT_TRUE(same_bits(part, y.slice(1, 2)));
  }
}

void ActivationTest::expect_gemm_with_derivative() {
  for (const auto& [m, n, k] : kGemms) {
    const Tensor dy = tensors.uniform(dtype, {m, k}), weight = tensors.uniform(dtype, {k, n});
    const Tensor x = tensors.uniform(dtype, {m, n}, -5, 5), dx = tensors.poisoned(dtype, {m, n});

    ops->run(op::Matmul{.a = dy, .b = weight, .c = dx, .activation_backward = x}, *stream);

    Values expected, products;
    for (int64_t i = 0; i < m * n; ++i) {
      double product = 0;
      for (int64_t l = 0; l < k; ++l) product += get(dy, i / n * k + l) * get(weight, l * n + i % n);
      products.push_back(product);
      expected.push_back(product * gelu_gradient(get(x, i)));
    }
    EXPECT_TRUE(near(dx, expected, [&](int64_t i) {
      const double of_product = of_sum(k) + tolerance(dtype, 1, std::abs(products[size_t(i)]));
      return 1.13 * of_product + std::abs(products[size_t(i)]) * allowed(dtype, get(x, i), 1.13);
    }));
    if (threads == kOnCuda) continue;

    const Tensor separate = tensors.poisoned(dtype, {m, n});
    ops->run(op::Matmul{.a = dy, .b = weight, .c = separate}, *stream);
    ops->run(op::ActivationBackward{.x = x, .dy = separate, .dx = separate}, *stream);
    EXPECT_TRUE(same_bits(dx, separate));
  }
}

TEST_P(ActivationTest, AGemmWithGeluIsTheGemmAndItsGelu) { expect_gemm_with_gelu(); }
TEST_P(ActivationTest, AGemmTimesTheDerivativeIsBoth) { expect_gemm_with_derivative(); }

TEST_P(ActivationTest, GemmsThatAreTriedOutAreTheSame) {
  if (threads != kOnCuda) GTEST_SKIP() << "of the GPU's library";
  ops = create_test_ops(threads, {.trial_operations = 0});
  expect_gemm_with_gelu();
  expect_gemm_with_derivative();
}

TEST(ActivationReference, AgreesWithFiniteDifferences) {
  for (double x = -6; x <= 6; x += 0.37) EXPECT_NEAR(gelu_gradient(x), (gelu(x + 1e-5) - gelu(x - 1e-5)) / 2e-5, 1e-8);
  for (double x = -6; x <= 6; x += 0.37) EXPECT_NEAR(silu_gradient(x), (silu(x + 1e-5) - silu(x - 1e-5)) / 2e-5, 1e-8);
}

TEST_P(ActivationTest, WrongArgumentsAreNamed) {
  const Tensor x = tensors.uniform(dtype, {4, 6}), other = tensors.uniform(dtype, {6, 4});
  const Tensor type = tensors.uniform(dtype == DType::f32 ? DType::bf16 : DType::f32, {4, 6});
  EXPECT_TRUE(throws_naming(
      [&] {
        ops->run(op::ActivationForward{{}, x}, *stream);
      },
      {"activation_forward", " x ", "null"}));
  EXPECT_TRUE(throws_naming(
      [&] {
        ops->run(op::ActivationForward{x, other}, *stream);
      },
      {"activation_forward", " y ", "[6, 4]", "[4, 6]"}));
  EXPECT_TRUE(throws_naming([&] { ops->run(op::ActivationBackward{.x = x, .dy = type, .dx = x}, *stream); },
                            {"activation_backward", " dy ", "fp32", "bf16"}));
  EXPECT_TRUE(throws_naming([&] { ops->run(op::ActivationBackward{.x = x, .dy = x, .dx = other}, *stream); },
                            {"activation_backward", " dx ", "[6, 4]"}));
  EXPECT_TRUE(
      throws_naming([&] { ops->run(op::ActivationForward{.x = x, .y = x, .kind = Activation::swiglu}, *stream); },
                    {"activation_forward", " y ", "[4, 6]", "[4, 3]"}));
  EXPECT_TRUE(throws_naming(
      [&] { ops->run(op::ActivationBackward{.x = x, .dy = x, .dx = x, .kind = Activation::swiglu}, *stream); },
      {"activation_backward", " dy ", "[4, 6]", "[4, 3]"}));
  const Tensor half = tensors.uniform(dtype, {4, 3});
  EXPECT_TRUE(
      throws_naming([&] { ops->run(op::ActivationForward{.x = half, .y = half, .kind = Activation::swiglu}, *stream); },
                    {"activation_forward", " x ", "[4, 3]", "even"}));
  const Tensor square = tensors.uniform(dtype, {6, 6}), c = tensors.uniform(dtype, {4, 6});
  const Tensor bias = tensors.uniform(dtype, {6});
  const auto multiply = [&](const MatmulOptions& how) {
    return [=, this] { ops->run(how.of(x, square, c), *stream); };
  };
  EXPECT_TRUE(throws_naming(multiply({.pre_activation = other}), {"matmul", " pre_activation ", "[6, 4]", "[4, 6]"}));
  EXPECT_TRUE(
      throws_naming(multiply({.activation_backward = type}), {"matmul", " activation_backward ", "fp32", "bf16"}));
  EXPECT_TRUE(throws_naming(multiply({.accumulate = true, .pre_activation = x}), {"matmul", "epilogue", "accumulate"}));
  EXPECT_TRUE(
      throws_naming(multiply({.bias = bias, .activation_backward = x}), {"matmul", "bias", "activation_backward"}));
}

}  // namespace
}  // namespace trivet::test
