// The residual branch, sums over rows, fill, convert and add.
#include "kernels/philox.h"
#include "tests/support/ops_fixture.h"

namespace trivet::test {
namespace {

using ElementwiseTest = OpsTest;
INSTANTIATE_TEST_SUITE_P(BackEnds, ElementwiseTest, all_types_and_back_ends(), case_name);

// Whether dropout keeps element (position, entry, column), by the contract in kernels/ops.h.
bool kept(const Dropout& d, int64_t entry, int64_t position, int64_t column, int64_t width) {
  const int64_t sample = *d.first_sample.as<int64_t>() + entry;
  const int64_t index = (sample * d.seq_length + d.positions.at(position)) * width + column;
  const PhiloxWords words = philox4x32<7>(static_cast<uint64_t>(index / 4), d.site, d.seed);
  return words.w[index % 4] >= dropout_threshold(d.probability);
}

TEST_P(ElementwiseTest, ColumnSumAddsOverRows) {
  // Small integers: the sums are exact in any order.
  for (const auto& [n, c] : {std::pair<int64_t, int64_t>{301, 1217}, {1, 1}, {5, 3}, {64, 32}, {129, 513}}) {
    const Tensor x = tensors.integers(dtype, {n, c}, -99, 99), sum = tensors.integers(DType::f32, {c}, -99, 99);
    Values expected = values(sum);
    for (int64_t i = 0; i < n * c; ++i) expected[size_t(i % c)] += get(x, i);

    ops->run(op::ColumnSum{x, sum}, *stream);

    EXPECT_TRUE(near(sum, expected, 0));
  }
}

TEST_P(ElementwiseTest, ColumnSumOfManyRowsStaysAccurate) {
  const int64_t n = 30'000, c = 3;
  const Tensor x = tensors.uniform(dtype, {n, c}, 0, 1), sum = tensors.full(DType::f32, {c}, 0);
  Values expected(3);
  for (int64_t i = 0; i < n * c; ++i) expected[size_t(i % c)] += get(x, i);

  ops->run(op::ColumnSum{x, sum}, *stream);

  EXPECT_TRUE(near(sum, expected, 2e-6 * expected[0]));
}

TEST_P(ElementwiseTest, BiasDropoutAdd) {
  for (const double probability : {0.0, 0.1, 0.9}) {
    for (const auto& [s, b, h] : {std::array<int64_t, 3>{29, 3, 601}, {1, 1, 1}, {3, 2, 6}, {2, 2, 1030}}) {
      for (const bool with_bias : {false, true}) {
        const Dropout dropout{.probability = static_cast<float>(probability),
                              .seed = 0x123456789abcdefull,
                              .site = 70'009,
                              .first_sample = tensors.number((int64_t{1} << 33) + 3),
                              .seq_length = 4096,
                              .positions = {1025}};
        const Tensor x = tensors.uniform(dtype, {s, b, h}), residual = tensors.uniform(dtype, {s, b, h});
        const Tensor bias = with_bias ? tensors.uniform(dtype, {h}) : Tensor{};
        const Tensor out = tensors.poisoned(dtype, {s, b, h});

        ops->run(op::BiasDropoutAdd{.x = x, .bias = bias, .residual = residual, .dropout = dropout, .out = out},
                 *stream);

        Values expected;
        for (int64_t i = 0; i < s * b * h; ++i) {
          const int64_t r = i / h, c = i % h;
          const bool keep = probability == 0 || kept(dropout, r % b, r / b, c, h);
          const double branch = get(x, i) + (with_bias ? get(bias, c) : 0);
          expected.push_back(get(residual, i) + (keep ? branch / (1 - dropout.probability) : 0));
        }
        EXPECT_TRUE(near(out, expected, summed(dtype, expected, 1, 2 / (1 - probability))));
        const Tensor over_x = tensors.copy(x), over_residual = tensors.copy(residual);
        ops->run(op::BiasDropoutAdd{.x = over_x, .bias = bias, .residual = residual, .dropout = dropout, .out = over_x},
                 *stream);
        ops->run(
            op::BiasDropoutAdd{
                .x = x, .bias = bias, .residual = over_residual, .dropout = dropout, .out = over_residual},
            *stream);
        EXPECT_TRUE(same_bits(over_x, out));
        EXPECT_TRUE(same_bits(over_residual, out));
      }
    }
  }
}

TEST_P(ElementwiseTest, DropoutBackwardUsesTheForwardMask) {
  for (const float probability : {0.0f, 0.5f, 0.25f}) {
    const int64_t s = 29, b = 3, h = 601;
    const Dropout dropout{
        .probability = probability, .seed = 5, .site = 6, .first_sample = tensors.number(7), .seq_length = 29};
    const Tensor ones = tensors.full(dtype, {s, b, h}, 1), zeros = tensors.full(dtype, {s, b, h}, 0);
    const Tensor mask = tensors.poisoned(dtype, {s, b, h}), dx = tensors.poisoned(dtype, {s, b, h});
    ops->run(op::BiasDropoutAdd{.x = ones, .bias = {}, .residual = zeros, .dropout = dropout, .out = mask}, *stream);

    ops->run(op::DropoutBackward{.dout = ones, .dropout = dropout, .dx = dx}, *stream);

    EXPECT_TRUE(same_bits(dx, mask));
    ops->run(op::DropoutBackward{.dout = ones, .dropout = dropout, .dx = ones}, *stream);  // in place
    EXPECT_TRUE(same_bits(ones, mask));
  }
}

TEST_P(ElementwiseTest, DropoutKeepsItsShare) {
  const int64_t s = 50, b = 2, h = 1000;
  for (const double probability : {0.1, 0.5, 0.8}) {
    const Dropout dropout{.probability = static_cast<float>(probability),
                          .seed = 11,
                          .site = 1,
                          .first_sample = tensors.number(0),
                          .seq_length = s};
    const Tensor x = tensors.full(dtype, {s, b, h}, 1);

    ops->run(op::DropoutBackward{.dout = x, .dropout = dropout, .dx = x}, *stream);

    const Values all = values(x);
    const double share =
        static_cast<double>(std::count_if(all.begin(), all.end(), [](double v) { return v != 0; })) / 1e5;
    EXPECT_NEAR(share, 1 - probability, 5 * std::sqrt(probability * (1 - probability) / 1e5));  // five sigma
  }
}

// A slice of the sequence, or a sample of the batch, drops the same elements as the whole.
TEST_P(ElementwiseTest, DropoutDoesNotDependOnTheCut) {
  const int64_t s = 6, b = 4, h = 33;
  const Dropout dropout{.probability = 0.4f, .seed = 3, .site = 2, .first_sample = tensors.number(8), .seq_length = s};
  const Tensor ones = tensors.full(dtype, {s, b, h}, 1), whole = tensors.poisoned(dtype, {s, b, h});
  ops->run(op::DropoutBackward{.dout = ones, .dropout = dropout, .dx = whole}, *stream);

  for (int64_t position = 0; position < s; position += 2) {  // sequence parallel: two positions per rank
    Dropout part = dropout;
    part.positions.first = position;
    const Tensor slice = tensors.poisoned(dtype, {2, b, h});
    ops->run(op::DropoutBackward{.dout = ones.slice(position, 2), .dropout = part, .dx = slice}, *stream);
    EXPECT_TRUE(same_bits(slice, whole.slice(position, 2)));
  }
  for (int64_t entry = 0; entry < b; ++entry) {  // micro-batches of one sample
    Dropout part = dropout;
    part.first_sample = tensors.number(8 + entry);
    const Tensor sample = tensors.full(dtype, {s, 1, h}, 1);
    ops->run(op::DropoutBackward{.dout = sample, .dropout = part, .dx = sample}, *stream);
    for (int64_t i = 0; i < s * h; ++i) EXPECT_EQ(get(sample, i), get(whole, (i / h * b + entry) * h + i % h));
  }
}

TEST_P(ElementwiseTest, ClearMakesZerosOfAListAndOfNothingElse) {
  // More tensors than one launch accepts, each with 0 to 6 elements at various offsets, and one long tensor.
  const int64_t n = 410, each = 9;
  const Tensor x = tensors.full(dtype, {n * each}, 1), wide = tensors.uniform(dtype, {3, 5000});
  std::vector<Tensor> pieces{wide.slice(1, 1)};
  Values expected(static_cast<size_t>(n * each), 1.0);
  for (int64_t i = 0; i < n; ++i) {
    const int64_t first = i * each + i % 3, length = i % 7;
    pieces.push_back(x.slice(first, length));
    std::fill_n(expected.begin() + first, length, 0.0);
  }
  const Tensor before = tensors.copy(wide);

  ops->run(op::Clear{pieces}, *stream);

  EXPECT_TRUE(near(x, expected, 0));
  EXPECT_TRUE(same_bits(wide.slice(1, 1), tensors.full(dtype, {5000}, 0)));
  for (const int64_t row : {0, 2}) EXPECT_TRUE(same_bits(wide.slice(row, 1), before.slice(row, 1)));
}

TEST_P(ElementwiseTest, AddAndItsAliases) {
  for (const int64_t n : {1, 31, 70'001}) {
    const Tensor a = tensors.uniform(dtype, {n}), b = tensors.uniform(dtype, {n}), out = tensors.poisoned(dtype, {n});
    Values expected;
    for (int64_t i = 0; i < n; ++i) expected.push_back(get(a, i) + get(b, i));

    ops->run(op::Add{a, b, out}, *stream);

    EXPECT_TRUE(near(out, expected, summed(dtype, expected, 1)));
    const Tensor over_a = tensors.copy(a), over_b = tensors.copy(b);
    ops->run(op::Add{over_a, b, over_a}, *stream);
    ops->run(op::Add{a, over_b, over_b}, *stream);
    EXPECT_TRUE(same_bits(over_a, out));
    EXPECT_TRUE(same_bits(over_b, out));
  }
}

// Every value of the upper 16 bits, with lower bits around the midpoint. CPU instructions may flush subnormals to 0.
TEST_P(ElementwiseTest, ConvertRoundsEveryNumberAsTheTypeDoes) {
  if (dtype != DType::bf16 || threads == kOnCuda) GTEST_SKIP() << "of the CPU's vectors";
  const std::vector<uint32_t> low = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
  const auto n = static_cast<int64_t>(0x10000 * low.size());
  const Tensor from = tensors.poisoned(DType::f32, {n}), to = tensors.poisoned(DType::bf16, {n});
  for (int64_t i = 0; i < n; ++i)
    from.as<float>()[i] = std::bit_cast<float>(static_cast<uint32_t>(i) / 6 << 16 | low[static_cast<size_t>(i % 6)]);

  ops->run(op::Convert{from, to}, *stream);

  for (int64_t i = 0; i < n; ++i) {
    const float x = from.as<float>()[i];
    const uint16_t found = to.as<bf16>()[i].bits;
    const bool flushed = std::fpclassify(x) == FP_SUBNORMAL && (found & 0x7fffu) == 0;
    ASSERT_TRUE(found == bf16(x).bits || flushed) << x;
  }
}

TEST_P(ElementwiseTest, EveryElementIsWrittenAndNothingBeside) {
  for (int64_t n = 0; n < 70; ++n) {
    const Tensor x = tensors.uniform(dtype, {n + 2}), whole = tensors.full(dtype, {n + 2}, 9);
    const Tensor inner = x.slice(1, n);

    ops->run(op::Add{inner, inner, whole.slice(1, n)}, *stream);

    for (int64_t i = 0; i < n + 2; ++i) EXPECT_EQ(get(whole, i), i == 0 || i == n + 1 ? 9 : 2 * get(x, i));
  }
}

TEST_P(ElementwiseTest, ConvertRoundsToNearestEven) {
  for (const int64_t n : {1, 31, 70'001}) {
    for (const DType to : {DType::f32, DType::bf16}) {
      const Tensor from = tensors.uniform(dtype, {n}, -1e5, 1e5), out = tensors.poisoned(to, {n});
      set(from, 0, std::numeric_limits<double>::infinity());
      const Tensor expected = tensors.make(to, {n}, [&](int64_t i) { return get(from, i); });

      ops->run(op::Convert{from, out}, *stream);

      EXPECT_TRUE(same_bits(out, expected));
    }
  }
}

TEST_P(ElementwiseTest, FillAndCopyTakeAnyType) {
  for (const DType any : {DType::f32, DType::bf16, DType::i32, DType::i64, DType::u8, DType::e4m3, DType::e5m2}) {
    for (const double value : {7.0, 0.0}) {
      const Tensor x = tensors.poisoned(any, {70'001}), y = tensors.poisoned(any, {70'001});

      ops->run(op::Fill{x, static_cast<float>(value)}, *stream);
      ops->run(op::Convert{x, y}, *stream);

      EXPECT_TRUE(near(x, Values(70'001, value), 0));
      EXPECT_TRUE(same_bits(x, y));
    }
  }
}

TEST_P(ElementwiseTest, NothingIsFine) {
  const Tensor none = tensors.poisoned(dtype, {0, 2, 8}), bias = tensors.uniform(dtype, {8});
  const Tensor sum = tensors.full(DType::f32, {8}, 3);
  ops->run(op::BiasDropoutAdd{.x = none, .bias = bias, .residual = none, .dropout = {}, .out = none}, *stream);
  ops->run(op::DropoutBackward{.dout = none, .dropout = {}, .dx = none}, *stream);
  ops->run(op::Add{none, none, none}, *stream);
  ops->run(op::ActivationForward{none, none}, *stream);
  ops->run(op::ColumnSum{none, sum}, *stream);
  EXPECT_TRUE(near(sum, Values(8, 3.0), 0));
}

TEST_P(ElementwiseTest, WrongArgumentsAreNamed) {
  const Tensor x = tensors.uniform(dtype, {4, 2, 6}), flat = tensors.uniform(dtype, {8, 6});
  const Tensor other = tensors.uniform(dtype, {4, 2, 5}), sum = tensors.uniform(DType::f32, {6});
  const Tensor whole = tensors.integers(DType::i32, {48}, 0, 1), bias = tensors.uniform(dtype, {6});
  const Dropout none, negative{.probability = -0.5f}, of_no_sample{.probability = 0.5f};
  EXPECT_TRUE(throws_naming(
      [&] {
        ops->run(op::ColumnSum{x, bias.slice(0, 5)}, *stream);
      },
      {"column_sum", " sum ", "[5]", "[6]"}));
  EXPECT_TRUE(throws_naming([&] { ops->run(op::ColumnSum{whole, sum}, *stream); }, {"column_sum", " x ", "int32"}));
  const auto residual = [&](Tensor x, Tensor bias, Tensor residual, Dropout dropout, Tensor out) {
    return [=, this] {
      ops->run(op::BiasDropoutAdd{.x = x, .bias = bias, .residual = residual, .dropout = dropout, .out = out}, *stream);
    };
  };
  const std::string op = "bias_dropout_add";
  EXPECT_TRUE(throws_naming(residual(flat, bias, flat, none, flat), {op, " x ", "[8, 6]", "3 dimensions"}));
  EXPECT_TRUE(throws_naming(residual(x, bias.slice(0, 5), x, none, x), {op, " bias ", "[5]", "[6]"}));
  EXPECT_TRUE(throws_naming(residual(x, bias, {}, none, x), {op, " residual ", "null"}));
  EXPECT_TRUE(throws_naming(residual(x, bias, x, none, other), {op, " out ", "[4, 2, 5]", "[8, 6]"}));
  EXPECT_TRUE(throws_naming(residual(x, bias, x, negative, x), {op, "probability", "-0.5"}));
  EXPECT_TRUE(throws_naming(residual(x, bias, x, of_no_sample, x), {op, "first_sample", "null", "int64"}));
  EXPECT_TRUE(throws_naming([&] { ops->run(op::DropoutBackward{.dout = flat, .dropout = none, .dx = flat}, *stream); },
                            {"dropout_backward", "dout"}));
  EXPECT_TRUE(throws_naming([&] { ops->run(op::DropoutBackward{.dout = x, .dropout = none, .dx = other}, *stream); },
                            {"dropout_backward", " dx "}));
  EXPECT_TRUE(throws_naming([&] { ops->run(op::DropoutBackward{.dout = x, .dropout = negative, .dx = x}, *stream); },
                            {"dropout_backward", "probability"}));
  EXPECT_TRUE(throws_naming([&] { ops->run(op::Add{x, other, x}, *stream); }, {"add", " b ", "[4, 2, 5]", "[48]"}));
  EXPECT_TRUE(throws_naming([&] { ops->run(op::Add{x, x, other}, *stream); }, {"add", " out ", "[4, 2, 5]"}));
  EXPECT_TRUE(throws_naming(
      [&] {
        ops->run(op::Convert{x, other}, *stream);
      },
      {"convert", " to ", "[4, 2, 5]", "[48]"}));
  EXPECT_TRUE(throws_naming(
      [&] {
        ops->run(op::Convert{x, whole}, *stream);
      },
      {"convert", " to ", "int32", "fp32 or bf16"}));
  EXPECT_TRUE(throws_naming(
      [&] {
        ops->run(op::Convert{whole, x}, *stream);
      },
      {"convert", " from ", "int32", "fp32 or bf16"}));
  EXPECT_TRUE(throws_naming([&] { ops->run(op::Fill{{}, 0}, *stream); }, {"fill", " x ", "null"}));
}

}  // namespace
}  // namespace trivet::test
