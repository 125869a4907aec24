// Attention against its definition in double arithmetic, and that definition's gradient against finite differences.
#include <cmath>
#include <cstring>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <limits>

#include "tests/support/attention_fixture.h"

namespace trivet::test {
namespace {

using Reference = AttentionReference;

INSTANTIATE_TEST_SUITE_P(BackEnds, AttentionTest, testing::Values(By::cpu, By::cuda, By::cuda_older),
                         testing::PrintToStringParamName());

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

// Wider than the tensor cores' kernels take, up to the widest (kPlainAttentionColumns).
TEST_P(AttentionTest, WideHeadsMatchTheDefinition) {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const int64_t d : {136, 160, 256}) expect_reference({20, 1, 2, d, dtype});
}

TEST_P(AttentionTest, MatchesTheDefinitionWithDropout) {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const auto& [s, b, heads, d] :
         {std::array<int64_t, 4>{5, 2, 2, 16}, {67, 2, 3, 32}, {150, 1, 2, 64}, {129, 1, 1, 128}})
      expect_reference({s, b, heads, d, dtype, kDropout});
}

// Positions as on a rank with two pieces of a sequence: its queries' and its keys', in ascending order.
TEST_P(AttentionTest, DropoutFollowsPositionsThatJump) {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const auto& [s, d, map] : {std::tuple<int64_t, int64_t, PositionMap>{40, 16, {16, 32, 64}},
                                    {129, 128, {16, 32, 64}},
                                    {150, 64, {0, 96, 32}}}) {
      Dropout dropout = kDropout;
      dropout.positions = dropout.keys = map;
      expect_reference({s, 1, 1, d, dtype, dropout});
    }
}

TEST_P(AttentionTest, QueryHeadsThatShareKeysAndValuesMatchTheDefinition) {
  // An emulated GPU is slow: it runs every ninth case, which still covers all ten combinations of each size.
  const bool slow = GetParam() != By::cpu && gpu_is_emulated();
  size_t turn = 0;
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const auto& [s, b, heads, kv_heads, d] : {std::array<int64_t, 5>{37, 2, 4, 4, 16},
                                                   {37, 2, 4, 2, 16},
                                                   {70, 1, 6, 3, 64},
                                                   {140, 1, 4, 1, 64},
                                                   {67, 2, 4, 2, 80},
                                                   {130, 1, 3, 1, 96},
                                                   {33, 2, 8, 2, 128},
                                                   {129, 1, 2, 1, 128}})
      for (const Lie lie : kLies)
        for (const Dropout& dropout : {Dropout{}, kDropout}) {
          if (slow && turn++ % 9 != 0) continue;
          expect_reference({s, b, heads, d, dtype, dropout, 2, kv_heads}, 1.0f, lie);
        }
}

TEST_P(AttentionTest, HowTheHeadsLieChangesNoBit) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const AttentionCase z{70, 2, 4, 64, dtype, kDropout, 2, 2};
    if (!takes(z)) continue;
    const Vector qkv = drawn_values(z, 1);
    const Tensor dout = drawn(z.dtype, {z.s, z.b, z.heads * z.d}, 1);
    std::vector<Tensors> found;
    for (const Lie lie : kDense) {
      found.push_back(run(z, qkv, dout, lie));
      EXPECT_EQ(bytes(found.back().out), bytes(found[0].out)) << static_cast<int>(lie);
      EXPECT_EQ(bytes(found.back().lse), bytes(found[0].lse)) << static_cast<int>(lie);
      EXPECT_EQ(values(z, found.back().dqkv), values(z, found[0].dqkv)) << static_cast<int>(lie);
    }
  }
}

TEST_P(AttentionTest, GroupsOnRanksOfTheirOwnHaveTheSameBits) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    // given two groups of three query heads each, out of a model's seven
    const AttentionCase all{70, 2, 6, 64, dtype, kDropout, 2, 2};
    if (!takes(all)) continue;
    const Vector qkv = drawn_values(all, 1);
    const Tensor dout = drawn(dtype, {all.s, all.b, all.heads * all.d}, 1);
    const Tensors whole = run(all, qkv, dout);
    for (int64_t group = 0; group < 2; ++group) {
      // when one group is computed alone
      AttentionCase z{70, 2, 3, 64, dtype, kDropout, 2, 1};
      z.dropout.first_head += group * z.heads;
      const auto shard = [&](const Tensor& x) {  // half of [s, b, two shards]
        const Tensor part = arena.allocate(dtype, {z.s, z.b, x.shape[2] / 2});
        const int64_t row = part.shape[2] * size_of(dtype);
        for (int64_t i = 0; i < z.s * z.b; ++i)
          std::memcpy(static_cast<char*>(part.data) + i * row, static_cast<char*>(x.data) + (2 * i + group) * row,
                      static_cast<size_t>(row));
        return part;
      };
      const Tensors alone =
          run(z, qkv_views(shard(whole.qkv.q.memory), z.heads, 1), shard(dout), poisoned_views(z, Lie::in_groups));
      // then nothing differs
      EXPECT_EQ(bytes(alone.out), bytes(shard(whole.out)));
      EXPECT_EQ(bytes(alone.dqkv.q.memory), bytes(shard(whole.dqkv.q.memory)));
    }
  }
}

TEST_P(AttentionTest, TheLastQueriesAloneHaveTheResultsThatTheyHaveAmongAll) {
  const bool slow = GetParam() != By::cpu && gpu_is_emulated();
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const auto& [s, kv_heads, d] : {std::array<int64_t, 3>{1, 4, 64}, {33, 2, 16}, {70, 4, 64}, {290, 1, 24}}) {
      // given attention of all queries
      const AttentionCase z{s, 2, 4, d, dtype, {}, 2, kv_heads};
      if (!takes(z) || (slow && s > 100)) continue;
      const QkvViews qkv = placed(z, Lie::in_groups, drawn_values(z, 1));
      const auto forward = [&](int64_t count) {  // for the last queries
        QkvViews views = qkv;
        views.q = last_positions(qkv.q, count);
        const Tensor out = poisoned(z.dtype, {count, z.b, z.heads * z.d});
        const Tensor lse = poisoned(DType::f32, {z.b, z.heads, count});
        ops_for(z)->run(op::AttentionForward{.qkv = views, .out = out, .lse = lse}, *stream);
        stream->synchronize();
        return std::pair(out, lse);
      };
      const auto [all_out, all_lse] = forward(s);
      for (const int64_t count : {1, 2, 32, 35, 64, 289}) {
        if (count > s) continue;
        // when the last queries are computed alone, like those of a text's new tokens
        const auto [out, lse] = forward(count);
        // then they have the same bits, except that a GPU uses other kernels for a few queries
        const bool exact = GetParam() == By::cpu || !for_tensor_cores(z) || count >= 16 || count == s;
        const Tensor expected = all_out.slice(s - count, count);
        expect_near("out", z, values(out), values(expected), exact ? 0 : 4 * tolerance(z.dtype, z.d));
        for (int64_t row = 0; row < z.b * z.heads; ++row)
          for (int64_t i = 0; i < count; ++i)
            ASSERT_NEAR(lse.as<float>()[row * count + i], all_lse.as<float>()[row * z.s + z.s - count + i],
                        exact ? 0 : tolerance(DType::f32, z.d, 10));
      }
    }
}

// A sequence in two parts, as on ranks that share one. The later queries attend to all keys in one op, or first to the
// earlier keys, all visible to them, and then to their own; each in ops on half of the heads; and all results are parts
// of the same tensors.
TEST_P(AttentionTest, PartsOfQueriesKeysAndHeadsMakeUpTheWhole) {
  const bool slow = GetParam() != By::cpu && gpu_is_emulated();
  size_t turn = 0;
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const auto& [s, cut, kv_heads, d] : {std::array<int64_t, 4>{2, 1, 4, 16},
                                              {33, 7, 2, 16},
                                              {70, 32, 2, 64},
                                              {150, 64, 2, 24},
                                              {97, 80, 2, 128},
                                              {300, 161, 2, 64},
                                              {290, 176, 2, 80}})
      for (const Dropout& dropout : {Dropout{}, kDropout}) {
        AttentionCase z{s, s > 90 ? 1 : 2, s > 90 ? 2 : 4, d, dtype, dropout, 2, kv_heads};
        // Each size with and without documents: with documents, some of the later queries see no earlier key.
        if (turn++ % 4 % 3 == 0) z.starts = document_starts(s, z.b, {5, 40, 1, 23, 90});
        const bool drops = dropout.probability > 0, may_drop = cut % 16 == 0;
        if (!takes(z) || (drops && !may_drop)) continue;
        if (slow && s > 40 && ((!for_tensor_cores(z) && s > 70) || drops != may_drop)) continue;
        const auto ops = ops_for(z);
        const Vector drawn_qkv = drawn_values(z, 1);
        const Tensor dout = drawn(dtype, {s, z.b, z.heads * d}, 1);
        const Tensors whole = run(z, drawn_qkv, dout);
        for (const bool gathered : {true, false}) {
          SCOPED_TRACE(fmt::format("s {} cut {} d {} {}{}", s, cut, d, name_of(dtype), gathered ? " gathered" : ""));
          const QkvViews qkv = placed(z, Lie::in_groups, drawn_qkv);
          const Tensor out = poisoned(dtype, dout.shape), lse = poisoned(DType::f32, {z.b, z.heads, s});
          struct Visit {
            int64_t query, queries, key, keys;
            bool causal = true;
          };
          const Visit first{0, cut, 0, cut}, later{cut, s - cut, 0, s}, own{cut, s - cut, cut, s - cut};
          const Visit earlier{cut, s - cut, 0, cut, false};
          const auto visits = gathered ? std::vector{first, later} : std::vector{first, own, earlier};
          const auto views_of = [&](const QkvViews& all, const Visit& v, int64_t group, int64_t groups) {
            const auto of = [&](const HeadsView& view, int64_t first, int64_t count) {
              return groups_of(positions_of(view, first, count), group, groups);
            };
            return QkvViews{of(all.q, v.query, v.queries), of(all.k, v.key, v.keys), of(all.v, v.key, v.keys)};
          };
          const auto dropout_of = [&](const Visit& v, int64_t group) {
            Dropout part = z.dropout;
            part.positions = {v.query}, part.keys = {v.key}, part.first_head += group * z.members();
            return part;
          };
          const Tensor starts = starts_of(z);
          const auto documents_of = [&](const Visit& v) {
            return starts ? DocumentStarts{starts.slice(v.query, v.queries), {v.key}} : DocumentStarts{};
          };

          // when
          for (const Visit& v : {visits[0], visits[1]})
            for (int64_t group = 0; group < kv_heads; group += kv_heads / 2)
              ops->run(op::AttentionForward{.qkv = views_of(qkv, v, group, kv_heads / 2),
                                            .out = out,
                                            .lse = lse,
                                            .dropout = dropout_of(v, group),
                                            .part = {v.query, group * z.members(), s, z.heads},
                                            .documents = documents_of(v)},
                       *stream);
          if (!gathered) {  // out accumulates in fp32
            const Tensor sums = poisoned(DType::f32, dout.shape);
            ops->run(op::Convert{out, sums}, *stream);
            const Tensor more = poisoned(dtype, {s - cut, z.b, z.heads * d});
            const Tensor more_lse = poisoned(DType::f32, {z.b, z.heads, s - cut});
            ops->run(op::AttentionForward{.qkv = views_of(qkv, earlier, 0, kv_heads),
                                          .out = more,
                                          .lse = more_lse,
                                          .dropout = dropout_of(earlier, 0),
                                          .causal = false,
                                          .documents = documents_of(earlier)},
                     *stream);
            ops->run(op::AttentionMerge{more, more_lse, sums, lse, cut}, *stream);
            ops->run(op::Convert{sums, out}, *stream);
          }
          // and the gradients, given the outputs over all keys
          const QkvViews total = qkv_views(poisoned(DType::f32, {s, z.b, z.qkv_width()}), z.heads, kv_heads);
          stream->synchronize();
          std::memset(total.q.memory.data, 0, static_cast<size_t>(total.q.memory.bytes()));
          for (const Visit& v : visits)
            for (int64_t group = 0; group < kv_heads; group += kv_heads / 2) {
              const QkvViews terms = views_of(poisoned_views(z, Lie::apart), v, group, kv_heads / 2);
              ops->run(op::AttentionBackward{.dout = dout,
                                             .qkv = views_of(qkv, v, group, kv_heads / 2),
                                             .out = out,
                                             .lse = lse,
                                             .dqkv = terms,
                                             .dropout = dropout_of(v, group),
                                             .causal = v.causal,
                                             .part = {v.query, group * z.members(), s, z.heads},
                                             .documents = documents_of(v)},
                       *stream);
              const QkvViews to = views_of(total, v, group, kv_heads / 2);
              ops->run(op::CopyHeads{terms.q, to.q, true}, *stream);
              ops->run(op::CopyHeads{terms.k, to.k, true}, *stream);
              ops->run(op::CopyHeads{terms.v, to.v, true}, *stream);
            }
          stream->synchronize();

          // then rows of queries that met their keys in one op have the same bits, from the same kernels. Compared by
          // position: the more keys a query sees, or the fewer queries see a key, the smaller the values are.
          const auto expect_rows = [&](const char* what, const Vector& found, const Vector& wanted, double tolerance) {
            const auto row = static_cast<int64_t>(found.size()) / s;
            for (int64_t i = 0; i < s; ++i) {
              const auto of = [&](const Vector& x) { return Vector(x.begin() + i * row, x.begin() + (i + 1) * row); };
              expect_near(what, z, of(found), of(wanted), tolerance * largest(of(wanted)));
            }
          };
          const Vector found = values(z, total), wanted = values(z, whole.dqkv);
          expect_near("lse", z, values(lse), values(whole.lse), gathered ? 0 : tolerance(DType::f32, d, 10));
          expect_rows("out", values(out), values(whole.out), gathered ? 0 : tolerance(dtype, 32));
          expect_rows("dqkv", found, wanted, tolerance(dtype, 32));
          if (gathered && GetParam() != By::cpu)
            for (int64_t i = 0; i < s * z.b * z.heads * d; ++i) {
              const auto at = Reference{z}.at(i / d / z.heads / z.b, i / d / z.heads % z.b, i / d % z.heads, 0, i % d);
              ASSERT_EQ(found[at], wanted[at]) << "dq at " << i;
            }
        }
      }
}

TEST_P(AttentionTest, DropoutNeedsPositionsInStepsOfSixteen) {
  const AttentionCase z{8, 1, 2, 16};
  const QkvViews qkv = placed(z, Lie::in_groups, drawn_values(z, 1));
  const Tensor out = poisoned(z.dtype, {8, 1, 32}), lse = poisoned(DType::f32, {1, 2, 8});
  for (const PositionMap map : {PositionMap{8}, PositionMap{0, 4, 16}, PositionMap{0, 16, 24}}) {
    Dropout dropout = kDropout;
    dropout.keys = map;
    EXPECT_THROW(ops_for(z)->run(op::AttentionForward{.qkv = qkv, .out = out, .lse = lse, .dropout = dropout}, *stream),
                 Error);
  }
}

// Keys that no query sees have no effect, whatever `more` contains.
TEST_P(AttentionTest, MergingNothingChangesNothing) {
  const Tensor out = drawn(DType::f32, {3, 1, 8}, 1), lse = drawn(DType::f32, {1, 2, 3}, 1);
  const Vector before = values(out), sums = values(lse);
  const Tensor more = poisoned(DType::f32, {2, 1, 8}), more_lse = arena.allocate(DType::f32, {1, 2, 2});
  std::fill_n(more_lse.as<float>(), 4, -std::numeric_limits<float>::infinity());
  ops_for({})->run(op::AttentionMerge{more, more_lse, out, lse, 1}, *stream);
  stream->synchronize();
  EXPECT_EQ(values(out), before);
  EXPECT_EQ(values(lse), sums);
  // and the first keys that a query sees determine its whole result
  std::fill_n(more_lse.as<float>(), 4, 0.5f);
  std::fill_n(lse.as<float>(), 6, -std::numeric_limits<float>::infinity());
  std::fill_n(more.as<float>(), 16, 2.0f);
  std::fill_n(out.as<float>(), 24, std::numeric_limits<float>::quiet_NaN());
  ops_for({})->run(op::AttentionMerge{more, more_lse, out, lse, 1}, *stream);
  stream->synchronize();
  for (int64_t i = 8; i < 24; ++i) EXPECT_EQ(out.as<float>()[i], 2.0f) << i;
  EXPECT_EQ(values(lse), (Vector{-INFINITY, 0.5, 0.5, -INFINITY, 0.5, 0.5}));
}

// e^200 overflows fp32, whichever of the two parts has it.
TEST_P(AttentionTest, MergingWhatOutweighsTheOtherTakesIt) {
  for (const bool more_outweighs : {false, true}) {
    const Tensor out = arena.allocate(DType::f32, {2, 1, 8}), lse = arena.allocate(DType::f32, {1, 2, 2});
    const Tensor more = arena.allocate(DType::f32, {2, 1, 8}), more_lse = arena.allocate(DType::f32, {1, 2, 2});
    std::fill_n(out.as<float>(), 16, 1.0f), std::fill_n(lse.as<float>(), 4, more_outweighs ? 1.0f : 201.0f);
    std::fill_n(more.as<float>(), 16, 2.0f), std::fill_n(more_lse.as<float>(), 4, more_outweighs ? 201.0f : 1.0f);
    ops_for({})->run(op::AttentionMerge{more, more_lse, out, lse}, *stream);
    stream->synchronize();
    EXPECT_EQ(values(out), Vector(16, more_outweighs ? 2.0f : 1.0f));
    EXPECT_EQ(values(lse), Vector(4, 201.0f));
  }
}

// Rounding to the output type has no bias: a tolerance would let truncation pass, which makes every output, and every
// gradient, a little too small. The errors within a head's row are not independent; those of different rows are.
TEST_P(AttentionTest, RoundsWithoutBias) {
  for (const int64_t d : {64, 80, 96, 128}) {
    const AttentionCase z{257, 1, 4, d, DType::bf16};
    const Tensors x = run(z);
    const Reference reference{z};
    Vector out, lse;
    const Vector qkv = values(z, x.qkv);
    reference.forward(qkv, out, lse);
    const Vector dqkv = reference.backward(qkv, values(x.dout));
    const auto expect_unbiased = [&](const char* what, const Vector& found, const Vector& wanted, int64_t parts) {
      for (int64_t part = 0; part < parts; ++part) {
        double sum = 0, squares = 0;
        for (size_t row = static_cast<size_t>(part); row < wanted.size() / static_cast<size_t>(d);
             row += static_cast<size_t>(parts)) {
          double error = 0;
          for (size_t i = row * static_cast<size_t>(d); i < (row + 1) * static_cast<size_t>(d); ++i)
            error += std::copysign(1.0, wanted[i]) * (found[i] - wanted[i]);
          sum += error, squares += error * error;
        }
        EXPECT_LT(std::abs(sum), 4.5 * std::sqrt(squares)) << what << " of " << d << " columns, part " << part;
      }
    };
    expect_unbiased("out", values(x.out), out, 1);
    expect_unbiased("dqkv", values(z, x.dqkv), dqkv, 3);
  }
}

TEST_P(AttentionTest, LongSequencesMatchTheDefinition) {
  const int64_t s = GetParam() != By::cpu && gpu_is_emulated() ? 300 : 600;
  expect_reference({s, 1, 1, 64, DType::f32, kDropout});
  // More tiles than pipeline stages, and warpgroups without queries.
  expect_reference({s + 90, 1, 1, 64, DType::bf16});
  expect_reference({s + 90, 1, 1, 128, DType::bf16});
}

TEST_P(AttentionTest, MoreTilesThanMultiprocessorsMatchTheDefinition) {
  if (GetParam() != By::cuda) GTEST_SKIP() << "has none, or does not count them";
  // An emulated GPU has four multiprocessors, an H200 132: with five tasks per block all rings of stages wrap.
  const int64_t b = gpu_is_emulated() ? 1 : 33;
  expect_reference({70, b, 20, 64, DType::bf16});
  for (const int64_t d : {96, 128}) expect_reference({20, b, 20, d, DType::bf16});
  expect_reference({200, b, 3, 64, DType::bf16});
  expect_reference({140, b, 3, 80, DType::bf16});
}

TEST_P(AttentionTest, LargeScoresDoNotOverflow) {
  // Scores of several hundred: one key takes all the weight, and exp of the rest is zero.
  expect_reference({90, 1, 1, 64, DType::f32}, 12.0f);
  expect_reference({90, 1, 1, 64, DType::bf16}, 12.0f);
}

TEST_P(AttentionTest, GradientOfTheDefinitionIsItsFiniteDifference) {
  if (GetParam() != By::cpu) GTEST_SKIP() << "nobody's";
  // given the loss sum(out * dout) in double
  AttentionCase z{9, 2, 2, 4};
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

  // when every input is moved a little each way, then the loss changes by the gradient
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
  AttentionCase z{16, 2, 3, 16};
  z.dropout = kDropout;
  int64_t late = int64_t{1} << 33;  // a sample index beyond 32 bits
  z.dropout.first_sample.data = &late;
  Vector qkv(static_cast<size_t>(z.s * z.b * z.qkv_width()));
  const Reference index{z};
  for (int64_t j = 0; j < z.s; ++j)
    for (int64_t batch = 0; batch < z.b; ++batch)
      for (int64_t head = 0; head < z.heads; ++head) qkv[index.at(j, batch, head, 2, j)] = 1;

  const Tensors x = run(z, qkv, drawn(DType::f32, {z.s, z.b, z.heads * z.d}, 1));

  int64_t dropped = 0;
  for (int64_t batch = 0; batch < z.b; ++batch)
    for (int64_t head = 0; head < z.heads; ++head)
      for (int64_t i = 0; i < z.s; ++i)
        for (int64_t j = 0; j < z.s; ++j) {
          const double p = j > i ? 0 : keep_factor(z.dropout, batch, head, i, j) / static_cast<double>(i + 1);
          const float found = x.out.as<float>()[index.out_at(i, batch, head, j)];
          EXPECT_NEAR(found, p, tolerance(DType::f32, 16, p));
          dropped += j <= i && found == 0;
        }
  EXPECT_GT(dropped, 0);
}

// The same beyond 32 bits in the kernels of each type: those of the tensor cores draw their masks on their own.
TEST_P(AttentionTest, DropoutOfLateSamplesMatchesTheDefinition) {
  int64_t late = int64_t{1} << 33;
  Dropout dropout = kDropout;
  dropout.first_sample.data = &late;
  for (const DType dtype : {DType::f32, DType::bf16}) expect_reference({40, 2, 2, 64, dtype, dropout});
}

TEST_P(AttentionTest, TheFutureHasNoInfluence) {
  // given a sequence, and one that differs from position 40 on
  const AttentionCase z{70, 1, 2, 32};
  Vector qkv = drawn_values(z, 1);
  const Tensor dout = drawn(z.dtype, {z.s, z.b, z.heads * z.d}, 1);
  const Tensors first = run(z, qkv, dout);
  for (size_t i = 40 * static_cast<size_t>(z.qkv_width()); i < qkv.size(); ++i) qkv[i] += 1;
  const Tensors second = run(z, qkv, dout);
  EXPECT_EQ(std::memcmp(first.out.data, second.out.data, static_cast<size_t>(40 * z.heads * z.d) * 4), 0);
  EXPECT_NE(bytes(first.out), bytes(second.out));
}

TEST_P(AttentionTest, ASecondRunAndAnotherNumberOfThreadsGiveTheSameBits) {
  const Dropout dropout = kDropout;
  for (AttentionCase z :
       {AttentionCase{150, 2, 3, 48, DType::f32, dropout}, AttentionCase{100, 2, 1, 48, DType::bf16, dropout},
        AttentionCase{200, 1, 1, 64, DType::bf16, dropout}, AttentionCase{100, 2, 6, 64, DType::bf16, dropout, 2, 3},
        AttentionCase{100, 1, 4, 48, DType::f32, dropout, 2, 1}}) {
    if (!takes(z)) continue;
    const Tensors first = run(z);
    for (const int threads : GetParam() == By::cpu ? std::vector{2, 1, 3} : std::vector{1}) {
      z.threads = threads;
      const Tensors again = run(z, first.qkv, first.dout, poisoned_views(z, Lie::in_groups));
      EXPECT_EQ(bytes(first.out), bytes(again.out)) << threads;
      EXPECT_EQ(bytes(first.lse), bytes(again.lse)) << threads;
      EXPECT_EQ(bytes(first.dqkv.q.memory), bytes(again.dqkv.q.memory)) << threads;
    }
  }
}

TEST_P(AttentionTest, WrongArgumentsNameTheArgument) {
  const auto ops = create_test_ops(GetParam() == By::cuda ? kOnCuda : 1);
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
  const QkvViews x = qkv_views(qkv, 2, 2);
  const auto forward = [&](const op::AttentionForward& op) { return [&, op] { ops->run(op, *stream); }; };
  const auto backward = [&](const op::AttentionBackward& op) { return [&, op] { ops->run(op, *stream); }; };
  expect_error([&] { qkv_views(qkv, 5, 5); }, "attention: qkv is [4, 2, 48]");
  expect_error([&] { qkv_views(qkv, 3, 2); }, "attention: 3 query heads, expected a multiple of the 2 kv heads");
  expect_error([&] { heads_view(out, 5, 5); }, "attention: found [4, 2, 16], expected [s, b, 5 * d]");
  expect_error(forward({.qkv = x, .out = qkv, .lse = lse}), "attention_forward: out is [4, 2, 48]");
  expect_error(forward({.qkv = x, .out = out, .lse = out}), "attention_forward: lse is [4, 2, 16]");
  expect_error(backward({.dout = lse, .qkv = x, .out = out, .lse = lse, .dqkv = x}),
               "attention_backward: dout is [2, 2, 4]");
  const QkvViews shorter = qkv_views(drawn(DType::f32, {3, 2, 2 * 3 * 8}, 1), 2, 2);
  expect_error(backward({.dout = out, .qkv = x, .out = out, .lse = lse, .dqkv = shorter}),
               "attention_backward: dq is [3, 2, 2, 8] in 2 groups, expected [4, 2, 2, 8] in 2 groups");
  expect_error(forward({.qkv = {x.q, x.q, shorter.v}, .out = out, .lse = lse}),
               "attention_forward: v is [3, 2, 2, 8] in 2 groups, expected [4, 2, 2, 8] in 2 groups");
  expect_error(forward({.qkv = {heads_view(out, 2, 1), heads_view(out, 2, 1), x.v}, .out = out, .lse = lse}),
               "attention_forward: k is [4, 2, 2, 8] in 1 groups, expected [4, 2, 1, 8] in 1 groups");
  QkvViews other = x;
  other.k.memory = drawn(DType::bf16, {4, 2, 2 * 3 * 8}, 1);
  expect_error(forward({.qkv = other, .out = out, .lse = lse}), "attention_forward: k is [4, 2, 48] bf16");
  other = x;
  other.v.first += 1;
  expect_error(forward({.qkv = other, .out = out, .lse = lse}),
               "attention_forward: v is [4, 2, 48] fp32, expected at least the 385 elements that its strides reach");
  other.v.first = -1;
  expect_error(forward({.qkv = other, .out = out, .lse = lse}), "attention_forward: v has a negative size or stride");
}

}  // namespace
}  // namespace trivet::test
