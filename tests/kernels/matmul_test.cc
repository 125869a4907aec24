// The GEMM for every combination of transposes, types, bias and accumulation against double arithmetic. Most inputs are
// small integers, so that the expected sums are exact in fp32 in any order, and the comparison is ==.
#include <array>
#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <limits>
#include <numeric>
#include <random>
#include <thread>

#include "kernels/base/arena.h"
#include "kernels/cpu/test_hooks.h"
#include "kernels/ops.h"
#include "tests/support/matmul_options.h"
#include "tests/support/mirrored_ops.h"
#include "tests/support/near.h"

namespace trivet {
namespace {

struct GemmCase {
  int64_t m, n, k;
  DType dtype;    // of a, b and the bias
  DType c_dtype;  // of c
  test::MatmulOptions how;
  bool bias = false;
};

std::string describe(const GemmCase& test) {
  return "m " + std::to_string(test.m) + " n " + std::to_string(test.n) + " k " + std::to_string(test.k) + " " +
         name_of(test.dtype) + " -> " + name_of(test.c_dtype) + (test.how.transpose_a ? " a^T" : "") +
         (test.how.transpose_b ? " b^T" : "") + (test.how.accumulate ? " +=" : "") + (test.bias ? " bias" : "");
}

double value(const Tensor& x, int64_t i) {
  return x.dtype == DType::f32 ? x.as<float>()[i] : static_cast<float>(x.as<bf16>()[i]);
}
void set_value(const Tensor& x, int64_t i, float v) {
  if (x.dtype == DType::f32) x.as<float>()[i] = v;
  else x.as<bf16>()[i] = bf16(v);
}
double rounded(DType dtype, double x) {
  return dtype == DType::f32 ? static_cast<float>(x) : static_cast<float>(bf16(static_cast<float>(x)));
}

// Parameter: the number of threads, or test::kOnCuda.
class MatmulTest : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (!ops) GTEST_SKIP() << "no GPU";
  }
  struct Operands {
    Tensor a, b, c, bias;
  };

  Operands operands(const GemmCase& test, bool integers) {
    Operands x;
    x.a = arena.allocate(test.dtype, test.how.transpose_a ? Shape{test.k, test.m} : Shape{test.m, test.k});
    x.b = arena.allocate(test.dtype, test.how.transpose_b ? Shape{test.n, test.k} : Shape{test.k, test.n});
    x.c = arena.allocate(test.c_dtype, {test.m, test.n});
    if (test.bias) x.bias = arena.allocate(test.dtype, {test.n});
    std::uniform_int_distribution<int> whole(-3, 3);
    std::uniform_real_distribution<float> real(-1, 1);
    for (const Tensor& t : {x.a, x.b, x.c, x.bias})
      for (int64_t i = 0; t && i < t.numel(); ++i)
        set_value(t, i, integers ? static_cast<float>(whole(random)) : real(random));
    return x;
  }

  // The expected c, from the operands before the GEMM.
  static std::vector<double> expected(const GemmCase& test, const Operands& x) {
    // Rows of a and columns of b, each contiguous.
    std::vector<double> rows(static_cast<size_t>(test.m * test.k)), columns(static_cast<size_t>(test.n * test.k));
    for (int64_t l = 0; l < test.k; ++l) {
      for (int64_t i = 0; i < test.m; ++i)
        rows[static_cast<size_t>(i * test.k + l)] = value(x.a, test.how.transpose_a ? l * test.m + i : i * test.k + l);
      for (int64_t j = 0; j < test.n; ++j)
        columns[static_cast<size_t>(j * test.k + l)] =
            value(x.b, test.how.transpose_b ? j * test.k + l : l * test.n + j);
    }
    std::vector<double> c(static_cast<size_t>(test.m * test.n));
    for (int64_t i = 0; i < test.m; ++i)
      for (int64_t j = 0; j < test.n; ++j) {
        const double first = test.how.accumulate ? value(x.c, i * test.n + j) : test.bias ? value(x.bias, j) : 0;
        c[static_cast<size_t>(i * test.n + j)] = std::inner_product(
            rows.data() + i * test.k, rows.data() + (i + 1) * test.k, columns.data() + j * test.k, first);
      }
    return c;
  }

  void run(const GemmCase& test, Operands& x) {
    if (!test.how.accumulate)
      for (int64_t i = 0; i < x.c.numel(); ++i) set_value(x.c, i, std::numeric_limits<float>::quiet_NaN());
    test::MatmulOptions how = test.how;
    how.bias = x.bias;
    ops->run(how.of(x.a, x.b, x.c), *stream);
    stream->synchronize();
  }

  void expect_exact(const GemmCase& test) {
    Operands x = operands(test, true);
    const std::vector<double> wanted = expected(test, x);
    run(test, x);
    for (int64_t i = 0; i < x.c.numel(); ++i)
      ASSERT_EQ(value(x.c, i), rounded(test.c_dtype, wanted[static_cast<size_t>(i)]))
          << describe(test) << " at " << i / test.n << ", " << i % test.n;
  }

  std::unique_ptr<Device> device = create_cpu_device();
  std::unique_ptr<Stream> stream = device->create_compute_stream();
  std::unique_ptr<Ops> ops = test::create_test_ops(GetParam());
  Arena arena{*device, "matmul test"};
  std::mt19937 random{1};
};

INSTANTIATE_TEST_SUITE_P(BackEnds, MatmulTest, testing::Values(2, test::kOnCuda),
                         [](const auto& info) { return std::string(info.param == test::kOnCuda ? "cuda" : "cpu"); });

// All combinations for one shape: 2 transposes x 3 type pairs x {plain, bias, accumulate}.
template <class F>
void for_each_combination(int64_t m, int64_t n, int64_t k, F&& f) {
  for (const auto& [dtype, c_dtype] :
       {std::pair{DType::f32, DType::f32}, {DType::bf16, DType::bf16}, {DType::bf16, DType::f32}})
    for (const bool transpose_a : {false, true})
      for (const bool transpose_b : {false, true})
        for (const bool accumulate : {false, true})
          for (const bool bias : {false, true})
            if (!(accumulate && bias))
              f(GemmCase{m, n, k, dtype, c_dtype, {transpose_a, transpose_b, accumulate, {}}, bias});
}

TEST_P(MatmulTest, EveryCombinationIsExactOnIntegers) {
  const int64_t shapes[][3] = {{1, 1, 1},    {1, 5, 3},      {7, 1, 9},    {3, 2, 1},     {5, 6, 7},
                               {16, 16, 32}, {17, 31, 33},   {64, 48, 65}, {33, 130, 77}, {1, 300, 129},
                               {257, 1, 40}, {130, 96, 200}, {96, 513, 31}};
  for (const auto& [m, n, k] : shapes)
    for_each_combination(m, n, k, [this](const GemmCase& test) { expect_exact(test); });
}

TEST_P(MatmulTest, RandomShapesAreExactOnIntegers) {
  std::uniform_int_distribution<int64_t> size(1, 150);
  for (int round = 0; round < 12; ++round) {
    const int64_t m = size(random), n = size(random), k = size(random);
    for_each_combination(m, n, k, [this](const GemmCase& test) { expect_exact(test); });
  }
}

TEST_P(MatmulTest, WhatIsTriedOutIsExactOnIntegers) {
  if (GetParam() != test::kOnCuda) GTEST_SKIP() << "of the GPU's library";
  ops = test::create_test_ops(test::kOnCuda, {.trial_operations = 0});
  const int64_t shapes[][3] = {{1, 300, 129}, {17, 31, 34}, {40, 96, 200}};
  for (const auto& [m, n, k] : shapes)
    for_each_combination(m, n, k, [this](const GemmCase& test) { expect_exact(test); });
}

// Rounded to 10 bits of mantissa, the operands are the small integers from which they were made.
TEST_P(MatmulTest, Tf32RoundsTheOperandsOfEveryFp32Gemm) {
  if (GetParam() != test::kOnCuda || !test::gpu_is_emulated()) GTEST_SKIP() << "of the emulated library";
  for (const double trial_operations : {1e9, 0.0}) {
    ops = test::create_test_ops(test::kOnCuda, {.tf32 = true, .trial_operations = trial_operations});
    for_each_combination(17, 31, 34, [this](const GemmCase& test) {
      Operands x = operands(test, true);
      const std::vector<double> wanted = expected(test, x);
      for (const Tensor& t : {x.a, x.b})
        for (int64_t i = 0; i < t.numel(); ++i) set_value(t, i, static_cast<float>(value(t, i)) * (1 + 0x1p-12f));
      run(test, x);
      for (int64_t i = 0; i < x.c.numel(); ++i)
        ASSERT_EQ(value(x.c, i), rounded(test.c_dtype, wanted[static_cast<size_t>(i)]))
            << describe(test) << " at " << i;
    });
  }
}

// Sizes for which the emulated library refuses the bias gradient (24), fails (8), or proposes a failing algorithm (16),
// a sum length that it refuses, and sizes used in training.
TEST_P(MatmulTest, ABiasGradientIsExactOnIntegers) {
  const int64_t shapes[][3] = {{1, 5, 30}, {8, 6, 32},  {24, 5, 40},    {16, 16, 18},  {31, 40, 130}, {96, 33, 200},
                               {5, 7, 0},  {30, 7, 13}, {12288, 2, 36}, {768, 2, 600}, {5, 3, 32768}};
  for (const double trial_operations : {1e9, 0.0}) {
    if (GetParam() == test::kOnCuda) ops = test::create_test_ops(test::kOnCuda, {.trial_operations = trial_operations});
    for (const auto& [m, n, k] : shapes)
      for (const auto& [dtype, c_dtype] :
           {std::pair{DType::f32, DType::f32}, {DType::bf16, DType::bf16}, {DType::bf16, DType::f32}})
        for (const bool accumulate : {false, true}) {
          // given
          const GemmCase test{m, n, k, dtype, c_dtype, {.transpose_a = true, .accumulate = accumulate}};
          Operands x = operands(test, true);
          const std::vector<double> wanted = expected(test, x);
          const Tensor sum = arena.allocate(DType::f32, {m});
          std::vector<double> wanted_sum;
          for (int64_t i = 0; i < m; ++i) {
            sum.as<float>()[i] = static_cast<float>(i % 9);
            wanted_sum.push_back(static_cast<double>(i % 9));
            for (int64_t l = 0; l < k; ++l) wanted_sum.back() += value(x.a, l * m + i);
          }
          // when
          ops->run(
              op::Matmul{.a = x.a, .b = x.b, .c = x.c, .transpose_a = true, .accumulate = accumulate, .bias_grad = sum},
              *stream);
          stream->synchronize();
          // then
          for (int64_t i = 0; i < m; ++i)
            ASSERT_EQ(sum.as<float>()[i], wanted_sum[static_cast<size_t>(i)]) << describe(test) << " bias " << i;
          for (int64_t i = 0; i < x.c.numel(); ++i)
            ASSERT_EQ(value(x.c, i), rounded(c_dtype, wanted[static_cast<size_t>(i)])) << describe(test) << " at " << i;
        }
  }
}

// The order of additions reveals which code added: the emulated library adds term by term, column_sum 8 rows at a time.
TEST_P(MatmulTest, ABiasGradientIsTheLibrarysWhereItHasOne) {
  if (GetParam() != test::kOnCuda || !test::gpu_is_emulated()) GTEST_SKIP() << "of the emulated library's order";
  const GemmCase test{40, 12, 3000, DType::bf16, DType::f32, {.transpose_a = true}};
  Operands x = operands(test, false);
  const Tensor sum = arena.allocate(DType::f32, {test.m}), passes = arena.allocate(DType::f32, {test.m});
  for (const Tensor& t : {sum, passes}) ops->run(op::Fill{t, 0}, *stream);
  ops->run(op::Matmul{.a = x.a, .b = x.b, .c = x.c, .transpose_a = true, .bias_grad = sum}, *stream);
  ops->run(op::ColumnSum{x.a, passes}, *stream);
  stream->synchronize();
  int64_t others = 0;
  for (int64_t i = 0; i < test.m; ++i) {
    float in_order = 0;
    for (int64_t l = 0; l < test.k; ++l) in_order += static_cast<float>(value(x.a, l * test.m + i));
    ASSERT_EQ(sum.as<float>()[i], in_order) << i;
    others += passes.as<float>()[i] != in_order;
  }
  EXPECT_GT(others, 0) << "the two orders cannot be told apart";
}

// A CPU rounds as the two ops do; a GPU once or twice, depending on the kernel. The residual is large compared with
// the product, so an intermediate rounding would show.
TEST_P(MatmulTest, AResidualComesWithinOneRoundingMore) {
  const int64_t shapes[][3] = {{1, 5, 30}, {17, 40, 7}, {33, 96, 200}, {3, 12288, 32}, {3, 768, 3072}};
  for (const double trial_operations : {1e9, 0.0}) {
    if (GetParam() == test::kOnCuda) ops = test::create_test_ops(test::kOnCuda, {.trial_operations = trial_operations});
    for (const auto& [m, n, k] : shapes)
      for (const DType dtype : {DType::f32, DType::bf16})
        for (const bool biased : {false, true}) {
          // given
          const GemmCase test{m, n, k, dtype, dtype, {.transpose_b = true}, biased};
          Operands x = operands(test, false);
          const Tensor residual = arena.allocate(dtype, {m, n});
          for (int64_t i = 0; i < m * n; ++i) set_value(residual, i, static_cast<float>(i % 61) / 3 - 10);
          std::vector<double> product = expected(test, x);
          for (int64_t i = 0; i < m * n; ++i) set_value(x.c, i, std::numeric_limits<float>::quiet_NaN());
          // when
          ops->run(op::Matmul{.a = x.a, .b = x.b, .c = x.c, .transpose_b = true, .bias = x.bias, .residual = residual},
                   *stream);
          stream->synchronize();
          // then
          const double of_sum = test::tolerance(DType::f32, k, std::sqrt(static_cast<double>(k)));
          for (int64_t i = 0; i < m * n; ++i) {
            const double branch = product[static_cast<size_t>(i)], sum = branch + value(residual, i);
            const double rounded_first = branch - (biased ? value(x.bias, i % n) : 0);
            ASSERT_NEAR(
                value(x.c, i), sum,
                of_sum + test::tolerance(dtype, 1, std::abs(rounded_first)) + test::tolerance(dtype, 1, std::abs(sum)))
                << describe(test) << " at " << i / n << ", " << i % n;
          }
        }
  }
}

// Rounded once: rounding twice gives a different result.
TEST_P(MatmulTest, AResidualOfTheLibraryIsRoundedOnce) {
  if (GetParam() != test::kOnCuda || !test::gpu_is_emulated()) GTEST_SKIP() << "of the emulated library";
  for (const bool biased : {false, true}) {
    const GemmCase test{30, 40, 20, DType::bf16, DType::bf16, {.transpose_b = true}, biased};
    Operands x = operands(test, true);
    const Tensor residual = arena.allocate(DType::bf16, {test.m, test.n});
    for (int64_t i = 0; i < residual.numel(); ++i) set_value(residual, i, 300 + static_cast<float>(i % 3) * 2);
    for (int64_t i = 0; i < x.a.numel(); ++i) set_value(x.a, i, static_cast<float>(value(x.a, i)) * 4.0625f);
    const std::vector<double> product = expected(test, x);
    ops->run(op::Matmul{.a = x.a, .b = x.b, .c = x.c, .transpose_b = true, .bias = x.bias, .residual = residual},
             *stream);
    stream->synchronize();
    int64_t differ = 0;
    for (int64_t i = 0; i < x.c.numel(); ++i) {
      const double branch = product[static_cast<size_t>(i)], bias = biased ? value(x.bias, i % test.n) : 0;
      ASSERT_EQ(value(x.c, i), rounded(DType::bf16, branch + value(residual, i))) << i;
      differ += value(x.c, i) != rounded(DType::bf16, rounded(DType::bf16, branch - bias) + bias + value(residual, i));
    }
    EXPECT_GT(differ, 0) << "one rounding and two cannot be told apart";
  }
}

TEST_P(MatmulTest, NoRowsGiveNothingAndEmptySumsAreZero) {
  for (const auto& [dtype, c_dtype] :
       {std::pair{DType::f32, DType::f32}, {DType::bf16, DType::bf16}, {DType::bf16, DType::f32}}) {
    expect_exact({0, 40, 5, dtype, c_dtype, {}});
    for (const auto& [accumulate, bias] : {std::pair{false, false}, {true, false}, {false, true}})
      expect_exact({33, 40, 0, dtype, c_dtype, {.transpose_a = true, .accumulate = accumulate, .bias = {}}, bias});
  }
}

TEST_P(MatmulTest, AnElementHasTheSameBitsInEveryColumn) {
  // given: equal columns, some in a full panel and some after it, whose sums are a subnormal bf16
  const Tensor a = arena.allocate(DType::bf16, {1, 1}), b = arena.allocate(DType::bf16, {1, 40});
  const Tensor c = arena.allocate(DType::bf16, {1, 40}), bias = arena.allocate(DType::bf16, {40});
  ops->run(op::Fill{a, 0}, *stream);
  ops->run(op::Fill{b, 1}, *stream);
  for (int64_t i = 0; i < 40; ++i) bias.as<bf16>()[i].bits = 0x0011;
  ops->run(op::Matmul{.a = a, .b = b, .c = c, .bias = bias}, *stream);
  stream->synchronize();
  for (int64_t i = 1; i < 40; ++i) EXPECT_EQ(c.as<bf16>()[i].bits, c.as<bf16>()[0].bits) << i;
}

TEST_P(MatmulTest, ARowHasTheSameBitsInEveryMatrix) {
  if (GetParam() == test::kOnCuda) GTEST_SKIP() << "cuBLASLt chooses by the shape";
  // given: a GEMM blocked along k, with one row, a few rows and full panels of rows
  for (const DType dtype : {DType::f32, DType::bf16}) {
    Operands x = operands({70, 50, 5000, dtype, DType::f32, {.transpose_b = true}}, false);
    const auto rows_from = [&](int64_t first, int64_t rows) {
      const Tensor c = arena.allocate(DType::f32, {rows, 50});
      ops->run(op::Matmul{.a = x.a.slice(first, rows), .b = x.b, .c = c, .transpose_b = true}, *stream);
      stream->synchronize();
      return c;
    };
    const Tensor whole = rows_from(0, 70);
    for (const auto& [first, rows] : {std::pair{0, 1}, {33, 1}, {69, 1}, {5, 2}, {7, 13}, {30, 40}}) {
      const Tensor part = rows_from(first, rows);
      EXPECT_EQ(std::memcmp(part.data, whole.as<float>() + first * 50, static_cast<size_t>(part.bytes())), 0)
          << name_of(dtype) << ", " << rows << " rows from " << first;
    }
  }
}

TEST_P(MatmulTest, LongReductionsAreExactOnIntegers) {
  for_each_combination(40, 72, 3001, [this](const GemmCase& test) { expect_exact(test); });
}

// Every way to partition a GEMM, on small shapes, as if the caches were small.
TEST_P(MatmulTest, EveryBlockingIsExactOnIntegers) {
  if (GetParam() == test::kOnCuda) GTEST_SKIP() << "the library cuts";
  for (const int64_t part : {64, 512}) {
    gemm_cache_divisor = part;
    for (const auto& [m, n, k] : {std::array<int64_t, 3>{70, 130, 500}, {200, 40, 150}, {33, 300, 170}, {5, 60, 999}})
      for_each_combination(m, n, k, [this](const GemmCase& test) { expect_exact(test); });
  }
  gemm_cache_divisor = 1;
}

TEST_P(MatmulTest, RealNumbersComeWithinTheTolerance) {
  for_each_combination(61, 53, 700, [this](const GemmCase& test) {
    Operands x = operands(test, false);
    const std::vector<double> wanted = expected(test, x);
    run(test, x);
    // The sum is of order sqrt(k), and is rounded once more to the type of c.
    const double of_sum = test::tolerance(DType::f32, test.k, std::sqrt(static_cast<double>(test.k)));
    for (int64_t i = 0; i < x.c.numel(); ++i) {
      const double c = wanted[static_cast<size_t>(i)];
      ASSERT_NEAR(value(x.c, i), c, of_sum + test::tolerance(test.c_dtype, 1, std::abs(c)))
          << describe(test) << " at " << i / test.n << ", " << i % test.n;
    }
  });
}

TEST_P(MatmulTest, ASecondRunGivesTheSameBits) {
  for_each_combination(190, 270, 350, [this](const GemmCase& test) {
    Operands x = operands(test, false);
    const std::vector<char> before(static_cast<char*>(x.c.data), static_cast<char*>(x.c.data) + x.c.bytes());
    run(test, x);
    const std::vector<char> first(static_cast<char*>(x.c.data), static_cast<char*>(x.c.data) + x.c.bytes());
    std::memcpy(x.c.data, before.data(), before.size());
    run(test, x);
    EXPECT_EQ(std::memcmp(first.data(), x.c.data, first.size()), 0) << describe(test);
  });
}

TEST_P(MatmulTest, RowsOfHigherDimensionsAreOneMatrix) {
  const GemmCase test{6, 5, 8, DType::f32, DType::f32, {}};
  Operands x = operands(test, true);
  const std::vector<double> wanted = expected(test, x);
  x.a = x.a.view({2, 3, 8});
  x.c = x.c.view({3, 2, 5});
  run(test, x);
  for (int64_t i = 0; i < x.c.numel(); ++i) EXPECT_EQ(value(x.c, i), wanted[static_cast<size_t>(i)]);
}

TEST_P(MatmulTest, RanksOnTheirOwnThreadsAndStreamsDoNotDisturbEachOther) {
  if (GetParam() == test::kOnCuda) GTEST_SKIP() << "of the CPU's worker threads";
  // given: four ranks of one thread each, each with a compute stream and a side stream
  std::vector<std::thread> ranks;
  std::vector<std::vector<Operands>> results(4);
  std::vector<std::vector<std::vector<double>>> wanted(4);
  const GemmCase test{70, 90, 110, DType::bf16, DType::f32, {.transpose_b = true}};
  for (auto& rank : results)
    for (int i = 0; i < 4; ++i) rank.push_back(operands(test, true));
  for (size_t r = 0; r < 4; ++r)
    for (const Operands& x : results[r]) wanted[r].push_back(expected(test, x));

  // when: both streams of every rank multiply concurrently
  for (size_t r = 0; r < 4; ++r)
    ranks.emplace_back([&, r] {
      const auto my_ops = create_cpu_ops(1);
      const auto compute = device->create_compute_stream(), side = device->create_side_stream(StreamPriority::normal);
      for (size_t i = 0; i < 4; ++i)
        my_ops->run(test.how.of(results[r][i].a, results[r][i].b, results[r][i].c), i % 2 ? *side : *compute);
      side->synchronize();
    });
  for (std::thread& rank : ranks) rank.join();

  // then: each result is correct
  for (size_t r = 0; r < 4; ++r)
    for (size_t i = 0; i < 4; ++i)
      for (int64_t e = 0; e < test.m * test.n; ++e)
        ASSERT_EQ(value(results[r][i].c, e), wanted[r][i][static_cast<size_t>(e)]);
}

TEST_P(MatmulTest, WrongArgumentsNameTheArgument) {
  const auto expect_error = [&](const Tensor& a, const Tensor& b, const Tensor& c, const test::MatmulOptions& how,
                                const std::string& text) {
    try {
      ops->run(how.of(a, b, c), *stream);
      ADD_FAILURE() << "accepted; expected an error with: " << text;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
    }
  };
  const Tensor a = arena.allocate(DType::f32, {4, 6}), b = arena.allocate(DType::f32, {6, 5});
  const Tensor c = arena.allocate(DType::f32, {4, 5}), bias = arena.allocate(DType::f32, {5});
  expect_error(a, b, arena.allocate(DType::f32, {5, 4}), {}, "matmul: c is [5, 4]");
  expect_error(a, b, c, {.transpose_b = true}, "matmul: b is [6, 5]");
  expect_error(a, arena.allocate(DType::bf16, {6, 5}), c, {}, "matmul: b is [6, 5] bf16");
  expect_error(a, b, arena.allocate(DType::bf16, {4, 5}), {}, "matmul: c is [4, 5] bf16");
  expect_error(arena.allocate(DType::i32, {4, 6}), b, c, {}, "matmul: a is [4, 6] int32");
  expect_error(a, b, c, {.bias = arena.allocate(DType::f32, {4})}, "matmul: bias is [4]");
  expect_error(a, b, c, {.accumulate = true, .bias = bias}, "bias");
  expect_error(a, b, c, {.bias_grad = bias}, "matmul: bias_grad is [5]");
  expect_error(a, b, c, {.bias_grad = bias.slice(0, 4)}, "bias_grad goes with transpose_a");
  expect_error(a, b, c, {.residual = b}, "matmul: residual is [6, 5]");
  expect_error(a, b, c, {.residual = c}, "a residual goes with a bias alone, and is not c");
  expect_error(a, b, c, {.accumulate = true, .residual = arena.allocate(DType::f32, {4, 5})}, "a residual goes");
}

}  // namespace
}  // namespace trivet
