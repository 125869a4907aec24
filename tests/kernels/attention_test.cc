// Attention against its definition in double arithmetic, and that definition's gradient against finite differences.
#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <limits>
#include <random>

#include "kernels/base/arena.h"
#include "kernels/ops.h"
#include "kernels/philox.h"
#include "tests/support/mirrored_ops.h"
#include "tests/support/near.h"

namespace trivet {
namespace {

using Vector = std::vector<double>;

struct Case {
  int64_t s, b, heads, d;
  DType dtype = DType::f32;
  Dropout dropout{};
  int threads = 2;
};

// 1 / (1 - p) where the contract of Dropout keeps a probability, else 0.
double keep_factor(const Dropout& dropout, int64_t batch, int64_t head, int64_t query, int64_t key) {
  if (dropout.probability == 0) return 1;
  const int64_t index =
      (((dropout.first_sample + batch) * dropout.total_heads + dropout.first_head + head) * dropout.seq_length +
       query) *
          dropout.seq_length +
      key;
  const auto words = philox4x32(static_cast<uint64_t>(index) / 4, dropout.site, dropout.seed);
  const bool keep = words.w[index % 4] >= dropout_threshold(dropout.probability);
  return keep ? 1.0 / (1.0 - static_cast<double>(dropout.probability)) : 0.0;
}

// The definition. Vectors in the layouts of kernels/ops.h.
struct Reference {
  const Case& z;

  size_t at(int64_t position, int64_t batch, int64_t head, int64_t part, int64_t column) const {
    return static_cast<size_t>((((position * z.b + batch) * z.heads + head) * 3 + part) * z.d + column);
  }
  size_t out_at(int64_t position, int64_t batch, int64_t head, int64_t column) const {
    return static_cast<size_t>(((position * z.b + batch) * z.heads + head) * z.d + column);
  }
  Vector scores(const Vector& qkv, int64_t batch, int64_t head, int64_t i) const {
    Vector row(static_cast<size_t>(i + 1), 0.0);
    for (int64_t j = 0; j <= i; ++j)
      for (int64_t c = 0; c < z.d; ++c)
        row[static_cast<size_t>(j)] +=
            qkv[at(i, batch, head, 0, c)] * qkv[at(j, batch, head, 1, c)] / std::sqrt(static_cast<double>(z.d));
    return row;
  }
  static double log_sum_exp(const Vector& row) {
    const double largest = *std::max_element(row.begin(), row.end());
    double sum = 0;
    for (double x : row) sum += std::exp(x - largest);
    return largest + std::log(sum);
  }
  template <class F>
  void for_each_row(F&& f) const {
    for (int64_t batch = 0; batch < z.b; ++batch)
      for (int64_t head = 0; head < z.heads; ++head)
        for (int64_t i = 0; i < z.s; ++i) f(batch, head, i);
  }

  void forward(const Vector& qkv, Vector& out, Vector& lse) const {
    out.assign(static_cast<size_t>(z.s * z.b * z.heads * z.d), 0.0);
    lse.assign(static_cast<size_t>(z.b * z.heads * z.s), 0.0);
    for_each_row([&](int64_t batch, int64_t head, int64_t i) {
      const Vector row = scores(qkv, batch, head, i);
      const double log_sum = log_sum_exp(row);
      lse[static_cast<size_t>((batch * z.heads + head) * z.s + i)] = log_sum;
      for (int64_t j = 0; j <= i; ++j) {
        const double p = std::exp(row[static_cast<size_t>(j)] - log_sum) * keep_factor(z.dropout, batch, head, i, j);
        for (int64_t c = 0; c < z.d; ++c) out[out_at(i, batch, head, c)] += p * qkv[at(j, batch, head, 2, c)];
      }
    });
  }

  Vector backward(const Vector& qkv, const Vector& dout) const {
    Vector dqkv(qkv.size(), 0.0);
    const double scale = 1 / std::sqrt(static_cast<double>(z.d));
    for_each_row([&](int64_t batch, int64_t head, int64_t i) {
      const Vector row = scores(qkv, batch, head, i);
      const double log_sum = log_sum_exp(row);
      Vector p(row.size()), dp(row.size(), 0.0);
      double delta = 0;
      for (size_t j = 0; j < row.size(); ++j) {
        const auto key = static_cast<int64_t>(j);
        const double keep = keep_factor(z.dropout, batch, head, i, key);
        p[j] = std::exp(row[j] - log_sum);
        for (int64_t c = 0; c < z.d; ++c) {
          dp[j] += keep * dout[out_at(i, batch, head, c)] * qkv[at(key, batch, head, 2, c)];
          dqkv[at(key, batch, head, 2, c)] += keep * p[j] * dout[out_at(i, batch, head, c)];
        }
        delta += p[j] * dp[j];
      }
      for (size_t j = 0; j < row.size(); ++j)
        for (int64_t c = 0; c < z.d; ++c) {
          const auto key = static_cast<int64_t>(j);
          const double dscore = p[j] * (dp[j] - delta) * scale;
          dqkv[at(i, batch, head, 0, c)] += dscore * qkv[at(key, batch, head, 1, c)];
          dqkv[at(key, batch, head, 1, c)] += dscore * qkv[at(i, batch, head, 0, c)];
        }
    });
    return dqkv;
  }
};

// Parameter: whether CUDA computes; else the case says with how many threads the CPU does.
class AttentionTest : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (GetParam() && cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  }
  struct Tensors {
    Tensor qkv, out, lse, dout, dqkv;
  };

  static double value(const Tensor& x, int64_t i) {
    return x.dtype == DType::f32 ? x.as<float>()[i] : static_cast<float>(x.as<bf16>()[i]);
  }
  static Vector values(const Tensor& x) {
    Vector v(static_cast<size_t>(x.numel()));
    for (int64_t i = 0; i < x.numel(); ++i) v[static_cast<size_t>(i)] = value(x, i);
    return v;
  }
  static std::vector<char> bytes(const Tensor& x) {
    return {static_cast<char*>(x.data), static_cast<char*>(x.data) + x.bytes()};
  }
  Tensor poisoned(DType dtype, Shape shape) {
    const Tensor x = arena.allocate(dtype, shape);
    for (int64_t i = 0; i < x.numel(); ++i) {
      if (dtype == DType::f32) x.as<float>()[i] = std::numeric_limits<float>::quiet_NaN();
      else x.as<bf16>()[i] = bf16(std::numeric_limits<float>::quiet_NaN());
    }
    return x;
  }
  Tensor drawn(DType dtype, Shape shape, float deviation) {
    const Tensor x = arena.allocate(dtype, shape);
    std::normal_distribution<float> normal(0, deviation);
    for (int64_t i = 0; i < x.numel(); ++i) {
      if (dtype == DType::f32) x.as<float>()[i] = normal(random);
      else x.as<bf16>()[i] = bf16(normal(random));
    }
    return x;
  }

  Tensors run(const Case& z, const Tensor& qkv, const Tensor& dout) {
    const Shape wide{z.s, z.b, z.heads * 3 * z.d}, narrow{z.s, z.b, z.heads * z.d};
    Tensors x{qkv, poisoned(z.dtype, narrow), poisoned(DType::f32, {z.b, z.heads, z.s}), dout, poisoned(z.dtype, wide)};
    const auto ops = test::create_test_ops(GetParam() ? test::kOnCuda : z.threads);
    const Ops::Attention how{z.heads, z.dropout};
    ops->attention_forward(x.qkv, x.out, x.lse, how, *stream);
    ops->attention_backward(x.dout, x.qkv, x.out, x.lse, x.dqkv, how, *stream);
    stream->synchronize();
    return x;
  }
  Tensors run(const Case& z, float deviation = 1.0f) {
    return run(z, drawn(z.dtype, {z.s, z.b, z.heads * 3 * z.d}, deviation),
               drawn(z.dtype, {z.s, z.b, z.heads * z.d}, 1.0f));
  }

  void expect_near(const char* what, const Case& z, const Tensor& found, const Vector& wanted, double tolerance) {
    for (int64_t i = 0; i < found.numel(); ++i)
      ASSERT_NEAR(value(found, i), wanted[static_cast<size_t>(i)], tolerance)
          << what << " at " << i << ": s " << z.s << " b " << z.b << " heads " << z.heads << " d " << z.d << " "
          << name_of(z.dtype) << " dropout " << z.dropout.probability;
  }
  static double largest(const Vector& x) {
    double most = 0;
    for (double v : x) most = std::max(most, std::abs(v));
    return most;
  }

  void expect_reference(const Case& z, float deviation = 1.0f) {
    const Tensors x = run(z, deviation);
    const Reference reference{z};
    Vector out, lse;
    reference.forward(values(x.qkv), out, lse);
    const Vector dqkv = reference.backward(values(x.qkv), values(x.dout));
    // An absolute error of a score is a relative one of its probability. The type's own rounding comes on top: of the
    // results, and of probabilities and their gradients before they enter sums over s.
    const double of_score = test::tolerance(DType::f32, z.d, 1 + largest(lse));
    const double of_type = test::tolerance(z.dtype, z.d);
    expect_near("lse", z, x.lse, lse, of_score);
    expect_near("out", z, x.out, out, (of_score + of_type) * largest(out));
    expect_near("dqkv", z, x.dqkv, dqkv, (of_score + of_type) * largest(dqkv));
  }

  std::unique_ptr<Device> device = create_cpu_device();
  std::unique_ptr<Stream> stream = device->create_compute_stream();
  Arena arena{*device, "attention test"};
  std::mt19937 random{7};
};

INSTANTIATE_TEST_SUITE_P(BackEnds, AttentionTest, testing::Bool(),
                         [](const auto& info) { return std::string(info.param ? "cuda" : "cpu"); });

const Dropout kDropout{.probability = 0.2f,
                       .seed = 11,
                       .site = 5,
                       .first_sample = 3,
                       .seq_length = 600,
                       .first_position = 0,
                       .first_head = 2,
                       .total_heads = 7};

TEST_P(AttentionTest, MatchesTheDefinition) {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const auto& [s, b, heads, d] : {std::array<int64_t, 4>{1, 1, 1, 16},
                                         {2, 3, 2, 16},
                                         {31, 2, 3, 32},
                                         {64, 1, 2, 64},
                                         {65, 2, 1, 64},
                                         {97, 1, 3, 80},
                                         {128, 2, 2, 128},
                                         {130, 1, 1, 96},
                                         {200, 1, 2, 24},
                                         {257, 1, 1, 64},
                                         {50, 2, 2, 20},
                                         {37, 1, 1, 5}})
      expect_reference({s, b, heads, d, dtype});
}

TEST_P(AttentionTest, MatchesTheDefinitionWithDropout) {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const auto& [s, b, heads, d] :
         {std::array<int64_t, 4>{5, 2, 2, 16}, {67, 2, 3, 32}, {150, 1, 2, 64}, {129, 1, 1, 128}})
      expect_reference({s, b, heads, d, dtype, kDropout});
}

TEST_P(AttentionTest, LongSequencesMatchTheDefinition) {
  expect_reference({600, 1, 1, 64, DType::f32, kDropout});
  expect_reference({600, 1, 1, 64, DType::bf16});
}

TEST_P(AttentionTest, LargeScoresDoNotOverflow) {
  // Scores of several hundred: one key takes all, and exp of the rest is zero.
  expect_reference({90, 1, 1, 64, DType::f32}, 12.0f);
}

TEST_P(AttentionTest, GradientOfTheDefinitionIsItsFiniteDifference) {
  // given the loss sum(out * dout) in double
  Case z{9, 2, 2, 4};
  z.dropout = kDropout;
  const Reference reference{z};
  std::normal_distribution<double> normal;
  Vector qkv(static_cast<size_t>(z.s * z.b * z.heads * 3 * z.d)), dout(qkv.size() / 3);
  for (double& v : qkv) v = normal(random);
  for (double& v : dout) v = normal(random);
  const auto loss = [&](const Vector& at) {
    Vector out, lse;
    reference.forward(at, out, lse);
    double sum = 0;
    for (size_t i = 0; i < out.size(); ++i) sum += out[i] * dout[i];
    return sum;
  };

  // when every input is moved a little each way, then the loss moves by the gradient
  const Vector gradient = reference.backward(qkv, dout);
  constexpr double kStep = 1e-5;
  for (size_t i = 0; i < qkv.size(); ++i) {
    Vector up = qkv, down = qkv;
    up[i] += kStep;
    down[i] -= kStep;
    EXPECT_NEAR((loss(up) - loss(down)) / (2 * kStep), gradient[i], 1e-8);
  }
}

TEST_P(AttentionTest, DropoutZeroesExactlyTheElementsOfTheContract) {
  // given equal scores and values that show which keys a query saw: value j is the unit vector j
  Case z{16, 2, 3, 16};
  z.dropout = kDropout;
  const Tensor qkv = arena.allocate(DType::f32, {z.s, z.b, z.heads * 3 * z.d});
  const Reference index{z};
  for (int64_t i = 0; i < qkv.numel(); ++i) qkv.as<float>()[i] = 0;
  for (int64_t j = 0; j < z.s; ++j)
    for (int64_t batch = 0; batch < z.b; ++batch)
      for (int64_t head = 0; head < z.heads; ++head) qkv.as<float>()[index.at(j, batch, head, 2, j)] = 1;

  const Tensors x = run(z, qkv, drawn(DType::f32, {z.s, z.b, z.heads * z.d}, 1));

  int64_t dropped = 0;
  for (int64_t batch = 0; batch < z.b; ++batch)
    for (int64_t head = 0; head < z.heads; ++head)
      for (int64_t i = 0; i < z.s; ++i)
        for (int64_t j = 0; j < z.s; ++j) {
          const double p = j > i ? 0 : keep_factor(z.dropout, batch, head, i, j) / static_cast<double>(i + 1);
          const float found = x.out.as<float>()[index.out_at(i, batch, head, j)];
          EXPECT_NEAR(found, p, test::tolerance(DType::f32, 16, p));
          dropped += j <= i && found == 0;
        }
  EXPECT_GT(dropped, 0);
}

TEST_P(AttentionTest, TheFutureHasNoInfluence) {
  // given a sequence, and one that differs from position 40 on
  const Case z{70, 1, 2, 32};
  const Tensor qkv = drawn(z.dtype, {z.s, z.b, z.heads * 3 * z.d}, 1);
  const Tensor dout = drawn(z.dtype, {z.s, z.b, z.heads * z.d}, 1);
  const Tensors first = run(z, qkv, dout);
  const int64_t width = z.heads * 3 * z.d;
  for (int64_t i = 40 * width; i < qkv.numel(); ++i) qkv.as<float>()[i] += 1;
  const Tensors second = run(z, qkv, dout);
  EXPECT_EQ(std::memcmp(first.out.data, second.out.data, static_cast<size_t>(40 * z.heads * z.d) * 4), 0);
  EXPECT_NE(bytes(first.out), bytes(second.out));
}

TEST_P(AttentionTest, ASecondRunAndAnotherNumberOfThreadsGiveTheSameBits) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    Case z{150, 2, 3, 48, dtype, kDropout};
    const Tensors first = run(z);
    for (const int threads : {2, 1, 3}) {
      z.threads = threads;
      const Tensors again = run(z, first.qkv, first.dout);
      EXPECT_EQ(bytes(first.out), bytes(again.out)) << threads;
      EXPECT_EQ(bytes(first.lse), bytes(again.lse)) << threads;
      EXPECT_EQ(bytes(first.dqkv), bytes(again.dqkv)) << threads;
    }
  }
}

TEST_P(AttentionTest, WrongArgumentsNameTheArgument) {
  const auto ops = test::create_test_ops(GetParam() ? test::kOnCuda : 1);
  const Tensor qkv = drawn(DType::f32, {4, 2, 2 * 3 * 8}, 1), out = drawn(DType::f32, {4, 2, 16}, 1);
  const Tensor lse = drawn(DType::f32, {2, 2, 4}, 1);
  const auto expect_error = [&](auto&& call, const std::string& text) {
    try {
      call();
      ADD_FAILURE() << "accepted; expected an error with: " << text;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
    }
  };
  expect_error(
      [&] {
        ops->attention_forward(qkv, out, lse, {5, {}}, *stream);
      },
      "attention_forward: qkv is [4, 2, 48]");
  expect_error(
      [&] {
        ops->attention_forward(qkv, qkv, lse, {2, {}}, *stream);
      },
      "attention_forward: out is [4, 2, 48]");
  expect_error(
      [&] {
        ops->attention_forward(qkv, out, out, {2, {}}, *stream);
      },
      "attention_forward: lse is [4, 2, 16]");
  expect_error(
      [&] {
        ops->attention_backward(lse, qkv, out, lse, qkv, {2, {}}, *stream);
      },
      "attention_backward: dout is [2, 2, 4]");
  expect_error(
      [&] {
        ops->attention_backward(out, qkv, out, lse, out, {2, {}}, *stream);
      },
      "attention_backward: dqkv is [4, 2, 16]");
}

}  // namespace
}  // namespace trivet
