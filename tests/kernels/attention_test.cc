// Attention against its definition in double arithmetic, and that definition's gradient against finite differences.
#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <limits>
#include <random>

#include "kernels/base/arena.h"
#include "kernels/cuda/cudnn_attention.h"
#include "kernels/ops.h"
#include "tests/support/attention_reference.h"
#include "tests/support/mirrored_ops.h"
#include "tests/support/near.h"

namespace trivet {
namespace {

using test::keep_factor;
using test::Vector;
using Case = test::AttentionCase;
using Reference = test::AttentionReference;

// Who computes. On the CPU the case says with how many threads. On a Hopper GPU cuda are its own kernels, where there
// are some for the case, and cuda_older those of all GPUs. cuDNN takes some of the cases, and adds in any order or in a
// fixed one.
enum class By { cpu, cuda, cuda_older, cudnn, cudnn_in_order };
void PrintTo(By by, std::ostream* out) {
  constexpr const char* kNames[] = {"cpu", "cuda", "cuda_older", "cudnn", "cudnn_in_order"};
  *out << kNames[static_cast<size_t>(by)];
}

class AttentionTest : public testing::TestWithParam<By> {
 protected:
  void SetUp() override {
    if (GetParam() != By::cpu && cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
    if (by_cudnn() && !built_with_cudnn()) GTEST_SKIP() << "no cuDNN";
  }
  static bool by_cudnn() { return GetParam() == By::cudnn || GetParam() == By::cudnn_in_order; }
  static bool takes(const Case& z) {
    // The older kernels differ from the others in those.
    if (GetParam() == By::cuda_older) return z.dtype == DType::bf16 && z.d % 16 == 0 && z.d >= 64;
    return !by_cudnn() || (z.dtype == DType::bf16 && z.s > 1 && z.d % 8 == 0 && z.dropout.probability == 0);
  }
  static std::unique_ptr<Ops> ops_for(const Case& z) {
    if (GetParam() == By::cpu) return test::create_test_ops(z.threads);
    CudaOptions options{.hopper_attention = GetParam() != By::cuda_older, .deterministic = GetParam() != By::cudnn};
    if (by_cudnn())
      options.cudnn_attention = AttentionShape{.s = z.s, .b = z.b, .heads = z.heads, .d = z.d, .dtype = z.dtype};
    return test::create_test_ops(test::kOnCuda, options);
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
    const auto ops = ops_for(z);
    ops->run(op::AttentionForward{.qkv = x.qkv, .out = x.out, .lse = x.lse, .heads = z.heads, .dropout = z.dropout},
             *stream);
    ops->run(op::AttentionBackward{.dout = x.dout,
                                   .qkv = x.qkv,
                                   .out = x.out,
                                   .lse = x.lse,
                                   .dqkv = x.dqkv,
                                   .heads = z.heads,
                                   .dropout = z.dropout},
             *stream);
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
    if (!takes(z)) return;
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

INSTANTIATE_TEST_SUITE_P(BackEnds, AttentionTest,
                         testing::Values(By::cpu, By::cuda, By::cuda_older, By::cudnn, By::cudnn_in_order),
                         testing::PrintToStringParamName());

int64_t first_sample = 3;
const Dropout kDropout{.probability = 0.2f,
                       .seed = 11,
                       .site = 5,
                       .first_sample = Tensor{&first_sample, DType::i64, {1}},
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
  if (by_cudnn()) GTEST_SKIP() << "has no dropout";
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const auto& [s, b, heads, d] :
         {std::array<int64_t, 4>{5, 2, 2, 16}, {67, 2, 3, 32}, {150, 1, 2, 64}, {129, 1, 1, 128}})
      expect_reference({s, b, heads, d, dtype, kDropout});
}

TEST_P(AttentionTest, LongSequencesMatchTheDefinition) {
  const int64_t s = GetParam() != By::cpu && test::gpu_is_emulated() ? 300 : 600;
  expect_reference({s, 1, 1, 64, DType::f32, kDropout});
  // More tiles than there are stages for, and warpgroups that have no queries.
  expect_reference({s + 90, 1, 1, 64, DType::bf16});
  expect_reference({s + 90, 1, 1, 128, DType::bf16});
}

TEST_P(AttentionTest, MoreTilesThanMultiprocessorsMatchTheDefinition) {
  if (GetParam() != By::cuda) GTEST_SKIP() << "has none, or does not count them";
  // An emulated GPU has four, an H200 132: five tasks a block, so that all rings of stages come round.
  const int64_t b = test::gpu_is_emulated() ? 1 : 33;
  expect_reference({70, b, 20, 64, DType::bf16});
  for (const int64_t d : {96, 128}) expect_reference({20, b, 20, d, DType::bf16});
  expect_reference({200, b, 3, 64, DType::bf16});
  expect_reference({140, b, 3, 80, DType::bf16});
}

TEST_P(AttentionTest, LargeScoresDoNotOverflow) {
  // Scores of several hundred: one key takes all, and exp of the rest is zero.
  if (!by_cudnn()) expect_reference({90, 1, 1, 64, DType::f32}, 12.0f);
  expect_reference({90, 1, 1, 64, DType::bf16}, 12.0f);
}

TEST_P(AttentionTest, GradientOfTheDefinitionIsItsFiniteDifference) {
  if (GetParam() != By::cpu) GTEST_SKIP() << "nobody's";
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
  if (by_cudnn()) GTEST_SKIP() << "has no dropout";
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
  if (by_cudnn()) GTEST_SKIP() << "this is in fp32";
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
  if (GetParam() == By::cudnn) GTEST_SKIP() << "adds in any order";
  const Dropout dropout = by_cudnn() ? Dropout{} : kDropout;
  for (Case z : {Case{150, 2, 3, 48, DType::f32, dropout}, Case{100, 2, 1, 48, DType::bf16, dropout},
                 Case{200, 1, 1, 64, DType::bf16, dropout}}) {
    if (!takes(z)) continue;
    const Tensors first = run(z);
    for (const int threads : GetParam() == By::cpu ? std::vector{2, 1, 3} : std::vector{1}) {
      z.threads = threads;
      const Tensors again = run(z, first.qkv, first.dout);
      EXPECT_EQ(bytes(first.out), bytes(again.out)) << threads;
      EXPECT_EQ(bytes(first.lse), bytes(again.lse)) << threads;
      EXPECT_EQ(bytes(first.dqkv), bytes(again.dqkv)) << threads;
    }
  }
}

TEST_P(AttentionTest, WrongArgumentsNameTheArgument) {
  if (by_cudnn()) GTEST_SKIP() << "the checks are CUDA's";
  const auto ops = test::create_test_ops(GetParam() == By::cuda ? test::kOnCuda : 1);
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
  expect_error([&] { ops->run(op::AttentionForward{.qkv = qkv, .out = out, .lse = lse, .heads = 5}, *stream); },
               "attention_forward: qkv is [4, 2, 48]");
  expect_error([&] { ops->run(op::AttentionForward{.qkv = qkv, .out = qkv, .lse = lse, .heads = 2}, *stream); },
               "attention_forward: out is [4, 2, 48]");
  expect_error([&] { ops->run(op::AttentionForward{.qkv = qkv, .out = out, .lse = out, .heads = 2}, *stream); },
               "attention_forward: lse is [4, 2, 16]");
  expect_error(
      [&] {
        ops->run(op::AttentionBackward{.dout = lse, .qkv = qkv, .out = out, .lse = lse, .dqkv = qkv, .heads = 2},
                 *stream);
      },
      "attention_backward: dout is [2, 2, 4]");
  expect_error(
      [&] {
        ops->run(op::AttentionBackward{.dout = out, .qkv = qkv, .out = out, .lse = lse, .dqkv = out, .heads = 2},
                 *stream);
      },
      "attention_backward: dqkv is [4, 2, 16]");
}

}  // namespace
}  // namespace trivet
