// RoPE against its definition in double.
#include <functional>
#include <numbers>

#include "tests/support/ops_fixture.h"

namespace trivet::test {
namespace {

using RopeTest = OpsTest;
INSTANTIATE_TEST_SUITE_P(BackEnds, RopeTest, all_types_and_back_ends(), case_name);

Tensor table_of(Tensors& tensors, Ops& ops, Stream& stream, const Rotary& rotary, int64_t positions) {
  const Tensor table = tensors.poisoned(DType::f32, {positions, rotary.width});
  ops.run(op::RotaryTable{.rotary = rotary, .table = table}, stream);
  return table;
}

TEST_P(RopeTest, TheTableHasCosinesAndSinesOfEachAngle) {
  for (const Rotary& rotary :
       {Rotary{.width = 2}, Rotary{.width = 14, .base = 500}, Rotary{.width = 128, .base = 5e5}}) {
    const int64_t positions = 300, half = rotary.width / 2;
    const Tensor table = table_of(tensors, *ops, *stream, rotary, positions);
    for (int64_t p = 0; p < positions; ++p)
      for (int64_t i = 0; i < half; ++i) {
        const double angle =
            static_cast<double>(p) * std::pow(rotary.base, -static_cast<double>(i) / static_cast<double>(half));
        ASSERT_NEAR(get(table, p * 2 * half + i), std::cos(angle), 6e-8) << p << ", " << i;
        ASSERT_NEAR(get(table, p * 2 * half + half + i), std::sin(angle), 6e-8) << p << ", " << i;
      }
  }
}

// Meta's formula, written in terms of wavelengths (llama-models, apply_scaling).
TEST(Rope, Llama31StretchesLongWavelengths) {
  const Rotary plain{.width = 128, .base = 5e5};
  Rotary scaled = plain;
  scaled.factor = 8;
  int kept = 0, stretched = 0, between = 0;
  for (int64_t i = 0; i < 64; ++i) {
    const double f = rotary_frequency(plain, i), found = rotary_frequency(scaled, i);
    const double wavelength = 2 * std::numbers::pi / f;
    double expected = f;
    if (wavelength < 8192.0 / 4) {
      ++kept;
    } else if (wavelength > 8192.0 / 1) {
      expected = f / 8;
      ++stretched;
    } else {
      const double smooth = (8192.0 / wavelength - 1) / (4 - 1);
      expected = (1 - smooth) * f / 8 + smooth * f;
      ++between;
    }
    EXPECT_NEAR(found / expected, 1, 1e-14) << i;
  }
  EXPECT_EQ(kept, 29);
  EXPECT_EQ(between, 6);
  EXPECT_EQ(stretched, 29);
}

// The same formula with other factors than Meta's models have.
TEST(Rope, ScalingGoesByBothOfItsFactors) {
  const Rotary plain{.width = 128, .base = 5e5};
  Rotary scaled = plain;
  scaled.factor = 8, scaled.low = 2, scaled.high = 6;
  int between = 0;
  for (int64_t i = 0; i < 64; ++i) {
    const double f = rotary_frequency(plain, i), waves = 8192.0 * f / (2 * std::numbers::pi);
    const double smooth = waves < 2 ? 0 : waves > 6 ? 1 : (waves - 2) / (6 - 2);
    between += waves >= 2 && waves <= 6;
    EXPECT_NEAR(rotary_frequency(scaled, i) / ((1 - smooth) * f / 8 + smooth * f), 1, 1e-14) << i;
  }
  EXPECT_GT(between, 3);
}

struct RopeCase {
  int64_t s, b, heads, kv_heads, d, width;
};
constexpr RopeCase kRopeCases[] = {{1, 1, 1, 1, 2, 2},   {5, 2, 4, 2, 8, 8},   {3, 3, 6, 1, 10, 6},
                                   {4, 1, 3, 3, 64, 64}, {7, 2, 8, 4, 80, 40}, {2, 2, 2, 1, 128, 32}};

// qkv with its queries and keys rotated, inversely if sign is -1. position: maps rows to positions.
Values turned(const Values& qkv, const RopeCase& c, const Rotary& rotary,
              const std::function<int64_t(int64_t)>& position, double sign) {
  Values out = qkv;
  const int64_t members = c.heads / c.kv_heads, half = c.width / 2, columns = c.kv_heads * (members + 2) * c.d;
  for (int64_t row = 0; row < c.s * c.b; ++row)
    for (int64_t group = 0; group < c.kv_heads; ++group)
      for (int64_t head = 0; head < members + 1; ++head)  // the last head is the key
        for (int64_t i = 0; i < half; ++i) {
          const double angle = sign * static_cast<double>(position(row)) * rotary_frequency(rotary, i);
          const auto at = static_cast<size_t>(row * columns + (group * (members + 2) + head) * c.d + i);
          const double x = qkv[at], y = qkv[at + static_cast<size_t>(half)];
          out[at] = x * std::cos(angle) - y * std::sin(angle);
          out[at + static_cast<size_t>(half)] = y * std::cos(angle) + x * std::sin(angle);
        }
  return out;
}

TEST_P(RopeTest, TurnsQueriesAndKeysAndNothingElse) {
  for (const RopeCase& c : kRopeCases) {
    const Rotary rotary{.width = c.width, .base = 100};
    const Tensor table = table_of(tensors, *ops, *stream, rotary, 2 * c.s);
    for (const int64_t first : {int64_t{0}, c.s})
      for (const bool inverse : {false, true}) {
        SCOPED_TRACE("d " + std::to_string(c.d) + (inverse ? " inverse" : "") + " from " + std::to_string(first));
        const Tensor qkv = tensors.uniform(dtype, {c.s, c.b, (c.heads + 2 * c.kv_heads) * c.d});
        const Tensor by_ids = tensors.copy(qkv);
        const auto position = [&](int64_t row) { return first + row / c.b; };
        const auto id = [&](int64_t row) { return (row * 5 + first) % (2 * c.s); };
        const Values expected = turned(values(qkv), c, rotary, position, inverse ? -1 : 1),
                     expected_by_ids = turned(values(qkv), c, rotary, id, inverse ? -1 : 1);
        const QkvViews views = qkv_views(qkv, c.heads, c.kv_heads), others = qkv_views(by_ids, c.heads, c.kv_heads);

        ops->run(op::Rope{.q = views.q, .k = views.k, .table = table.slice(first, c.s), .inverse = inverse}, *stream);
        ops->run(op::Rope{.q = others.q,
                          .k = others.k,
                          .table = table,
                          .inverse = inverse,
                          .ids = tensors.make(DType::i32, {c.s, c.b}, id)},
                 *stream);

        EXPECT_TRUE(near(qkv, expected, summed(dtype, expected, 2)));
        EXPECT_TRUE(near(by_ids, expected_by_ids, summed(dtype, expected_by_ids, 2)));
      }
  }
}

// Rotates the last positions of a growing text in place, after earlier positions were rotated.
TEST_P(RopeTest, OfTheLastPositionsLeavesTheOthers) {
  const RopeCase c{6, 2, 4, 2, 16, 16};
  const Rotary rotary{.width = c.width};
  const Tensor table = table_of(tensors, *ops, *stream, rotary, c.s);
  const Tensor whole = tensors.uniform(dtype, {c.s, c.b, (c.heads + 2 * c.kv_heads) * c.d}),
               parts = tensors.copy(whole);
  const auto run = [&](const Tensor& qkv, int64_t count) {
    const QkvViews views = qkv_views(qkv, c.heads, c.kv_heads);
    ops->run(op::Rope{.q = last_positions(views.q, count),
                      .k = last_positions(views.k, count),
                      .table = table.slice(qkv.shape[0] - count, count)},
             *stream);
  };

  run(whole, c.s);
  run(parts.slice(0, 4), 4);
  run(parts.slice(0, 5), 1);
  run(parts, 1);

  EXPECT_TRUE(same_bits(parts, whole));
}

TEST_P(RopeTest, ViewsMayBeTensorsOfTheirOwn) {
  const int64_t s = 4, b = 2, d = 8;
  const Tensor table = table_of(tensors, *ops, *stream, {.width = d}, s);
  const Tensor packed = tensors.uniform(dtype, {s, b, 4 * d});  // two queries, a key and a value
  const QkvViews views = qkv_views(packed, 2, 1);
  const Tensor q = tensors.poisoned(dtype, {s, b, 2 * d}), k = tensors.poisoned(dtype, {s, b, d});
  for (int64_t row = 0; row < s * b; ++row)
    for (int64_t i = 0; i < 3 * d; ++i)
      set(i < 2 * d ? q : k, i < 2 * d ? row * 2 * d + i : row * d + i - 2 * d, get(packed, row * 4 * d + i));

  ops->run(op::Rope{.q = views.q, .k = views.k, .table = table}, *stream);
  ops->run(op::Rope{.q = heads_view(q, 2, 1), .k = heads_view(k, 1, 1), .table = table}, *stream);

  for (int64_t row = 0; row < s * b; ++row)
    for (int64_t i = 0; i < 3 * d; ++i)
      EXPECT_EQ(i < 2 * d ? get(q, row * 2 * d + i) : get(k, row * d + i - 2 * d), get(packed, row * 4 * d + i));
}

// The backward pass rotates back: it is the transpose of the forward pass, and therefore its derivative.
TEST(RopeReference, TurningBackIsTheDerivative) {
  const RopeCase c{3, 1, 2, 1, 6, 4};
  const Rotary rotary{.width = c.width, .base = 10};
  std::mt19937_64 random(5);
  std::uniform_real_distribution<double> draw(-1, 1);
  Values x(3 * 4 * 6), dy(3 * 4 * 6);
  for (Values* all : {&x, &dy})
    for (double& value : *all) value = draw(random);
  const auto position = [&](int64_t row) { return 2 + row / c.b; };
  const Values gradient = turned(dy, c, rotary, position, -1);
  const auto of_x = [&](const Values& at) { return dot(dy, turned(at, c, rotary, position, 1)); };
  for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(gradient[i], numeric_gradient(of_x, x, i), 1e-8);
}

TEST_P(RopeTest, WrongArgumentsAreNamed) {
  const Tensor qkv = tensors.uniform(dtype, {4, 2, 4 * 8}), table = tensors.uniform(DType::f32, {4, 8});
  const QkvViews views = qkv_views(qkv, 2, 1);
  const auto run = [&](const HeadsView& q, const HeadsView& k, const Tensor& angles) {
    return [=, this] { ops->run(op::Rope{.q = q, .k = k, .table = angles}, *stream); };
  };
  EXPECT_TRUE(throws_naming(run(views.q, views.q, table), {"rope", " k ", "in 1 groups"}));
  EXPECT_TRUE(throws_naming(run(views.q, views.k, tensors.uniform(DType::f32, {3, 8})),
                            {"rope", " table ", "[3, 8]", "[4, 8]"}));
  EXPECT_TRUE(throws_naming(run(views.q, views.k, tensors.uniform(DType::f32, {4, 7})), {"rope", " table ", "even"}));
  EXPECT_TRUE(
      throws_naming(run(views.q, views.k, tensors.uniform(DType::f32, {4, 10})), {"rope", " table ", "head's 8"}));
  EXPECT_TRUE(throws_naming([&] { ops->run(op::RotaryTable{.rotary = {.width = 7}, .table = table}, *stream); },
                            {"rotary_table", "7 columns"}));
  EXPECT_TRUE(throws_naming([&] { ops->run(op::RotaryTable{.rotary = {.width = 6}, .table = table}, *stream); },
                            {"rotary_table", " table ", "[4, 8]", "[4, 6]"}));
}

}  // namespace
}  // namespace trivet::test
