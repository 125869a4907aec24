// The exact sum of squares, against a 704-bit fixed-point number to which squares are added one by one.
#include <algorithm>
#include <bit>

#include "kernels/exact_sum.h"
#include "tests/support/ops_fixture.h"

namespace trivet::test {
namespace {

// Bit k of the number has the value 2^(k - 384).
class FixedPoint {
 public:
  void add_square(float x) {
    int exponent;
    const double fraction = std::frexp(std::abs(static_cast<double>(x)), &exponent);  // x = fraction 2^exponent
    const auto mantissa = static_cast<uint64_t>(std::ldexp(fraction, 24));            // exact: 24 bits
    const int shift = 2 * (exponent - 24) + 384;
    // mantissa^2 has up to 48 bits: two limbs at most.
    const unsigned __int128 square = static_cast<unsigned __int128>(mantissa * mantissa) << (shift % 64);
    uint64_t carry = 0;
    for (size_t i = static_cast<size_t>(shift / 64), k = 0; i < limbs_.size(); ++i, ++k) {
      const uint64_t part = k == 0 ? static_cast<uint64_t>(square) : k == 1 ? static_cast<uint64_t>(square >> 64) : 0;
      const unsigned __int128 sum = static_cast<unsigned __int128>(limbs_[i]) + part + carry;
      limbs_[i] = static_cast<uint64_t>(sum);
      carry = static_cast<uint64_t>(sum >> 64);
    }
  }
  // Bits [low, low + count) as an integer.
  int64_t bits(int low, int count) const {
    int64_t value = 0;
    for (int k = 0; k < count; ++k) {
      const auto bit = static_cast<size_t>(low + k);
      value |= static_cast<int64_t>(limbs_[bit / 64] >> (bit % 64) & 1) << k;
    }
    return value;
  }
  double value() const {
    double sum = 0;
    for (size_t i = 0; i < limbs_.size(); ++i) sum += std::ldexp(static_cast<double>(limbs_[i]), 64 * int(i) - 384);
    return sum;
  }

 private:
  std::array<uint64_t, 11> limbs_{};
};

FixedPoint exact(const Tensor& x) {
  FixedPoint sum;
  for (int64_t i = 0; i < x.numel(); ++i) sum.add_square(static_cast<float>(get(x, i)));
  return sum;
}

// Every digit of the canonical bins equals the reference's.
testing::AssertionResult equals(const Tensor& bins, const FixedPoint& expected) {
  for (int i = 0; i < kExactSumDigits; ++i) {
    const int low = 28 * i - 308 + 384;
    const int64_t digit = expected.bits(low, std::min(28, 704 - low));
    if (bins.as<int64_t>()[i] != digit)
      return testing::AssertionFailure() << "bin " << i << " is " << bins.as<int64_t>()[i] << ", expected " << digit;
  }
  if (bins.as<int64_t>()[kExactSumDigits] != 0) return testing::AssertionFailure() << "counts elements as not finite";
  const double total = exact_total(bins.as<int64_t>()), value = expected.value();
  if (std::abs(total - value) > value * 0x1p-52) return testing::AssertionFailure() << total << " is not " << value;
  return testing::AssertionSuccess();
}

using NormTest = OpsTest;
INSTANTIATE_TEST_SUITE_P(BackEnds, NormTest, testing::Combine(testing::Values(DType::f32), back_ends()), case_name);

// Random numbers of either sign whose exponents are evenly spread over [low, high].
Tensor spread(Tensors& tensors, int64_t n, int low, int high) {
  std::uniform_int_distribution<int> exponent(low, high);
  std::uniform_real_distribution<double> fraction(1, 2);
  auto& random = tensors.random();
  return tensors.make(DType::f32, {n}, [&](int64_t) {
    return std::ldexp(random() % 2 ? fraction(random) : -fraction(random), exponent(random));
  });
}

TEST_P(NormTest, SumsOfAllSizesAreExact) {
  struct Case {
    const char* what;
    int64_t n;
    int low, high;  // exponents
  };
  for (const Case& test : {Case{"one", 1, 0, 0},
                           {"a few", 5, -3, 3},
                           {"a block", 1024, -20, 0},
                           {"blocks and a rest", 70'003, -10, 2},
                           {"like gradients", 70'003, -40, -5},
                           {"the whole range", 70'003, -149, 127},
                           {"tiny", 3000, -149, -126},
                           {"huge", 70'003, 126, 127},
                           {"1e-38 to 1e38", 5000, -126, 126}}) {
    const Tensor x = spread(tensors, test.n, test.low, test.high), bins = tensors.full(DType::i64, {kExactSumBins}, 0);

    ops->run(op::SumOfSquares{.xs = {x}, .bins = bins}, *stream);

    EXPECT_TRUE(equals(bins, exact(x))) << test.what;
  }
}

// The hardest case for the two-level path: one large number among many that are up to 2^30 times smaller.
TEST_P(NormTest, ALargeNumberDoesNotHideSmallOnes) {
  for (int gap = 18; gap <= 30; ++gap) {
    const Tensor x = tensors.uniform(DType::f32, {2048}, -1, 1), bins = tensors.full(DType::i64, {kExactSumBins}, 0);
    for (int64_t i = 0; i < 2048; ++i) set(x, i, std::ldexp(1 - std::abs(get(x, i)) / 2, i % 1024 == 700 ? 0 : -gap));

    ops->run(op::SumOfSquares{.xs = {x}, .bins = bins}, *stream);

    EXPECT_TRUE(equals(bins, exact(x))) << "gap 2^" << gap;
  }
}

// Every lane at its limit: all numbers are as large as their block allows.
TEST_P(NormTest, LanesDoNotOverflow) {
  const Tensor x = tensors.full(DType::f32, {70'000}, std::nextafterf(2.0f, 0.0f));
  const Tensor bins = tensors.full(DType::i64, {kExactSumBins}, 0);
  for (int64_t i = 0; i < x.numel(); i += 1024) set(x, i + 3, 0x1p-22);

  ops->run(op::SumOfSquares{.xs = {x}, .bins = bins}, *stream);

  EXPECT_TRUE(equals(bins, exact(x)));
}

TEST_P(NormTest, ZerosOfEitherSignAddNothing) {
  const Tensor x = tensors.make(DType::f32, {5000}, [](int64_t i) { return i % 2 ? 0.0 : -0.0; });
  const Tensor bins = tensors.full(DType::i64, {kExactSumBins}, 0);
  ops->run(op::SumOfSquares{.xs = {x}, .bins = bins}, *stream);
  EXPECT_TRUE(near(bins, Values(kExactSumBins, 0.0), 0));
}

TEST_P(NormTest, OrderAndCutsDoNotMatter) {
  const int64_t n = 50'000;
  const Tensor x = spread(tensors, n, -60, 10), whole = tensors.full(DType::i64, {kExactSumBins}, 0);
  ops->run(op::SumOfSquares{.xs = {x}, .bins = whole}, *stream);

  for (int run = 0; run < 5; ++run) {
    // Shuffled and split into pieces of random sizes: all are added to one accumulator, as calls on one rank would do …
    const Tensor shuffled = tensors.copy(x), calls = tensors.full(DType::i64, {kExactSumBins}, 0);
    std::shuffle(shuffled.as<float>(), shuffled.as<float>() + n, tensors.random());
    // … and each piece to its own accumulator; the accumulators are then summed, as an all-reduce over ranks would do.
    const Tensor ranks = tensors.full(DType::i64, {kExactSumBins}, 0);
    for (int64_t begin = 0, size; begin < n; begin += size) {
      size = std::min<int64_t>(n - begin, static_cast<int64_t>(tensors.random()() % 9000));
      ops->run(op::SumOfSquares{.xs = {shuffled.slice(begin, size)}, .bins = calls}, *stream);
      const Tensor rank = tensors.full(DType::i64, {kExactSumBins}, 0);
      ops->run(op::SumOfSquares{.xs = {shuffled.slice(begin, size)}, .bins = rank}, *stream);
      for (int64_t i = 0; i < kExactSumBins; ++i) ranks.as<int64_t>()[i] += rank.as<int64_t>()[i];
    }
    EXPECT_TRUE(same_bits(calls, whole));
    EXPECT_EQ(exact_total(ranks.as<int64_t>()), exact_total(whole.as<int64_t>()));
    exact_canonicalize(ranks.as<int64_t>());
    EXPECT_TRUE(same_bits(ranks, whole));
  }
}

// More tensors than a GPU takes in one launch.
TEST_P(NormTest, ManyTensorsAtOnceAreTheirSum) {
  const int64_t n = 50'000;
  const Tensor x = spread(tensors, n, -60, 10), bins = tensors.full(DType::i64, {kExactSumBins}, 0);
  std::vector<Tensor> pieces;
  for (int64_t begin = 0; begin < n; begin += pieces.back().numel())
    pieces.push_back(
        x.slice(begin, std::min<int64_t>(n - begin, pieces.size() % 7 == 0 ? 600 : pieces.size() % 13 + 1)));
  ASSERT_GT(pieces.size(), 400u);

  ops->run(op::SumOfSquares{.xs = {pieces}, .bins = bins}, *stream);

  EXPECT_TRUE(equals(bins, exact(x)));
}

TEST_P(NormTest, WhatIsNotFiniteIsCounted) {
  const Tensor x = tensors.uniform(DType::f32, {40'000}), bins = tensors.full(DType::i64, {kExactSumBins}, 0);
  set(x, 3, std::nan(""));
  set(x, 20'000, std::numeric_limits<double>::infinity());
  set(x, 39'999, -std::numeric_limits<double>::infinity());
  const Tensor norm = tensors.poisoned(DType::f32, {1}), scale = tensors.full(DType::f32, {1}, 5);

  ops->run(op::SumOfSquares{.xs = {x}, .bins = bins}, *stream);
  ops->run(op::ClipScale{.bins = bins, .multiplier = 1, .max_norm = 1, .norm = norm, .grad_scale = scale}, *stream);

  EXPECT_EQ(bins.as<int64_t>()[kExactSumDigits], 3);
  EXPECT_TRUE(std::isnan(get(norm, 0)));
  EXPECT_TRUE(std::isnan(get(scale, 0)));
}

TEST_P(NormTest, ClipScaleFollowsMegatron) {
  const Tensor x = tensors.of(DType::f32, {3, 4}), bins = tensors.full(DType::i64, {kExactSumBins}, 0);
  ops->run(op::SumOfSquares{.xs = {x}, .bins = bins}, *stream);
  struct Case {
    float multiplier, max_norm;
    double norm, scale;
  };
  for (const Case& test : {Case{1, 1, 5, 1 / (5 + 1e-6)},                                    // clipped
                           Case{1, 10, 5, 1},                                                // below the limit
                           Case{0.5f, 1, 2.5, 0.5 / (2.5 + 1e-6)}, Case{0.5f, 0, 2.5, 0.5},  // no limit
                           Case{2, -1, 10, 2}}) {
    const Tensor norm = tensors.poisoned(DType::f32, {1}), scale = tensors.poisoned(DType::f32, {1});

    ops->run(
        op::ClipScale{
            .bins = bins, .multiplier = test.multiplier, .max_norm = test.max_norm, .norm = norm, .grad_scale = scale},
        *stream);

    EXPECT_FLOAT_EQ(get(norm, 0), test.norm);
    EXPECT_FLOAT_EQ(get(scale, 0), test.scale);
  }
}

TEST_P(NormTest, ClipScaleOfNothing) {
  const Tensor bins = tensors.full(DType::i64, {kExactSumBins}, 0);
  const Tensor norm = tensors.poisoned(DType::f32, {1}), scale = tensors.poisoned(DType::f32, {1});
  ops->run(op::ClipScale{.bins = bins, .multiplier = 1, .max_norm = 1, .norm = norm, .grad_scale = scale}, *stream);
  EXPECT_EQ(get(norm, 0), 0);
  EXPECT_EQ(get(scale, 0), 1);
}

TEST(ExactSum, TheDefinitionIsExact) {
  Tensors tensors;
  const Tensor x = spread(tensors, 20'000, -149, 127), bins = tensors.full(DType::i64, {kExactSumBins}, 0);
  for (int64_t i = 0; i < x.numel(); ++i) exact_add_square(bins.as<int64_t>(), x.as<float>()[i]);
  exact_canonicalize(bins.as<int64_t>());
  EXPECT_TRUE(equals(bins, exact(x)));
}

TEST(ExactSum, AddsNegativeValuesAtAnyPosition) {
  Tensors tensors;
  for (int exponent = -308; exponent <= 208; ++exponent) {
    const Tensor bins = tensors.full(DType::i64, {kExactSumBins}, 0);
    const int64_t value = (int64_t{1} << 55) + 12345;
    exact_add(bins.as<int64_t>(), value, exponent);
    EXPECT_EQ(exact_total(bins.as<int64_t>()), std::ldexp(static_cast<double>(value), exponent));
    exact_add(bins.as<int64_t>(), -value, exponent);
    exact_canonicalize(bins.as<int64_t>());
    EXPECT_TRUE(near(bins, Values(kExactSumBins, 0.0), 0)) << exponent;
  }
}

TEST_P(NormTest, WrongArgumentsAreNamed) {
  const Tensor x = tensors.uniform(DType::f32, {8}), half = tensors.uniform(DType::bf16, {8});
  const Tensor bins = tensors.full(DType::i64, {kExactSumBins}, 0), few = tensors.full(DType::i64, {3}, 0);
  const Tensor one = tensors.uniform(DType::f32, {1});
  EXPECT_TRUE(throws_naming([&] { ops->run(op::SumOfSquares{.xs = {half}, .bins = bins}, *stream); },
                            {"sum_of_squares", " x ", "bf16", "fp32"}));
  EXPECT_TRUE(throws_naming([&] { ops->run(op::SumOfSquares{.xs = {x}, .bins = few}, *stream); },
                            {"sum_of_squares", " bins ", "[3]", "[24]"}));
  EXPECT_TRUE(throws_naming(
      [&] {
        ops->run(op::ClipScale{.bins = few, .multiplier = 1, .max_norm = 1, .norm = one, .grad_scale = one}, *stream);
      },
      {"clip_scale", " bins ", "[3]"}));
  EXPECT_TRUE(throws_naming(
      [&] {
        ops->run(op::ClipScale{.bins = bins, .multiplier = 1, .max_norm = 1, .norm = x, .grad_scale = one}, *stream);
      },
      {"clip_scale", " norm ", "[8]"}));
  EXPECT_TRUE(throws_naming(
      [&] {
        ops->run(op::ClipScale{.bins = bins, .multiplier = 1, .max_norm = 1, .norm = one, .grad_scale = x}, *stream);
      },
      {"clip_scale", " grad_scale ", "[8]"}));
}

}  // namespace
}  // namespace trivet::test
