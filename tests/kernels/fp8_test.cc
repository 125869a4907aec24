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
  // Non-finite values stay non-finite.
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

// 40003 elements span several threads or blocks, and are not a multiple of the vector width.
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

// A GPU searches a large tensor in several sweeps of its grid: here, four of 132 multiprocessors, or of the emulated 4.
TEST_P(Fp8OpsTest, TheLargestMagnitudeIsFoundInEverySweep) {
  const int64_t n = threads == kOnCuda && !gpu_is_emulated() ? 8'000'003 : 200'003;
  const Tensor x = tensors.full(dtype, {1, n}, 1e-3), amax = tensors.poisoned(DType::f32, {1});
  for (int64_t quarter = 1; quarter <= 4; ++quarter) {
    const int64_t outlier = n * quarter / 4 - 1;
    set(x, outlier, -37.5);

    ops->run(op::Amax{x, amax}, *stream);
    stream->synchronize();

    EXPECT_EQ(get(amax, 0), 37.5) << "element " << outlier << " of " << n;
    set(x, outlier, 1e-3);
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

// The three GEMMs of a linear layer, with sizes that are multiples of 16, as GPUs require, and sizes that are not.
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
  // The last shape is GPT-2's fc2, whose operands are decoded by several threads.
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

// ---- block scales

// How a matrix is split: each of `groups` groups of rows into blocks of rows x columns, which are smaller at the ends.
struct BlocksOf {
  int64_t groups, rows, columns;
  Shape scales(int64_t m, int64_t n) const {
    return {groups, (m / groups + rows - 1) / rows, (n + columns - 1) / columns};
  }
  size_t index(int64_t m, int64_t n, int64_t i, int64_t j) const {
    const int64_t group = m / groups, row = i / group * scales(m, n)[1] + i % group / rows;
    return static_cast<size_t>(row * scales(m, n)[2] + j / columns);
  }
};
constexpr BlocksOf kAlongColumns{1, 1, 128}, kAlongRows{1, 128, 1}, kSquares{1, 128, 128};

class Fp8BlocksTest : public Fp8OpsTest {
 protected:
  Quantised quantise(const Tensor& x, const BlocksOf& blocks) {
    const Quantised q{tensors.poisoned(DType::e4m3, x.shape),
                      tensors.poisoned(DType::f32, blocks.scales(x.rows(), x.cols()))};
    ops->run(op::Quantize{x, {}, q.values, q.scale}, *stream);
    stream->synchronize();
    return q;
  }
};
INSTANTIATE_TEST_SUITE_P(BackEnds, Fp8BlocksTest,
                         testing::Values(std::tuple(DType::f32, 2), std::tuple(DType::bf16, 1),
                                         std::tuple(DType::bf16, 3), std::tuple(DType::f32, kOnCuda),
                                         std::tuple(DType::bf16, kOnCuda)),
                         case_name);

// Magnitudes differ by up to 2^40 between parts of the matrix; some parts are zero, and some are too small for a scale
// of their own.
TEST_P(Fp8BlocksTest, EachHasTheScaleOfItsOwnLargestMagnitude) {
  struct Case {
    int64_t m, n;
    BlocksOf blocks;
  };
  for (const auto& [m, n, blocks] :
       {Case{3, 300, kAlongColumns}, Case{4, 128, kAlongColumns}, Case{10, 129, {5, 1, 128}}, Case{1, 7, kAlongColumns},
        Case{300, 5, kAlongRows}, Case{600, 33, {3, 128, 1}}, Case{128, 2, kAlongRows}, Case{300, 200, kSquares},
        Case{400, 128, {2, 128, 128}}, Case{1, 1, kSquares}, Case{130, 264, kAlongColumns}, Case{300, 136, kAlongRows},
        Case{1, 300, kAlongRows}, Case{144, 264, {2, 128, 128}}}) {
    const Tensor x = tensors.uniform(dtype, {m, n});
    for (int64_t i = 0; i < x.numel(); ++i) {
      const int64_t part = i / n / 50 * 31 + i % n / 50 * 7, kind = part % 13;
      set(x, i, get(x, i) * (kind == 0 ? 0 : kind == 1 ? 1e-42 : std::exp2(static_cast<double>(part * 17 % 40 - 20))));
    }
    Values largest(static_cast<size_t>(blocks.scales(m, n).numel()));
    for (int64_t i = 0; i < x.numel(); ++i) {
      double& of_block = largest[blocks.index(m, n, i / n, i % n)];
      of_block = std::max(of_block, std::abs(get(x, i)));
    }
    const Quantised q = quantise(x, blocks);
    for (size_t b = 0; b < largest.size(); ++b) {
      const double scale = largest[b] == 0 ? 1 : std::exp2(std::min(126.0, std::floor(std::log2(448 / largest[b]))));
      ASSERT_EQ(get(q.scale, static_cast<int64_t>(b)), 1 / scale) << "block " << b << " of " << m << " x " << n;
    }
    for (int64_t i = 0; i < x.numel(); ++i) {
      const double scale = 1 / get(q.scale, static_cast<int64_t>(blocks.index(m, n, i / n, i % n)));
      ASSERT_EQ(static_cast<uint8_t*>(q.values.data)[i], E4m3::encode(static_cast<float>(get(x, i) * scale)))
          << "element " << i << " of " << m << " x " << n;
    }
  }
}

TEST_P(Fp8BlocksTest, WhatIsNotFiniteStaysInItsBlock) {
  for (const BlocksOf& blocks : {kAlongColumns, kAlongRows, kSquares})
    for (const float odd : {kInfinite, -kInfinite, kNan}) {
      constexpr int64_t m = 256, n = 256, at = 130 * n + 5;
      const Tensor x = tensors.full(dtype, {m, n}, 3);
      set(x, at, odd);
      const Quantised q = quantise(x, blocks);
      for (int64_t i = 0; i < m * n; ++i) {
        const size_t block = blocks.index(m, n, i / n, i % n);
        ASSERT_EQ(get(q.scale, static_cast<int64_t>(block)),
                  block == blocks.index(m, n, at / n, at % n) ? 1 : 1.0 / 128);
        const double found = get(q.values, i) * get(q.scale, static_cast<int64_t>(block));
        ASSERT_TRUE(i == at ? std::isnan(found) : found == 3) << i;
      }
    }
}

// The three GEMMs of a linear layer a bit wider than GPT-2's: sums over several blocks and a partial one. Then sizes
// that cuBLASLt admits, and a gated fc1 whose halves do not have whole blocks.
TEST_P(Fp8BlocksTest, ProductsAreThoseOfTheDecodedOperands) {
  if (dtype != DType::bf16) return;
  struct Role {
    const char* what;
    BlocksOf a, b;
    bool transpose_a, transpose_b;
    DType c;
    int64_t m, n, k;
  };
  for (const Role& role :
       {Role{"forward", kAlongColumns, kSquares, false, true, DType::bf16, 9, 140, 800},
        Role{"gradient of the input", kAlongColumns, kSquares, false, false, DType::bf16, 9, 140, 800},
        Role{"gradient of the weight", kAlongRows, {4, 128, 1}, true, false, DType::f32, 33, 20, 800},
        Role{"gradient of the weight, of a pair", {2, 128, 1}, kAlongRows, true, false, DType::f32, 20, 130, 200},
        Role{"forward, admitted", kAlongColumns, kSquares, false, true, DType::bf16, 12, 264, 400},
        Role{"gradient of the input, admitted", kAlongColumns, kSquares, false, false, DType::bf16, 12, 264, 400},
        Role{"gradient of the weight, admitted", kAlongRows, {2, 128, 1}, true, false, DType::f32, 36, 20, 256},
        Role{"forward of two", kAlongColumns, {2, 128, 128}, false, true, DType::bf16, 12, 144, 272},
        Role{"gradient of the input, of two", kAlongColumns, {2, 128, 128}, false, false, DType::bf16, 12, 264, 256},
        Role{"the same, uneven", kAlongColumns, {2, 128, 128}, false, false, DType::bf16, 12, 264, 144}}) {
    const auto& [what, blocks_a, blocks_b, transpose_a, transpose_b, c_type, m, n, k] = role;
    const Tensor a = tensors.uniform(DType::bf16, transpose_a ? Shape{k, m} : Shape{m, k});
    const Tensor b = tensors.uniform(DType::bf16, transpose_b ? Shape{n, k} : Shape{k, n});
    for (const Tensor& x : {a, b})
      for (int64_t i = 0; i < x.numel(); ++i)
        set(x, i, get(x, i) * std::exp2(static_cast<double>((i / x.cols() / 128 + i % x.cols() / 128) % 5 - 2)));
    const Quantised qa = quantise(a, blocks_a), qb = quantise(b, blocks_b);
    const auto decoded = [](const Quantised& q, const BlocksOf& blocks, int64_t i, int64_t j) {
      const int64_t rows = q.values.rows(), columns = q.values.cols();
      return get(q.values, i * columns + j) * get(q.scale, static_cast<int64_t>(blocks.index(rows, columns, i, j)));
    };
    Values expected(static_cast<size_t>(m * n));
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j)
        for (int64_t l = 0; l < k; ++l)
          expected[static_cast<size_t>(i * n + j)] +=
              (transpose_a ? decoded(qa, blocks_a, l, i) : decoded(qa, blocks_a, i, l)) *
              (transpose_b ? decoded(qb, blocks_b, j, l) : decoded(qb, blocks_b, l, j));
    const Tensor c = tensors.poisoned(c_type, {m, n});
    ops->run(op::Matmul{.a = qa.values,
                        .b = qb.values,
                        .c = c,
                        .transpose_a = transpose_a,
                        .transpose_b = transpose_b,
                        .scales = {qa.scale, qb.scale}},
             *stream);
    stream->synchronize();
    EXPECT_TRUE(near(c, expected, summed(c_type, expected, k, 16))) << what;
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
  for (const Shape& shape : {Shape{1, 2, 1}, Shape{3, 1, 1}, Shape{1, 16, 2}, Shape{0, 1, 1}, Shape{16, 2, 1}})
    refused(DType::e4m3, DType::e4m3, tensors.full(DType::f32, shape, 1), {}, "scales.a is [");
  const auto quantize = [&](const Tensor& amax, const Tensor& scale) {
    return [=, this] { check_arguments(op::Quantize{c, amax, of(DType::e4m3), scale}); };
  };
  const Tensor blocks = tensors.full(DType::f32, {1, 1, 1}, 1);
  EXPECT_TRUE(throws_naming(quantize({}, one), {"quantize", "amax"}));
  EXPECT_TRUE(throws_naming(quantize(one, tensors.full(DType::f32, {1, 16, 1}, 1)), {"quantize", "scale"}));
  EXPECT_NO_THROW(quantize({}, blocks)());
}

// 14-bit accumulation (DeepSeek-V3 2024): next to 256, bits below its 14th are lost within 128 terms, but not beyond
// them, because groups of 128 terms are added in fp32.
TEST(NarrowSums, LoseWhatIsBelowTheFourteenthBitOfTheLargestTerm) {
  const auto device = create_cpu_device();
  const auto stream = device->create_compute_stream();
  Arena arena(*device, "narrow");
  for (const CpuIsa isa : usable_cpu_isas())
    for (const bool narrow : {false, true}) {
      const auto ops = create_cpu_ops(1, isa, narrow);
      constexpr int64_t kTerms = 256;
      const Tensor a = arena.allocate(DType::e4m3, {1, kTerms}), b = arena.allocate(DType::e4m3, {1, kTerms});
      const Tensor one = arena.allocate(DType::f32, {1}), c = arena.allocate(DType::f32, {1, 1});
      one.as<float>()[0] = 1;
      auto *const x = static_cast<uint8_t*>(a.data), *const y = static_cast<uint8_t*>(b.data);
      std::fill_n(x, kTerms, E4m3::encode(0.125f)), std::fill_n(y, kTerms, E4m3::encode(0.125f));  // 1 / 64 each
      x[40] = y[40] = E4m3::encode(16);                                                            // 256
      ops->run(op::Matmul{.a = a, .b = b, .c = c, .transpose_b = true, .scales = {one, one}}, *stream);
      // 256's 14th bit is 1 / 32: the 31 terms summed with it are lost, and so are the later ones up to the 128th.
      EXPECT_EQ(c.as<float>()[0], narrow ? 256 + 0.5f + 2 : 256 + 255 / 64.0f) << name_of(isa);
    }
}

}  // namespace
}  // namespace trivet::test
