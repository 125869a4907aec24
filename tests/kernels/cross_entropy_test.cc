// Softmax cross-entropy against its definition in double: unsharded, and sharded over ranks by columns.
#include <numeric>

#include "tests/support/ops_fixture.h"

namespace trivet::test {
namespace {

using CrossEntropyTest = OpsTest;
INSTANTIATE_TEST_SUITE_P(BackEnds, CrossEntropyTest, all_types_and_back_ends(), case_name);

struct Softmax {
  Values loss;         // per row
  Values probability;  // [n, columns], 0 in padding
};

// Over the first `vocab_size` of `columns` columns.
Softmax reference(const Values& logits, const Values& targets, int64_t columns, int64_t vocab_size) {
  Softmax out;
  for (size_t r = 0; r < targets.size(); ++r) {
    const double* row = logits.data() + r * size_t(columns);
    const double max = *std::max_element(row, row + vocab_size);
    double sum = 0;
    for (int64_t c = 0; c < vocab_size; ++c) sum += std::exp(row[c] - max);
    for (int64_t c = 0; c < columns; ++c) out.probability.push_back(c < vocab_size ? std::exp(row[c] - max) / sum : 0);
    out.loss.push_back(std::log(sum) + max - row[static_cast<int64_t>(targets[r])]);
  }
  return out;
}

double total(const Values& v) { return std::accumulate(v.begin(), v.end(), 0.0); }

// A rank's shard of the problem: columns [first, first + v) of the logits.
struct Part {
  int64_t first;
  Tensor logits, row_max, row_sum, target_logit;
};

class Problem {
 public:
  Problem(Tensors& tensors, DType dtype, int64_t n, int64_t columns, int64_t vocab_size)
      : tensors_(tensors), n(n), columns(columns), vocab_size(vocab_size) {
    logits = tensors.uniform(dtype, {n, columns}, -20, 20);
    targets = tensors.integers(DType::i32, {n}, 0, vocab_size - 1);
    for (int64_t r = 0; r < n; ++r)  // padding, which must never contribute, holds values above all others, and NaN
      for (int64_t c = vocab_size; c < columns; ++c) set(logits, r * columns + c, c % 2 ? 1e4 : std::nan(""));
  }

  // Runs the whole problem in `ranks` equal shards, as tensor-parallel ranks do; returns the loss summed over rows.
  double run(Ops& ops, Stream& stream, int64_t ranks, float scale) {
    const int64_t v = columns / ranks;
    parts.clear();
    for (int64_t rank = 0; rank < ranks; ++rank) {
      Part part{rank * v, tensors_.poisoned(logits.dtype, {n, v}), tensors_.poisoned(DType::f32, {n}),
                tensors_.poisoned(DType::f32, {n}), tensors_.poisoned(DType::f32, {n})};
      for (int64_t i = 0; i < n * v; ++i) set(part.logits, i, get(logits, i / v * columns + part.first + i % v));
      ops.run(op::CrossEntropyForward{.logits = part.logits,
                                      .targets = targets,
                                      .first_column = part.first,
                                      .vocab_size = vocab_size,
                                      .row_max = part.row_max,
                                      .row_sum = part.row_sum,
                                      .target_logit = part.target_logit},
              stream);
      parts.push_back(part);
    }
    // The collectives: a maximum, then sums.
    const Tensor global_max = tensors_.full(DType::f32, {n}, -std::numeric_limits<double>::infinity());
    const Tensor sum = tensors_.full(DType::f32, {n}, 0), target = tensors_.full(DType::f32, {n}, 0);
    for (const Part& part : parts)
      for (int64_t r = 0; r < n; ++r) set(global_max, r, std::max(get(global_max, r), get(part.row_max, r)));
    for (const Part& part : parts) {
      ops.run(op::CrossEntropyRescale{.row_max = part.row_max, .global_max = global_max, .row_sum = part.row_sum},
              stream);
      for (int64_t r = 0; r < n; ++r) {
        set(sum, r, get(sum, r) + get(part.row_sum, r));
        set(target, r, get(target, r) + get(part.target_logit, r));
      }
    }
    const Tensor loss = tensors_.full(DType::f32, {1}, 100);  // the loss is added to this value
    ops.run(op::CrossEntropyLoss{.targets = targets,
                                 .row_max = global_max,
                                 .row_sum = sum,
                                 .target_logit = target,
                                 .scale = scale,
                                 .loss = loss},
            stream);
    for (const Part& part : parts)
      ops.run(op::CrossEntropyBackward{.logits = part.logits,
                                       .targets = targets,
                                       .first_column = part.first,
                                       .vocab_size = vocab_size,
                                       .row_max = global_max,
                                       .row_sum = sum,
                                       .scale = scale},
              stream);
    return (get(loss, 0) - 100) / scale;
  }

  Values gradient() const {
    Values whole(size_t(n * columns));
    for (const Part& part : parts)
      for (int64_t i = 0; i < part.logits.numel(); ++i)
        whole[size_t(i / part.logits.cols() * columns + part.first + i % part.logits.cols())] = get(part.logits, i);
    return whole;
  }

  Tensors& tensors_;
  int64_t n, columns, vocab_size;
  Tensor logits, targets;
  std::vector<Part> parts;
};

TEST_P(CrossEntropyTest, LossAndGradientOnOneTwoAndThreeRanks) {
  // columns, vocabulary: without padding, with some, and with so much that the last of three ranks holds only padding.
  for (const auto& [n, columns, vocab] :
       {std::array<int64_t, 3>{41, 1302, 1302}, {41, 1302, 1201}, {9, 66, 40}, {1, 6, 1}, {5, 4998, 4998}}) {
    for (const int64_t ranks : {1, 2, 3}) {
      Problem problem(tensors, dtype, n, columns, vocab);
      const Softmax expected = reference(values(problem.logits), values(problem.targets), columns, vocab);
      const float scale = 0.25f;

      const double loss = problem.run(*ops, *stream, ranks, scale);

      EXPECT_NEAR(loss, total(expected.loss), tolerance(DType::f32, vocab, 20) + 400 * tolerance(DType::f32, 1));
      Values gradient = expected.probability;
      for (int64_t r = 0; r < n; ++r) gradient[size_t(r * columns + int64_t(get(problem.targets, r)))] -= 1;
      for (double& g : gradient) g *= scale;
      const Tensor found = tensors.of(dtype, problem.gradient());
      EXPECT_TRUE(near(found, gradient, summed(dtype, gradient, vocab, scale)))
          << columns << " columns, vocabulary of " << vocab << ", " << ranks << " ranks";
      double in_padding = 0;
      for (int64_t i = 0; i < n * columns; ++i) in_padding += i % columns >= vocab ? std::abs(get(found, i)) : 0;
      EXPECT_EQ(in_padding, 0);
    }
  }
}

// The fused gradient equals that of the two ops bit for bit: for rows in shared memory, read in packs or element by
// element, up to the longest that fits; for longer rows; and for the vocabularies of GPT-2 and Llama 3.
TEST_P(CrossEntropyTest, TheGradientAtOnceIsThatOfTheTwoOps) {
  const int64_t most = 112 * 1024 / size_of(dtype);
  for (const auto& [columns, vocab] : {std::array<int64_t, 2>{1302, 1201},
                                       {7, 7},
                                       {most, most},
                                       {most + 8, most + 1},
                                       {50304, 50257},
                                       {128256, 128256}}) {
    // given
    const int64_t n = 3;
    Problem problem(tensors, dtype, n, columns, vocab);
    set(problem.targets, 1, -1);
    set(problem.targets, 2, double(vocab - 1));
    Tensor rows[2][3];
    for (auto& of_one : rows)
      for (Tensor& t : of_one) t = tensors.poisoned(DType::f32, {n});
    const Tensor logits[2] = {tensors.copy(problem.logits), tensors.copy(problem.logits)};
    // when
    for (const int at_once : {0, 1}) {
      const op::CrossEntropyForward forward{.logits = logits[at_once],
                                            .targets = problem.targets,
                                            .first_column = 0,
                                            .vocab_size = vocab,
                                            .row_max = rows[at_once][0],
                                            .row_sum = rows[at_once][1],
                                            .target_logit = rows[at_once][2],
                                            .gradient = at_once ? logits[1] : Tensor{},
                                            .scale = 0.25f};
      ops->run(forward, *stream);
      if (at_once) continue;
      op::CrossEntropyForward with_gradient = forward;
      with_gradient.gradient = logits[0];
      ops->run(backward_of(with_gradient), *stream);
    }
    // then
    for (int i = 0; i < 3; ++i)
      EXPECT_EQ(values(rows[0][i]), values(rows[1][i])) << columns << " columns, number " << i;
    EXPECT_EQ(values(logits[0]), values(logits[1])) << columns << " columns";
    Values gradient =
        reference(values(problem.logits), {get(problem.targets, 0), 0, get(problem.targets, 2)}, columns, vocab)
            .probability;
    for (int64_t r : {0, 2}) gradient[size_t(r * columns + int64_t(get(problem.targets, r)))] -= 1;
    for (int64_t i = 0; i < n * columns; ++i) gradient[size_t(i)] *= i / columns == 1 ? 0 : 0.25;
    EXPECT_TRUE(near(logits[1], gradient, summed(dtype, gradient, vocab, 0.25))) << columns << " columns";
  }
}

TEST_P(CrossEntropyTest, ARowWithoutATargetHasNeitherLossNorGradient) {
  const int64_t n = 41, columns = 1302, vocab = 1201;
  for (const int64_t ranks : {1, 2, 3}) {
    Problem problem(tensors, dtype, n, columns, vocab);
    const Softmax expected = reference(values(problem.logits), values(problem.targets), columns, vocab);
    double counted = total(expected.loss);
    for (const int64_t r : {0, 17, 40}) {
      counted -= expected.loss[size_t(r)];
      set(problem.targets, r, -1);
    }
    EXPECT_NEAR(problem.run(*ops, *stream, ranks, 0.25f), counted,
                tolerance(DType::f32, vocab, 20) + 400 * tolerance(DType::f32, 1));
    const Values gradient = problem.gradient();
    for (int64_t r = 0; r < n; ++r) {
      double sum = 0;
      for (int64_t c = 0; c < columns; ++c) sum += std::abs(gradient[size_t(r * columns + c)]);
      EXPECT_EQ(sum == 0, r == 0 || r == 17 || r == 40) << r;
    }
  }
}

TEST_P(CrossEntropyTest, ARankOfPaddingOnly) {
  const int64_t n = 3, v = 40;
  const Tensor logits = tensors.full(dtype, {n, v}, std::nan("")), targets = tensors.full(DType::i32, {n}, 7);
  const Tensor row_max = tensors.poisoned(DType::f32, {n}), row_sum = tensors.poisoned(DType::f32, {n});
  const Tensor target = tensors.poisoned(DType::f32, {n}), global_max = tensors.full(DType::f32, {n}, 3);

  ops->run(op::CrossEntropyForward{.logits = logits,
                                   .targets = targets,
                                   .first_column = 120,
                                   .vocab_size = 100,
                                   .row_max = row_max,
                                   .row_sum = row_sum,
                                   .target_logit = target},
           *stream);
  ops->run(op::CrossEntropyRescale{.row_max = row_max, .global_max = global_max, .row_sum = row_sum}, *stream);

  EXPECT_TRUE(near(row_max, Values(n, -std::numeric_limits<double>::infinity()), 0));
  EXPECT_TRUE(near(row_sum, Values(n, 0.0), 0));
  EXPECT_TRUE(near(target, Values(n, 0.0), 0));
  ops->run(op::CrossEntropyBackward{.logits = logits,
                                    .targets = targets,
                                    .first_column = 120,
                                    .vocab_size = 100,
                                    .row_max = global_max,
                                    .row_sum = global_max,
                                    .scale = 1},
           *stream);
  EXPECT_TRUE(near(logits, Values(n * v, 0.0), 0));
}

// The row count of a large micro-batch, for which an fp32 sum would be inexact.
TEST_P(CrossEntropyTest, TheLossOfManyRowsIsExact) {
  const int64_t n = 1'000'000;
  const Tensor targets = tensors.full(DType::i32, {n}, 0), max = tensors.full(DType::f32, {n}, 7.3);
  const Tensor sum = tensors.full(DType::f32, {n}, 1), target = tensors.full(DType::f32, {n}, 0);
  const Tensor loss = tensors.full(DType::f32, {1}, 0);
  ops->run(op::CrossEntropyLoss{.targets = targets,
                                .row_max = max,
                                .row_sum = sum,
                                .target_logit = target,
                                .scale = 1.0f / static_cast<float>(n),
                                .loss = loss},
           *stream);
  EXPECT_NEAR(get(loss, 0), 7.3, 7.3 * 2e-7);
}

// exp(1000) overflows fp32: only x - max may be exponentiated, even if the maximum appears only after many blocks.
TEST_P(CrossEntropyTest, LargeLogitsDoNotOverflow) {
  const int64_t v = 5000;
  const Tensor logits = tensors.make(dtype, {2, v}, [](int64_t i) {
    return i == 2 * v - 1 ? 2048 : i % 5000 ? 0 : 1024;
  });
  const Tensor targets = tensors.full(DType::i32, {2}, 0);
  const Tensor max = tensors.poisoned(DType::f32, {2}), sum = tensors.poisoned(DType::f32, {2});
  const Tensor target = tensors.poisoned(DType::f32, {2});

  ops->run(op::CrossEntropyForward{.logits = logits,
                                   .targets = targets,
                                   .first_column = 0,
                                   .vocab_size = v,
                                   .row_max = max,
                                   .row_sum = sum,
                                   .target_logit = target},
           *stream);

  EXPECT_TRUE(near(max, {1024, 2048}, 0));
  EXPECT_TRUE(near(sum, {1, 1}, 0));
  EXPECT_TRUE(near(target, {1024, 1024}, 0));
}

TEST_P(CrossEntropyTest, NotANumberReachesTheLoss) {
  const Tensor logits = tensors.uniform(dtype, {1, 300}), targets = tensors.full(DType::i32, {1}, 0);
  set(logits, 217, std::nan(""));
  const Tensor max = tensors.poisoned(DType::f32, {1}), sum = tensors.poisoned(DType::f32, {1});
  const Tensor target = tensors.poisoned(DType::f32, {1}), loss = tensors.full(DType::f32, {1}, 0);

  ops->run(op::CrossEntropyForward{.logits = logits,
                                   .targets = targets,
                                   .first_column = 0,
                                   .vocab_size = 300,
                                   .row_max = max,
                                   .row_sum = sum,
                                   .target_logit = target},
           *stream);
  ops->run(
      op::CrossEntropyLoss{
          .targets = targets, .row_max = max, .row_sum = sum, .target_logit = target, .scale = 1, .loss = loss},
      *stream);

  EXPECT_TRUE(std::isnan(get(loss, 0)));
}

TEST(CrossEntropyReference, AgreesWithFiniteDifferences) {
  std::mt19937_64 random(3);
  std::uniform_real_distribution<double> draw(-3, 3);
  Values logits(2 * 5), targets = {3, 1};
  for (double& l : logits) l = draw(random);
  const auto loss = [&](const Values& at) { return total(reference(at, targets, 5, 4).loss); };

  const Softmax found = reference(logits, targets, 5, 4);

  for (size_t i = 0; i < logits.size(); ++i) {
    const double one_hot = static_cast<double>(i % 5) == targets[i / 5];
    EXPECT_NEAR(found.probability[i] - one_hot, numeric_gradient(loss, logits, i), 1e-8);
  }
}

TEST_P(CrossEntropyTest, WrongArgumentsAreNamed) {
  const Tensor logits = tensors.uniform(dtype, {4, 6}), targets = tensors.integers(DType::i32, {4}, 0, 5);
  const Tensor n = tensors.uniform(DType::f32, {4}), m = tensors.uniform(DType::f32, {3});
  const Tensor one = tensors.uniform(DType::f32, {1});
  const auto forward = [&](Tensor l, Tensor t, Tensor a, Tensor b, Tensor c) {
    return [=, this] {
      ops->run(op::CrossEntropyForward{.logits = l,
                                       .targets = t,
                                       .first_column = 0,
                                       .vocab_size = 6,
                                       .row_max = a,
                                       .row_sum = b,
                                       .target_logit = c},
               *stream);
    };
  };
  EXPECT_TRUE(throws_naming(forward(targets, targets, n, n, n), {"cross_entropy_forward", "logits", "int32"}));
  EXPECT_TRUE(throws_naming(forward(logits, n, n, n, n), {"cross_entropy_forward", "targets", "fp32", "int32"}));
  EXPECT_TRUE(throws_naming(forward(logits, targets, m, n, n), {"cross_entropy_forward", "row_max", "[3]", "[4]"}));
  EXPECT_TRUE(throws_naming(forward(logits, targets, n, m, n), {"cross_entropy_forward", "row_sum", "[3]", "[4]"}));
  EXPECT_TRUE(throws_naming(forward(logits, targets, n, n, m), {"cross_entropy_forward", "target_logit", "[3]"}));
  EXPECT_TRUE(
      throws_naming([&] { ops->run(op::CrossEntropyRescale{.row_max = n, .global_max = m, .row_sum = n}, *stream); },
                    {"cross_entropy_rescale", "global_max"}));
  EXPECT_TRUE(
      throws_naming([&] { ops->run(op::CrossEntropyRescale{.row_max = n, .global_max = n, .row_sum = m}, *stream); },
                    {"cross_entropy_rescale", "row_sum"}));
  EXPECT_TRUE(throws_naming(
      [&] {
        ops->run(
            op::CrossEntropyLoss{.targets = n, .row_max = n, .row_sum = n, .target_logit = n, .scale = 1, .loss = one},
            *stream);
      },
      {"cross_entropy_loss", "targets"}));
  EXPECT_TRUE(throws_naming(
      [&] {
        ops->run(
            op::CrossEntropyLoss{
                .targets = targets, .row_max = n, .row_sum = m, .target_logit = n, .scale = 1, .loss = one},
            *stream);
      },
      {"cross_entropy_loss", "row_sum"}));
  EXPECT_TRUE(throws_naming(
      [&] {
        ops->run(
            op::CrossEntropyLoss{
                .targets = targets, .row_max = n, .row_sum = n, .target_logit = m, .scale = 1, .loss = one},
            *stream);
      },
      {"cross_entropy_loss", "target_logit"}));
  EXPECT_TRUE(throws_naming(
      [&] {
        ops->run(
            op::CrossEntropyLoss{
                .targets = targets, .row_max = n, .row_sum = n, .target_logit = n, .scale = 1, .loss = n},
            *stream);
      },
      {"cross_entropy_loss", " loss ", "[4]", "[1]"}));
  EXPECT_TRUE(throws_naming(
      [&] {
        ops->run(op::CrossEntropyBackward{.logits = logits,
                                          .targets = n,
                                          .first_column = 0,
                                          .vocab_size = 6,
                                          .row_max = n,
                                          .row_sum = n,
                                          .scale = 1},
                 *stream);
      },
      {"cross_entropy_backward", "targets"}));
  EXPECT_TRUE(throws_naming(
      [&] {
        ops->run(op::CrossEntropyBackward{.logits = logits,
                                          .targets = targets,
                                          .first_column = 0,
                                          .vocab_size = 6,
                                          .row_max = m,
                                          .row_sum = n,
                                          .scale = 1},
                 *stream);
      },
      {"cross_entropy_backward", "row_max"}));
  EXPECT_TRUE(throws_naming(
      [&] {
        ops->run(op::CrossEntropyBackward{.logits = logits,
                                          .targets = targets,
                                          .first_column = 0,
                                          .vocab_size = 6,
                                          .row_max = n,
                                          .row_sum = m,
                                          .scale = 1},
                 *stream);
      },
      {"cross_entropy_backward", "row_sum"}));
}

// ---- the CPU's exponential, for softmax and GELU: a sum of 1 is rescaled from a maximum of x to a maximum of 0

class VectorExp : public CrossEntropyTest {
 protected:
  void SetUp() override {
    CrossEntropyTest::SetUp();
    if (threads == kOnCuda) GTEST_SKIP() << "CUDA has its own";
  }
  Tensor exp(const Values& x) {
    const Tensor result = tensors.full(DType::f32, {static_cast<int64_t>(x.size())}, 1);
    ops->run(op::CrossEntropyRescale{tensors.of(DType::f32, x), tensors.full(DType::f32, result.shape, 0), result},
             *stream);
    return result;
  }
};
INSTANTIATE_TEST_SUITE_P(BackEnds, VectorExp, testing::Combine(testing::Values(DType::f32), testing::Values(1)),
                         case_name);

TEST_P(VectorExp, IsWithinTwoUlp) {
  Values x;
  for (float at = -87.3f; at < 88.3f; at += 1.7e-4f) x.push_back(at);
  const Tensor y = exp(x);
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double exact = std::exp(x[i]), ulp = std::ldexp(1.0, std::ilogb(exact) - 23);
    worst = std::max(worst, std::abs(get(y, static_cast<int64_t>(i)) - exact) / ulp);
  }
  EXPECT_LT(worst, 2.0);
}

TEST_P(VectorExp, MeetsItsEnds) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const Values x = {0, -kInfinity, -1e30, -88, 89, 1e30, kInfinity},
               expected = {1, 0, 0, 0, kInfinity, kInfinity, kInfinity};
  EXPECT_EQ(values(exp(x)), expected);
  const Values inside = values(exp({-87.3, 88.3}));
  EXPECT_GT(inside[0], 0);
  EXPECT_LT(inside[1], kInfinity);
  const float low_bits = std::bit_cast<float>(0x7f8fffffu);  // a NaN with its low bits set
  for (const double y : values(exp({std::nan(""), low_bits}))) EXPECT_TRUE(std::isnan(y));
}

TEST_P(CrossEntropyTest, AddsOnlyRealColumns) {
  for (int64_t n = 1; n < 300; ++n) {
    const Tensor targets = tensors.full(DType::i32, {1}, 0), max = tensors.poisoned(DType::f32, {1});
    const Tensor sum = tensors.poisoned(DType::f32, {1}), target = tensors.poisoned(DType::f32, {1});
    // e^0 = 1 would be added for elements past the end.
    ops->run(op::CrossEntropyForward{.logits = tensors.full(dtype, {1, n}, 1),
                                     .targets = targets,
                                     .first_column = 0,
                                     .vocab_size = n,
                                     .row_max = max,
                                     .row_sum = sum,
                                     .target_logit = target},
             *stream);
    EXPECT_EQ(get(sum, 0), static_cast<double>(n));
  }
}

}  // namespace
}  // namespace trivet::test
