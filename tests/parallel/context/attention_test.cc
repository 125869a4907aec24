// Documents under context parallelism: ranks that share a sequence compute one rank's results, even if many of their
// queries see no key of a hop, and documents are independent.
#include "parallel/context/attention.h"

#include <gtest/gtest.h>

#include "parallel/comm/world.h"
#include "tests/support/attention_reference.h"
#include "tests/support/ops_fixture.h"

namespace trivet::test {
namespace {

// Gathered keys and values come in three parts, of two groups of two heads each.
constexpr int64_t kSeq = 128, kBatch = 2, kHeads = 12, kGroups = 6, kColumns = 16;
constexpr int64_t kWidth = (kHeads + 2 * kGroups) * kColumns, kOutWidth = kHeads * kColumns;

// All positions: all ranks read qkv, dout and starts, and each writes its own rows of the results.
struct Sequence {
  Tensor qkv, dout, starts;
  Tensor out, lse, dqkv;  // lse: [s, b, heads] here

  explicit Sequence(Tensors& tensors)
      : qkv(tensors.uniform(DType::f32, {kSeq, kBatch, kWidth}, -2, 2)),
        dout(tensors.uniform(DType::f32, {kSeq, kBatch, kOutWidth})),
        starts(tensors.full(DType::i32, {kSeq, kBatch}, 0)) {
    const std::vector<int32_t> at = document_starts(kSeq, kBatch, {5, 20, 41, 1, 50});
    std::copy(at.begin(), at.end(), starts.as<int32_t>());
    make_results(tensors);
  }
  void make_results(Tensors& tensors) {
    out = tensors.poisoned(DType::f32, {kSeq, kBatch, kOutWidth});
    lse = tensors.poisoned(DType::f32, {kSeq, kBatch, kHeads});
    dqkv = tensors.poisoned(DType::f32, qkv.shape);
  }
};

// Runs both passes on a number of ranks that `type` supports.
void run_passes(const Sequence& all, int ranks, CpCommType type, float dropped, bool overlap = true) {
  run_thread_ranks(ranks, [&](Communicator& world) {
    Tensors tensors;
    Arena arena(tensors.device(), "attention");
    const auto stream = tensors.device().create_compute_stream();
    const auto ops = create_cpu_ops(1);
    WeightGradQueue weight_grads;
    UnitHooks hooks;
    Scratch scratch(arena, 2 << 20);
    {
      Scratch::Frame frame(scratch);
      const Tensor all = frame.tensor(DType::u8, {(2 << 20) - 4096});
      std::memset(all.data, 0xff, static_cast<size_t>(all.bytes()));  // NaN
    }
    const ContextCut cut{kSeq, ranks, world.rank()};
    std::optional<ContextGroup> group;
    if (ranks > 1) group.emplace(CommStreamSite{tensors.device(), *stream, world}, cut, type, overlap);
    Context ctx{.ops = *ops,
                .compute = *stream,
                .tensor = {world, false},
                .weight_grads = weight_grads,
                .units = hooks,
                .scratch = scratch,
                .context = group ? &*group : nullptr};
    const FailureGuard guard(world);
    const auto move = [&](const Tensor& whole, const Tensor& mine, bool back) {
      cut.positions().for_runs(cut.rows(), [&](int64_t row, int64_t count, int64_t position) {
        const Tensor there = whole.slice(position, count), here = mine.slice(row, count);
        std::memcpy(back ? there.data : here.data, back ? here.data : there.data, static_cast<size_t>(here.bytes()));
      });
    };
    const auto mine = [&](const Tensor& whole) {
      const Tensor rows = tensors.poisoned(whole.dtype, {cut.rows(), kBatch, whole.shape[2]});
      move(whole, rows, false);
      return rows;
    };
    const Tensor starts = tensors.poisoned(DType::i32, {cut.rows(), kBatch});
    move(all.starts, starts, false);
    const Tensor qkv = mine(all.qkv), dout = mine(all.dout), out = mine(all.out), dqkv = mine(all.dqkv);
    const Tensor lse = tensors.poisoned(DType::f32, {kBatch, kHeads, cut.rows()});
    const Dropout dropout{.probability = dropped,
                          .seed = 3,
                          .site = 4,
                          .first_sample = tensors.number(7),
                          .seq_length = kSeq,
                          .positions = cut.positions(),
                          .total_heads = kHeads};
    const QkvViews heads = qkv_views(qkv, kHeads, kGroups);
    attention_forward(ctx, heads, out, lse, dropout, starts);
    attention_backward(ctx, dout, heads, out, lse, qkv_views(dqkv, kHeads, kGroups), dropout, starts);
    stream->synchronize();
    const Tensor lse_rows = tensors.make(DType::f32, {cut.rows(), kBatch, kHeads}, [&](int64_t i) {
      return get(lse, i % (kBatch * kHeads) * cut.rows() + i / (kBatch * kHeads));
    });
    move(all.out, out, true), move(all.dqkv, dqkv, true), move(all.lse, lse_rows, true);
  });
}

TEST(ContextDocuments, RanksHaveTheResultsOfOne) {
  Tensors tensors;
  Sequence all(tensors);
  for (const float dropped : {0.0f, 0.25f}) {
    all.make_results(tensors);
    run_passes(all, 1, CpCommType::p2p, dropped);
    const Values out = values(all.out), lse = values(all.lse), dqkv = values(all.dqkv);
    for (const int ranks : {2, 4})
      for (const CpCommType type : {CpCommType::p2p, CpCommType::all_gather}) {
        SCOPED_TRACE(testing::Message() << ranks << (type == CpCommType::p2p ? " p2p" : " all_gather"));
        all.make_results(tensors);
        run_passes(all, ranks, type, dropped);
        EXPECT_TRUE(near(all.out, out, tolerance(DType::f32, kSeq)));
        EXPECT_TRUE(near(all.lse, lse, tolerance(DType::f32, kColumns, 4)));
        EXPECT_TRUE(near(all.dqkv, dqkv, tolerance(DType::f32, kSeq, 4)));
      }
  }
}

TEST(ContextDocuments, AChangeStaysInItsDocument) {
  for (const CpCommType type : {CpCommType::p2p, CpCommType::all_gather}) {
    Tensors tensors;
    Sequence all(tensors);
    run_passes(all, 4, type, 0);
    const Values out = values(all.out), lse = values(all.lse), dqkv = values(all.dqkv);
    // Entry 0's document at positions 25 to 65.
    const auto inside = [](int64_t row) { return row % kBatch == 0 && row / kBatch >= 25 && row / kBatch < 66; };
    for (const Tensor& x : {all.qkv, all.dout})
      for (int64_t i = 0; i < x.numel(); ++i)
        if (inside(i / x.cols())) x.as<float>()[i] += 1;
    all.make_results(tensors);
    run_passes(all, 4, type, 0, false);
    const auto expect_same = [&](const char* what, const Tensor& found, const Values& wanted) {
      for (int64_t i = 0; i < found.numel(); ++i)
        ASSERT_TRUE(inside(i / found.cols()) || get(found, i) == wanted[static_cast<size_t>(i)]) << what << " at " << i;
      EXPECT_NE(values(found), wanted) << what;
    };
    expect_same("out", all.out, out);
    expect_same("lse", all.lse, lse);
    expect_same("dqkv", all.dqkv, dqkv);
  }
}

}  // namespace
}  // namespace trivet::test
