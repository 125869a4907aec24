// Step acceptance, decided on the device.
#include <limits>

#include "tests/support/ops_fixture.h"

namespace trivet::test {
namespace {

using StepCheckTest = OpsTest;
INSTANTIATE_TEST_SUITE_P(BackEnds, StepCheckTest,
                         testing::Combine(testing::Values(DType::f32), testing::Values(2, kOnCuda)), case_name);

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST_P(StepCheckTest, RefusesWhatIsOverItsLimitOrNotFinite) {
  struct Case {
    std::array<float, 3> numbers, limits;
    bool finite, proceeds;
  };
  const Case cases[] = {
      {{1, 2, 3}, {kInf, kInf, kInf}, true, true},     {{1, 2, 3}, {1, 2, 3}, true, true},
      {{1, 2, 3}, {1, 1.5f, 3}, true, false},          {{1, kNan, 3}, {kInf, kInf, kInf}, true, false},
      {{1, 2, kInf}, {kInf, kInf, kInf}, true, false}, {{-kInf, 2, 3}, {kInf, kInf, kInf}, true, false},
      {{1, kNan, kInf}, {1, 2, 3}, false, true},       {{1, kNan, 4}, {1, 2, 3}, false, false},
  };
  for (const Case& test : cases) {
    const Tensor numbers =
        tensors.make(DType::f32, {3}, [&](int64_t i) { return test.numbers[static_cast<size_t>(i)]; });
    const Tensor accepted = tensors.poisoned(DType::f32, {1});

    ops->run(op::AcceptStep{.numbers = numbers,
                            .limits = {{test.limits[0], test.limits[1], test.limits[2]}, test.finite},
                            .accepted = accepted},
             *stream);

    EXPECT_EQ(get(accepted, 0), test.proceeds ? 1 : 0) << test.numbers[0] << ' ' << test.numbers[1];
  }
}

// Sums over 24 labels become means over those that count, and so do gradients, clipped or not; all are 0 if none count.
TEST_P(StepCheckTest, CountsLabels) {
  for (const float missing : {0.0f, 8.0f, 24.0f})
    for (const float max_norm : {0.0f, 0.5f, 100.0f}) {
      const double share = missing < 24 ? 24 / (24.0 - static_cast<double>(missing)) : 0, norm = 3 * share;
      const Tensor numbers = tensors.make(DType::f32, {3}, [](int64_t i) { return 1.5 * static_cast<double>(i + 1); });
      const Tensor scale = tensors.poisoned(DType::f32, {1});

      ops->run(op::CountLabels{.missing = tensors.full(DType::f32, {1}, missing),
                               .norm = tensors.full(DType::f32, {1}, 3),
                               .labels = 24,
                               .max_norm = max_norm,
                               .numbers = numbers,
                               .grad_scale = scale},
               *stream);

      for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(get(numbers, i), share * 1.5 * static_cast<double>(i + 1));
      const double clip = max_norm > 0 ? std::min(1.0, static_cast<double>(max_norm) / (norm + 1e-6)) : 1;
      EXPECT_FLOAT_EQ(static_cast<float>(get(scale, 0)), static_cast<float>(share * clip))
          << missing << ' ' << max_norm;
    }
}

TEST_P(StepCheckTest, FindsTheFirstNumberThatIsNotFinite) {
  for (const int64_t n : {1, 7, 3000, 100'003}) {
    const Tensor x = tensors.uniform(DType::f32, {n}), found = tensors.make(DType::i64, {3}, [](int64_t) { return 0; });
    const Tensor refused = tensors.full(DType::f32, {1}, 0), taken = tensors.full(DType::f32, {1}, 1);
    const auto at = [&](int64_t i) { return found.as<int64_t>()[i]; };
    const auto expect_found = [&](int64_t first, bool infinite, int64_t nans, int64_t infinities) {
      EXPECT_EQ(element_of_mark(at(0)), first) << n;
      EXPECT_EQ(infinite_of_mark(at(0)), infinite) << n;
      EXPECT_EQ(at(1), nans) << n;
      EXPECT_EQ(at(2), infinities) << n;
    };

    ops->run(op::FindNonFinite{.x = x, .accepted = refused, .found = found}, *stream);
    EXPECT_EQ(at(0), 0) << "all are finite";
    EXPECT_EQ(at(1) + at(2), 0);

    const int64_t first = n / 2;
    x.as<float>()[first] = -kInf;
    if (n > 1) x.as<float>()[n - 1] = kNan;
    ops->run(op::FindNonFinite{.x = x, .accepted = taken, .found = found}, *stream);
    EXPECT_EQ(at(0), 0) << "of a step that is taken nothing is looked for";
    ops->run(op::FindNonFinite{.x = x, .accepted = refused, .found = found}, *stream);
    expect_found(first, true, n > 1, 1);

    // Another search adds to the counts: here, for a tensor that is bad at its start, regardless of step acceptance.
    x.as<float>()[0] = kNan;
    x.as<float>()[first] = n == 1 ? kNan : 1;
    ops->run(op::FindNonFinite{.x = x, .found = found}, *stream);
    expect_found(0, false, n > 1 ? 3 : 1, 1);
    ops->run(op::FindNonFinite{.x = tensors.uniform(DType::f32, {n}), .found = found}, *stream);
    expect_found(0, false, n > 1 ? 3 : 1, 1);
  }
}

TEST_P(StepCheckTest, ARefusedUpdateWritesNothing) {
  const int64_t n = 5000;
  const Tensor weight = tensors.uniform(DType::f32, {n}), m = tensors.uniform(DType::f32, {n});
  const Tensor v = tensors.uniform(DType::f32, {n}, 0, 1), model_weight = tensors.uniform(DType::bf16, {n});
  const Tensor grad = tensors.full(DType::f32, {n}, kNan), scale = tensors.full(DType::f32, {1}, 1);
  const std::vector<Tensor> before = {tensors.copy(weight), tensors.copy(m), tensors.copy(v),
                                      tensors.copy(model_weight)};

  const Tensor refused = tensors.full(DType::f32, {1}, 0);
  ops->run(op::AdamWStep{.shards = {{weight, grad, m, v, model_weight}},
                         .grad_scale = scale,
                         .accepted = refused,
                         .how = {.learning_rate = 1}},
           *stream);

  EXPECT_TRUE(same_bits(weight, before[0]));
  EXPECT_TRUE(same_bits(m, before[1]));
  EXPECT_TRUE(same_bits(v, before[2]));
  EXPECT_TRUE(same_bits(model_weight, before[3]));
}

TEST_P(StepCheckTest, WrongArgumentsAreNamed) {
  const Tensor one = tensors.full(DType::f32, {1}, 1), five = tensors.full(DType::f32, {5}, 1);
  const Tensor found = tensors.make(DType::i64, {3}, [](int64_t) { return 0; });
  EXPECT_TRUE(throws_naming([&] { ops->run(op::AcceptStep{.numbers = five, .limits = {}, .accepted = one}, *stream); },
                            {"accept_step", "numbers"}));
  EXPECT_TRUE(throws_naming([&] { ops->run(op::AcceptStep{.numbers = one, .limits = {}, .accepted = five}, *stream); },
                            {"accept_step", " accepted ", "[5]"}));
  EXPECT_TRUE(throws_naming([&] { ops->run(op::FindNonFinite{.x = five, .accepted = one, .found = five}, *stream); },
                            {"find_non_finite", " found "}));
  EXPECT_TRUE(throws_naming([&] { ops->run(op::FindNonFinite{.x = found, .accepted = one, .found = found}, *stream); },
                            {"find_non_finite", " x "}));
}

}  // namespace
}  // namespace trivet::test
