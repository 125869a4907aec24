// Token and position embeddings. Summed inputs are small integers, so the expected sums are exact.
#include "kernels/philox.h"
#include "tests/support/ops_fixture.h"

namespace trivet::test {
namespace {

using EmbeddingTest = OpsTest;
INSTANTIATE_TEST_SUITE_P(BackEnds, EmbeddingTest, all_types_and_back_ends(), case_name);

double at(const Tensor& t, int64_t row, int64_t column) { return get(t, row * t.cols() + column); }

// An element's dropout factor by the contract in kernels/ops.h, one Philox word per element.
double factor(const Dropout& d, int64_t entry, int64_t position, int64_t column, int64_t width) {
  const int64_t index =
      ((*d.first_sample.as<int64_t>() + entry) * d.seq_length + d.positions.at(position)) * width + column;
  const PhiloxWords words = philox4x32<7>(static_cast<uint64_t>(index / 4), d.site, d.seed);
  return words.w[index % 4] >= dropout_threshold(d.probability) ? 1.0 / (1.0 - d.probability) : 0.0;
}

TEST_P(EmbeddingTest, ForwardTakesRowsOfThisRankAndZeroElsewhere) {
  for (const auto& [s, b, h] : {std::array<int64_t, 3>{37, 3, 517}, {1, 1, 1}, {5, 2, 3}}) {
    const int64_t first_row = 20, rows = 11;  // tokens are 0..49: below, in and above this rank's rows
    const Tensor tokens = tensors.integers(DType::i32, {s, b}, 0, 49);
    const Tensor table = tensors.uniform(dtype, {rows, h}), out = tensors.poisoned(dtype, {s, b, h});

    ops->run(op::EmbeddingForward{.tokens = tokens, .table = table, .first_row = first_row, .out = out}, *stream);

    Values expected;
    for (const double token : values(tokens)) {
      const int64_t row = static_cast<int64_t>(token) - first_row;
      for (int64_t c = 0; c < h; ++c) expected.push_back(row >= 0 && row < rows ? at(table, row, c) : 0);
    }
    EXPECT_TRUE(near(out, expected, 0));
  }
}

TEST_P(EmbeddingTest, BackwardAddsEachTokensGradientToItsRow) {
  for (const auto& [s, b, h] : {std::array<int64_t, 3>{37, 3, 517}, {1, 1, 1}, {5, 2, 3}}) {
    const int64_t first_row = 5, rows = 7;  // 14 tokens: every row occurs many times
    const Tensor tokens = tensors.integers(DType::i32, {s, b}, 0, 13);
    const Tensor dout = tensors.integers(dtype, {s, b, h}, -9, 9);
    const Tensor dtable = tensors.integers(DType::f32, {rows, h}, -9, 9);
    Values expected = values(dtable);
    for (int64_t r = 0; r < s * b; ++r) {
      const int64_t row = static_cast<int64_t>(get(tokens, r)) - first_row;
      for (int64_t c = 0; c < h && row >= 0 && row < rows; ++c) expected[size_t(row * h + c)] += at(dout, r, c);
    }

    ops->run(op::EmbeddingBackward{.tokens = tokens, .dout = dout, .first_row = first_row, .dtable = dtable}, *stream);

    EXPECT_TRUE(near(dtable, expected, 0));
  }
}

// Gradients are added in order of r, which fp32 rounding distinguishes from any other order.
TEST_P(EmbeddingTest, BackwardAddsEqualTokensInOrder) {
  const int64_t n = 200, h = 130;
  const Tensor tokens = tensors.full(DType::i32, {n, 1}, 3), dout = tensors.uniform(dtype, {n, 1, h}, -1e3, 1e3);
  const Tensor dtable = tensors.full(DType::f32, {4, h}, 0);

  ops->run(op::EmbeddingBackward{.tokens = tokens, .dout = dout, .first_row = 0, .dtable = dtable}, *stream);

  for (int64_t c = 0; c < h; ++c) {
    float sum = 0;
    for (int64_t r = 0; r < n; ++r) sum += static_cast<float>(at(dout, r, c));
    EXPECT_EQ(at(dtable, 3, c), sum);
  }
}

TEST_P(EmbeddingTest, PositionsAreAddedThenDropped) {
  for (const double probability : {0.0, 0.3}) {
    const int64_t s = 29, b = 3, h = 601;  // h % 4 == 1: rows start at every word position within a Philox block
    const Dropout dropout{.probability = static_cast<float>(probability),
                          .seed = 77,
                          .site = 4,
                          .first_sample = tensors.number((int64_t{1} << 33) + 6),
                          .seq_length = 64,
                          .positions = {32}};
    const Tensor x = tensors.uniform(dtype, {s, b, h}), positions = tensors.uniform(dtype, {s, h});
    const Tensor out = tensors.poisoned(dtype, {s, b, h});

    ops->run(op::PositionForward{.x = x, .positions = positions, .dropout = dropout, .out = out}, *stream);

    Values expected;
    for (int64_t r = 0; r < s * b; ++r)
      for (int64_t c = 0; c < h; ++c) {
        const double scale = probability == 0 ? 1 : factor(dropout, r % b, r / b, c, h);
        expected.push_back((at(x, r, c) + at(positions, r / b, c)) * scale);
      }
    EXPECT_TRUE(near(out, expected, summed(dtype, expected, 1, 2)));
    ops->run(op::PositionForward{.x = x, .positions = positions, .dropout = dropout, .out = x}, *stream);  // in place
    EXPECT_TRUE(same_bits(x, out));
  }
}

TEST_P(EmbeddingTest, PositionsAreAddedByTheirIds) {
  const int64_t s = 29, b = 3, h = 601;
  const Tensor x = tensors.uniform(dtype, {s, b, h}), table = tensors.uniform(dtype, {11, h});
  const auto id = [](int64_t row) { return row * 7 % 11; };
  const Tensor ids = tensors.make(DType::i32, {s, b}, id), out = tensors.poisoned(dtype, {s, b, h});

  ops->run(op::PositionForward{.x = x, .positions = table, .dropout = {}, .out = out, .ids = ids}, *stream);

  Values expected;
  for (int64_t r = 0; r < s * b; ++r)
    for (int64_t c = 0; c < h; ++c) expected.push_back(at(x, r, c) + at(table, id(r), c));
  EXPECT_TRUE(near(out, expected, summed(dtype, expected, 1, 2)));
}

TEST_P(EmbeddingTest, PositionBackwardSumsOverTheBatch) {
  for (const float probability : {0.0f, 0.5f}) {  // 1 / (1 - 0.5) is exact, and so are the sums
    const int64_t s = 29, b = 3, h = 601;
    const Dropout dropout{.probability = probability,
                          .seed = 77,
                          .site = 4,
                          .first_sample = tensors.number((int64_t{1} << 33) + 6),
                          .seq_length = 64,
                          .positions = {32}};
    const Tensor dout = tensors.integers(dtype, {s, b, h}, -9, 9), dx = tensors.poisoned(dtype, {s, b, h});
    const Tensor dpositions = tensors.integers(DType::f32, {s, h}, -9, 9);
    Values expected_dx, expected_sum = values(dpositions);
    for (int64_t r = 0; r < s * b; ++r)
      for (int64_t c = 0; c < h; ++c) {
        expected_dx.push_back(at(dout, r, c) * (probability == 0 ? 1 : factor(dropout, r % b, r / b, c, h)));
        expected_sum[size_t(r / b * h + c)] += expected_dx.back();
      }

    ops->run(op::PositionBackward{.dout = dout, .dropout = dropout, .dx = dx, .dpositions = dpositions}, *stream);

    EXPECT_TRUE(near(dx, expected_dx, 0));
    EXPECT_TRUE(near(dpositions, expected_sum, 0));
    const Tensor unused = tensors.full(DType::f32, {s, h}, 0);
    ops->run(op::PositionBackward{.dout = dout, .dropout = dropout, .dx = dout, .dpositions = unused},
             *stream);  // in place
    EXPECT_TRUE(same_bits(dout, dx));
  }
}

TEST_P(EmbeddingTest, WrongArgumentsAreNamed) {
  const Tensor tokens = tensors.integers(DType::i32, {4, 2}, 0, 1), table = tensors.uniform(dtype, {9, 6});
  const Tensor x = tensors.uniform(dtype, {4, 2, 6}), flat = tensors.uniform(dtype, {8, 6});
  const Tensor positions = tensors.uniform(dtype, {4, 6}), sums = tensors.uniform(DType::f32, {4, 6});
  const Tensor grad = tensors.uniform(DType::f32, {9, 6}), narrow = tensors.uniform(DType::f32, {9, 5});
  const Dropout none, certain{.probability = 1};
  EXPECT_TRUE(throws_naming(
      [&] { ops->run(op::EmbeddingForward{.tokens = table, .table = table, .first_row = 0, .out = x}, *stream); },
      {"embedding_forward", "tokens", "int32"}));
  EXPECT_TRUE(throws_naming(
      [&] { ops->run(op::EmbeddingForward{.tokens = tokens, .table = tokens, .first_row = 0, .out = x}, *stream); },
      {"embedding_forward", "table", "int32"}));
  EXPECT_TRUE(throws_naming(
      [&] { ops->run(op::EmbeddingForward{.tokens = tokens, .table = table, .first_row = 0, .out = table}, *stream); },
      {"embedding_forward", "out", "[9, 6]", "[8, 6]"}));
  EXPECT_TRUE(throws_naming(
      [&] { ops->run(op::EmbeddingBackward{.tokens = x, .dout = x, .first_row = 0, .dtable = grad}, *stream); },
      {"embedding_backward", "tokens"}));
  EXPECT_TRUE(throws_naming(
      [&] {
        ops->run(op::EmbeddingBackward{.tokens = tokens, .dout = table, .first_row = 0, .dtable = grad}, *stream);
      },
      {"embedding_backward", "dout", "[9, 6]", "[8, 6]"}));
  EXPECT_TRUE(throws_naming(
      [&] { ops->run(op::EmbeddingBackward{.tokens = tokens, .dout = x, .first_row = 0, .dtable = narrow}, *stream); },
      {"embedding_backward", "dtable", "[9, 5]", "[9, 6]"}));
  EXPECT_TRUE(throws_naming(
      [&] { ops->run(op::PositionForward{.x = flat, .positions = positions, .dropout = none, .out = x}, *stream); },
      {"position_forward", " x ", "[8, 6]", "3 dimensions"}));
  EXPECT_TRUE(throws_naming(
      [&] { ops->run(op::PositionForward{.x = x, .positions = table, .dropout = none, .out = x}, *stream); },
      {"position_forward", "positions", "[9, 6]", "[4, 6]"}));
  EXPECT_TRUE(throws_naming(
      [&] { ops->run(op::PositionForward{.x = x, .positions = positions, .dropout = none, .out = table}, *stream); },
      {"position_forward", "out", "[9, 6]"}));
  EXPECT_TRUE(throws_naming(
      [&] { ops->run(op::PositionForward{.x = x, .positions = positions, .dropout = certain, .out = x}, *stream); },
      {"position_forward", "probability", "1.0"}));
  EXPECT_TRUE(throws_naming(
      [&] { ops->run(op::PositionBackward{.dout = flat, .dropout = none, .dx = x, .dpositions = sums}, *stream); },
      {"position_backward", "dout", "3 dimensions"}));
  EXPECT_TRUE(throws_naming(
      [&] { ops->run(op::PositionBackward{.dout = x, .dropout = none, .dx = table, .dpositions = sums}, *stream); },
      {"position_backward", "dx", "[9, 6]"}));
  EXPECT_TRUE(throws_naming(
      [&] { ops->run(op::PositionBackward{.dout = x, .dropout = none, .dx = x, .dpositions = grad}, *stream); },
      {"position_backward", "dpositions", "[9, 6]", "[4, 6]"}));
  EXPECT_TRUE(throws_naming(
      [&] { ops->run(op::PositionBackward{.dout = x, .dropout = certain, .dx = x, .dpositions = sums}, *stream); },
      {"position_backward", "probability"}));
}

}  // namespace
}  // namespace trivet::test
