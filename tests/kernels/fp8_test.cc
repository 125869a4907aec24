// FP8: every code and every rounding against ml_dtypes (tests/golden/fp8.txt), scales at the ends of their range, and
// the ops that quantise and multiply.
#include "kernels/base/fp8.h"

#include <fstream>
#include <limits>
#include <sstream>

#include "tests/support/ops_fixture.h"
#include "tests/support/where.h"

namespace trivet::test {
namespace {

constexpr float kInfinite = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();

template <class Format>
void expect_golden(const std::string& format) {
  std::ifstream file(source_path("tests/golden/fp8.txt"));
  int decoded = 0, encoded = 0;
  for (std::string line, name, kind; std::getline(file, line);) {
    std::istringstream words(line);
    words >> name >> kind;
    if (name != format) continue;
    for (std::string word; words >> word;) {
      const float x = std::bit_cast<float>(static_cast<uint32_t>(std::stoul(word.substr(0, 8), nullptr, 16)));
      if (kind == "decode") {
        const float found = Format::decode(static_cast<uint8_t>(decoded++));
        EXPECT_TRUE(std::isnan(x) ? std::isnan(found) : found == x && std::signbit(found) == std::signbit(x))
            << format << " code " << decoded - 1 << " is " << found << ", expected " << x;
      } else {
        EXPECT_EQ(Format::encode(x), std::stoul(word.substr(9), nullptr, 16)) << format << " of " << x;
        ++encoded;
      }
    }
  }
  EXPECT_EQ(decoded, 256);
  EXPECT_GT(encoded, 1000);
  // What is not finite does not become finite.
  for (const float x : {kInfinite, -kInfinite, kNan, -kNan})
    EXPECT_FALSE(std::isfinite(Format::decode(Format::encode(x)))) << format << " of " << x;
}

TEST(Fp8, RoundsAsMlDtypesDoes) {
  expect_golden<E4m3>("e4m3");
  expect_golden<E5m2>("e5m2");
}

template <class Format>
void expect_scales() {
  constexpr float kTiny = std::numeric_limits<float>::denorm_min();
  for (const float amax :
       {0.0f, kTiny, 1e-38f, 1e-30f, 0.99f, 1.0f, 1.75f, 1.76f, Format::kMax, Format::kMax * 1.01f, 3e38f, kInfinite}) {
    const float scale = Format::scale_for(amax);
    EXPECT_TRUE(std::isnormal(scale) && std::isnormal(1 / scale)) << amax;
    int exponent = 0;
    EXPECT_EQ(std::frexp(scale, &exponent), 0.5f) << amax << " has no power of two: " << scale;
    if (amax == 0 || std::isinf(amax)) {
      EXPECT_EQ(scale, 1) << amax;
      continue;
    }
    EXPECT_LE(amax * scale, Format::kMax) << amax;
    if (exponent < 127) {
      EXPECT_GT(2 * amax * scale, Format::kMax) << amax << ": twice as much would do";
    }
  }
}

TEST(Fp8, AScaleIsTheLargestPowerOfTwoThatOverflowsNothing) {
  expect_scales<E4m3>();
  expect_scales<E5m2>();
}

class Fp8OpsTest : public OpsTest {
 protected:
  struct Quantised {
    Tensor values, scale;
  };
  Quantised quantise(const Tensor& x, DType format) {
    const Tensor amax = tensors.poisoned(DType::f32, {1});
    const Quantised q{tensors.poisoned(format, x.shape), tensors.poisoned(DType::f32, {1})};
    ops->run(op::Amax{x, amax}, *stream);
    ops->run(op::Quantize{x, amax, q.values, q.scale}, *stream);
    stream->synchronize();
    return q;
  }
};
INSTANTIATE_TEST_SUITE_P(BackEnds, Fp8OpsTest, all_types_and_back_ends(), case_name);

// 40000 elements are several threads' or blocks' and no multiple of a vector.
TEST_P(Fp8OpsTest, QuantisesByTheLargestMagnitudeOfAllElements) {
  for (const int64_t n : {int64_t{1}, int64_t{7}, int64_t{257}, int64_t{40'003}})
    for (const DType format : {DType::e4m3, DType::e5m2})
      for (const int64_t outlier : {int64_t{0}, n / 2, n - 1}) {
        const Tensor x = tensors.uniform(dtype, {1, n}, -1e-3, 1e-3);
        set(x, outlier, -37.5);
        const Quantised q = quantise(x, format);
        dispatch_fp8(format, [&]<class Format>() {
          const float scale = Format::scale_for(37.5f);
          EXPECT_EQ(get(q.scale, 0), 1 / scale);
          for (int64_t i = 0; i < n; ++i)
            ASSERT_EQ(static_cast<uint8_t*>(q.values.data)[i], Format::encode(static_cast<float>(get(x, i)) * scale))
                << name_of(format) << " element " << i << " of " << n;
        });
      }
}

TEST_P(Fp8OpsTest, WhatIsNotFiniteStaysSoAndZerosStayZero) {
  for (const DType format : {DType::e4m3, DType::e5m2})
    for (const float odd : {kInfinite, -kInfinite, kNan, 0.0f}) {
      const Tensor x = tensors.full(dtype, {3, 100}, odd == 0 ? 0 : 2);
      set(x, 250, odd);
      const Quantised q = quantise(x, format);
      EXPECT_EQ(get(q.scale, 0), 1);
      dispatch_fp8(format, [&]<class Format>() {
        for (int64_t i = 0; i < 300; ++i) {
          const float found = Format::decode(static_cast<uint8_t*>(q.values.data)[i]);
          EXPECT_EQ(std::isfinite(found), i != 250 || odd == 0) << odd;
          EXPECT_TRUE(!std::isfinite(found) || found == (odd == 0 ? 0 : 2)) << i;
        }
      });
    }
}

// In the roles of a linear layer's three GEMMs, of sizes that are multiples of 16, as GPUs want them, and that are not.
TEST_P(Fp8OpsTest, ProductsAreThoseOfTheDecodedOperands) {
  if (dtype != DType::bf16) return;
  struct Role {
    DType a, b, c;
    bool transpose_a, transpose_b, accumulate, bias;
  };
  const Role roles[] = {{DType::e4m3, DType::e4m3, DType::bf16, false, true, false, true},
                        {DType::e5m2, DType::e4m3, DType::bf16, false, false, false, false},
                        {DType::e5m2, DType::e4m3, DType::f32, true, false, true, false},
                        {DType::e4m3, DType::e4m3, DType::f32, true, false, false, false}};
  // The last one is GPT-2's fc2, whose operands are decoded by several threads.
  const std::vector<std::array<int64_t, 3>> shapes{
      {32, 48, 64}, {16, 16, 144}, {5, 7, 33}, {130, 17, 65}, {8, 768, 3072}};
  for (const Role& role : roles)
    for (const auto& [m, n, k] : shapes) {
      if (k > 1000 && &role != roles) continue;
      const Tensor a = tensors.uniform(DType::bf16, role.transpose_a ? Shape{k, m} : Shape{m, k}, -3, 3);
      const Tensor b = tensors.uniform(DType::bf16, role.transpose_b ? Shape{n, k} : Shape{k, n}, -0.1, 0.1);
      const Tensor bias = tensors.uniform(DType::bf16, {n});
      const Quantised qa = quantise(a, role.a), qb = quantise(b, role.b);
      const Tensor c = role.accumulate ? tensors.uniform(role.c, {m, n}) : tensors.poisoned(role.c, {m, n});
      Values expected(static_cast<size_t>(m * n));
      const Values in_a = values(qa.values), in_b = values(qb.values);
      const double scale = get(qa.scale, 0) * get(qb.scale, 0);
      for (int64_t i = 0; i < m; ++i)
        for (int64_t j = 0; j < n; ++j) {
          double sum = role.accumulate ? get(c, i * n + j) : role.bias ? get(bias, j) : 0;
          for (int64_t l = 0; l < k; ++l)
            sum += scale * in_a[static_cast<size_t>(role.transpose_a ? l * m + i : i * k + l)] *
                   in_b[static_cast<size_t>(role.transpose_b ? j * k + l : l * n + j)];
          expected[static_cast<size_t>(i * n + j)] = sum;
        }
      ops->run(op::Matmul{.a = qa.values,
                          .b = qb.values,
                          .c = c,
                          .transpose_a = role.transpose_a,
                          .transpose_b = role.transpose_b,
                          .accumulate = role.accumulate,
                          .bias = role.bias ? bias : Tensor{},
                          .scales = {qa.scale, qb.scale}},
               *stream);
      stream->synchronize();
      EXPECT_TRUE(near(c, expected, summed(role.c, expected, k, 0.3)))
          << m << " x " << n << " x " << k << " " << name_of(role.a);
    }
}

TEST_P(Fp8OpsTest, WrongArgumentsAreNamed) {
  if (dtype != DType::bf16) return;
  const auto of = [&](DType type) { return tensors.full(type, {16, 16}, 1); };
  const Tensor one = tensors.full(DType::f32, {1}, 1), c = of(DType::bf16);
  const auto refused = [&](DType a, DType b, Tensor scale, Tensor bias_grad, const char* what) {
    EXPECT_TRUE(throws_naming(
        [&] {
          check_arguments(op::Matmul{.a = of(a),
                                     .b = of(b),
                                     .c = c,
                                     .transpose_a = static_cast<bool>(bias_grad),
                                     .bias_grad = bias_grad,
                                     .scales = {scale, one}});
        },
        {"matmul", what}));
  };
  refused(DType::e5m2, DType::e5m2, one, {}, "e5m2");
  refused(DType::e4m3, DType::bf16, one, {}, "b is");
  refused(DType::e4m3, DType::e4m3, {}, {}, "scales.a");
  refused(DType::bf16, DType::bf16, one, {}, "scales");
  refused(DType::e4m3, DType::e4m3, one, tensors.full(DType::f32, {16}, 0), "bias_grad");
}

}  // namespace
}  // namespace trivet::test
