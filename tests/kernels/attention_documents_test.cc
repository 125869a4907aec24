// Attention within documents (DocumentStarts in kernels/layer_ops.h): against the definition, and the properties of the
// mask: documents are independent, and keys that no query sees contribute nothing.
#include <fmt/format.h>

#include "tests/support/attention_fixture.h"

namespace trivet::test {
namespace {

using Reference = AttentionReference;

class AttentionDocuments : public AttentionTest {
 protected:
  bool slow() const { return GetParam() != By::cpu && gpu_is_emulated(); }
};

INSTANTIATE_TEST_SUITE_P(BackEnds, AttentionDocuments, testing::Values(By::cpu, By::cuda, By::cuda_older),
                         testing::PrintToStringParamName());

AttentionCase with_documents(AttentionCase z, const std::vector<int64_t>& lengths) {
  z.starts = document_starts(z.s, z.b, lengths);
  return z;
}

// Boundaries near the edges of every tile, of 32, 64, 128 and 192 rows; different ones in each batch entry.
TEST_P(AttentionDocuments, MatchTheDefinition) {
  const std::vector<int64_t> one{1}, odd{1, 5, 13}, narrow{31, 32, 33}, wide{63, 64, 65, 130}, long_ones{127, 193, 129};
  struct Sizes {
    int64_t s, b, heads, kv_heads, d;
    const std::vector<int64_t>& lengths;
    Lie lie = Lie::in_groups;
  };
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const auto& [s, b, heads, kv_heads, d, lengths, lie] :
         {Sizes{20, 2, 2, 2, 16, one}, Sizes{37, 3, 4, 2, 16, odd, Lie::with_gaps}, Sizes{70, 1, 2, 1, 64, one},
          Sizes{97, 2, 2, 1, 64, narrow}, Sizes{200, 1, 1, 1, 128, wide}, Sizes{66, 2, 2, 2, 80, odd, Lie::apart},
          Sizes{70, 1, 1, 1, 96, narrow}, Sizes{50, 2, 3, 1, 20, odd, Lie::unaligned},
          Sizes{340, 1, 1, 1, 64, long_ones}}) {
      AttentionCase z = with_documents({s, b, heads, d, dtype, {}, 2, kv_heads}, lengths);
      if (slow() && s > 70 && !for_tensor_cores(z)) continue;
      expect_reference(z, 1.0f, lie);
      if (s > (slow() ? 70 : 100)) continue;
      z.dropout = kDropout;
      expect_reference(z, 1.0f, lie);
    }
}

// Changing elements of one document changes no bit of another. NaN shows more: tiles that are wholly masked are not
// read, as 0 * NaN would be NaN.
TEST_P(AttentionDocuments, AChangeStaysInItsDocument) {
  struct Change {
    int64_t s, b, d, first, end;  // positions of a document of batch entry 0
    std::vector<int64_t> lengths;
    double by;
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const Change& change :
         {Change{150, 2, 64, 37, 101, {37, 64, 90}, 1}, Change{384, 1, 128, 128, 256, {128}, nan}}) {
      const bool to_nan = std::isnan(change.by);
      const AttentionCase z = with_documents({change.s, change.b, to_nan ? 1 : 2, dtype == DType::bf16 ? change.d : 16,
                                              dtype, to_nan ? Dropout{} : kDropout, 2, 1},
                                             change.lengths);
      // Kernels with one query per warp have no tiles.
      if (!takes(z) || (to_nan && GetParam() != By::cpu && !for_tensor_cores(z))) continue;
      // given
      Vector qkv = drawn_values(z, 1);
      const Tensor dout = drawn(dtype, {z.s, z.b, z.heads * z.d}, 1);
      const Tensors before = run(z, qkv, dout);
      const Vector dqkv = values(z, before.dqkv);
      // when
      const int64_t width = z.qkv_width(), columns = z.heads * z.d;
      for (int64_t i = change.first; i < change.end; ++i) {
        for (int64_t c = 0; c < width; ++c) qkv[static_cast<size_t>(i * z.b * width + c)] += change.by;
        for (int64_t c = i * z.b * columns, end = c + columns; c < end; ++c) {
          if (dtype == DType::f32) dout.as<float>()[c] += static_cast<float>(change.by);
          else dout.as<bf16>()[c] = bf16(static_cast<float>(value(dout, c) + change.by));
        }
      }
      const Tensors after = run(z, qkv, dout);
      // then
      const Vector changed = values(z, after.dqkv);
      const auto expect_same = [&](const char* what, const Vector& found, const Vector& wanted, auto position_of,
                                   auto entry_of) {
        bool any = false;
        for (int64_t i = 0; i < static_cast<int64_t>(found.size()); ++i) {
          const int64_t position = position_of(i);
          const auto at = static_cast<size_t>(i);
          if (entry_of(i) == 0 && position >= change.first && position < change.end) any |= found[at] != wanted[at];
          else ASSERT_EQ(found[at], wanted[at]) << what << " of position " << position << " " << name_of(dtype);
        }
        EXPECT_TRUE(any) << what;
      };
      const auto rows_of = [&](int64_t row) {
        return std::pair([=, &z](int64_t i) { return i / row / z.b; }, [=, &z](int64_t i) { return i / row % z.b; });
      };
      const auto [of_width, entry_of_width] = rows_of(width);
      const auto [of_columns, entry_of_columns] = rows_of(columns);
      expect_same("dqkv", changed, dqkv, of_width, entry_of_width);
      expect_same("out", values(after.out), values(before.out), of_columns, entry_of_columns);
      expect_same(
          "lse", values(after.lse), values(before.lse), [&](int64_t i) { return i % z.s; },
          [&](int64_t i) { return i / z.s / z.heads; });
    }
}

// A hop of a ring: all keys precede the queries, in two pieces of the sequence. Queries that see the same keys get the
// results of an op on these keys alone; queries that see no keys, and keys that no query sees, get zeros, whatever was
// in the kernels' working memory.
TEST_P(AttentionDocuments, WhatNobodySeesGivesNothing) {
  const PositionMap map{16, 40, 100};
  struct Run {
    int64_t queries, start, row;  // start and row of the first key that the queries see
  };
  for (const auto& [dtype, d, keys] : {std::tuple<DType, int64_t, int64_t>{DType::f32, 16, 64},
                                       {DType::bf16, 64, 130},
                                       {DType::bf16, 128, 200},
                                       {DType::f32, 24, 130}}) {
    if (slow() && (d == 24 || (GetParam() == By::cuda_older && d == 128))) continue;
    const int64_t end = map.at(keys - 1) + 1;
    // Per batch entry.
    const std::vector<Run> runs[2] = {
        {{30, 20, 4}, {40, 56, 40}, {3, 100, 40}, {20, 160, 44}, {70, end, keys}},
        {{1, 17, 1}, {60, 18, 2}, {37, end - 1, keys - 1}, {1, end + 5, keys}, {64, end + 6, keys}}};
    const AttentionCase z{163, 2, 2, d, dtype, {}, 2, 1};
    if (!takes(z)) continue;
    SCOPED_TRACE(fmt::format("{} d {} keys {}", name_of(dtype), d, keys));
    const auto view = [&](const Tensor& x, int64_t heads) { return heads_view(x, heads, 1); };
    const auto views = [&](auto make) {
      return QkvViews{view(make(Shape{z.s, 2, 2 * d}), 2), view(make(Shape{keys, 2, d}), 1),
                      view(make(Shape{keys, 2, d}), 1)};
    };
    const auto draw = [&](Shape shape) { return drawn(dtype, shape, 1); };
    const auto poison = [&](Shape shape) { return poisoned(dtype, shape); };
    const Tensor starts = arena.allocate(DType::i32, {z.s, 2}), dout = draw({z.s, 2, 2 * d});
    for (int64_t entry = 0; entry < 2; ++entry) {
      int64_t query = 0;
      for (const Run& each : runs[entry])
        for (int64_t i = 0; i < each.queries; ++i)
          starts.as<int32_t>()[2 * query++ + entry] = static_cast<int32_t>(each.start);
      ASSERT_EQ(query, z.s);
    }
    const auto with = ops_for(z), without = create_test_ops(1);  // on a CPU: its many ops are slow on an emulated GPU
    const auto both = [&](const QkvViews& qkv, const Tensor& out, const Tensor& lse, const Tensor& grad,
                          const QkvViews& dqkv, const DocumentStarts& documents) {
      Ops* const ops = (documents.starts ? with : without).get();
      ops->run(op::AttentionForward{.qkv = qkv, .out = out, .lse = lse, .causal = false, .documents = documents},
               *stream);
      ops->run(
          op::AttentionBackward{
              .dout = grad, .qkv = qkv, .out = out, .lse = lse, .dqkv = dqkv, .causal = false, .documents = documents},
          *stream);
      stream->synchronize();
    };
    // given working memory full of NaN
    const DocumentStarts documents{starts, map};
    both(views(poison), poison(dout.shape), poisoned(DType::f32, {2, 2, z.s}), poison(dout.shape), views(poison),
         documents);
    // when
    const QkvViews qkv = views(draw), dqkv = views(poison);
    const Tensor out = poison(dout.shape), lse = poisoned(DType::f32, {2, 2, z.s});
    both(qkv, out, lse, dout, dqkv, documents);
    // then
    Vector dk(static_cast<size_t>(dqkv.k.memory.numel())), dv = dk;  // expected values
    const auto expect_run = [&](int64_t entry, int64_t query, const Run& each) {
      const int64_t seen = keys - each.row, n = each.queries;
      const auto some = [&](HeadsView x, int64_t first, int64_t count) {
        x.first += entry * x.layout.entry, x.layout.b = 1;
        return positions_of(x, first, count);
      };
      const Tensor alone = poison({n, 1, 2 * d}), alone_lse = poisoned(DType::f32, {1, 2, n}), grad = draw(alone.shape);
      const auto row_of = [&](int64_t i) { return ((query + i) * 2 + entry) * 2 * d; };
      for (int64_t i = 0; i < n; ++i)
        std::memcpy(static_cast<char*>(grad.data) + i * 2 * d * size_of(dtype),
                    static_cast<char*>(dout.data) + row_of(i) * size_of(dtype),
                    static_cast<size_t>(2 * d * size_of(dtype)));
      const QkvViews terms{view(poison({n, 1, 2 * d}), 2), view(poison({std::max<int64_t>(seen, 1), 1, d}), 1),
                           view(poison({std::max<int64_t>(seen, 1), 1, d}), 1)};
      if (seen > 0)
        both({some(qkv.q, query, n), some(qkv.k, each.row, seen), some(qkv.v, each.row, seen)}, alone, alone_lse, grad,
             terms, {});
      const auto expect_rows = [&](const char* what, const Tensor& found, const Tensor& wanted) {
        const double most = seen > 0 ? largest(values(found)) : 0;
        for (int64_t i = 0; i < n; ++i)
          for (int64_t c = 0; c < 2 * d; ++c)
            ASSERT_NEAR(value(found, row_of(i) + c), seen > 0 ? value(wanted, i * 2 * d + c) : 0,
                        most * tolerance(dtype, 32))
                << what << " of query " << query + i << " of entry " << entry;
      };
      expect_rows("out", out, alone);
      expect_rows("dq", dqkv.q.memory, terms.q.memory);
      for (int64_t head = 0; head < 2; ++head)
        for (int64_t i = 0; i < n; ++i) {
          const double found = value(lse, (entry * 2 + head) * z.s + query + i);
          if (seen == 0) {
            ASSERT_EQ(found, -INFINITY);
          } else {
            ASSERT_NEAR(found, value(alone_lse, head * n + i), tolerance(DType::f32, d, 10));
          }
        }
      for (int64_t i = 0; i < seen * d; ++i) {
        const auto at = static_cast<size_t>(((each.row + i / d) * 2 + entry) * d + i % d);
        dk[at] += value(terms.k.memory, i), dv[at] += value(terms.v.memory, i);
      }
    };
    for (int64_t entry = 0; entry < 2; ++entry) {
      int64_t query = 0;
      for (const Run& each : runs[entry]) {
        expect_run(entry, query, each);
        query += each.queries;
      }
    }
    expect_near("dk", z, values(dqkv.k.memory), dk, tolerance(dtype, 32) * largest(dk));
    expect_near("dv", z, values(dqkv.v.memory), dv, tolerance(dtype, 32) * largest(dv));
    for (const HeadsView& of : {dqkv.k, dqkv.v})
      for (int64_t i = 0; i < 8 * d; ++i)  // four rows of entry 0, one of entry 1
        ASSERT_TRUE((i / d % 2 == 1 && i >= 2 * d) || value(of.memory, i) == 0) << i;
  }
}

// Key tiles do not depend on the first key visible to the first query of a panel: with 370 queries, those from row 340
// on share a panel with the previous document, which begins at row 96, not a multiple of the tile size.
TEST_P(AttentionDocuments, OnACpuTheLastQueriesAloneHaveTheSameBits) {
  if (GetParam() != By::cpu) GTEST_SKIP() << "a GPU's blocks begin with the first query";
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const AttentionCase z = with_documents({700, 1, 2, 16, dtype, {}, 2, 1}, {96, 244, 150, 300});
    const Tensors all = run(z);
    for (const int64_t count : {1, 33, 110, 259, 370}) {
      const Tensor out = poisoned(dtype, {count, 1, 32}), lse = poisoned(DType::f32, {1, 2, count});
      QkvViews last = all.qkv;
      last.q = last_positions(last.q, count);
      ops_for(z)->run(
          op::AttentionForward{
              .qkv = last, .out = out, .lse = lse, .documents = {.starts = starts_of(z).slice(z.s - count, count)}},
          *stream);
      EXPECT_EQ(bytes(out), bytes(all.out.slice(z.s - count, count))) << count;
    }
  }
}

TEST(PositionMap, RowsBeforeAPosition) {
  for (const PositionMap& map : {PositionMap{}, PositionMap{5}, PositionMap{3, 4, 10}, PositionMap{0, 1, 2}}) {
    for (int64_t row = 0; row < 12; ++row) EXPECT_EQ(map.before(map.at(row)), row);
    for (int64_t position = map.at(map.split); position > map.at(map.split) - map.jump; --position)
      EXPECT_EQ(map.before(position), map.split);
    EXPECT_EQ(map.before(map.first - 1), 0);
  }
}

TEST_P(AttentionDocuments, WrongStartsAreNamed) {
  const AttentionCase z{4, 2, 2, 8};
  const QkvViews qkv = placed(z, Lie::in_groups, drawn_values(z, 1));
  for (const auto& [starts, found] : {std::pair(drawn(DType::f32, {4, 2}, 1), "[4, 2] fp32"),
                                      std::pair(arena.allocate(DType::i32, {4, 1}), "[4, 1] int32")})
    try {
      ops_for(z)->run(op::AttentionForward{.qkv = qkv,
                                           .out = poisoned(DType::f32, {4, 2, 16}),
                                           .lse = poisoned(DType::f32, {2, 2, 4}),
                                           .documents = {.starts = starts}},
                      *stream);
      ADD_FAILURE() << found;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what())
                    .find(std::string("attention_forward: documents.starts is ") + found + ", expected [4, 2] int32"),
                std::string::npos)
          << error.what();
    }
}

}  // namespace
}  // namespace trivet::test
