#include "parallel/context/attention.h"

#include <numeric>

namespace trivet {

// ---- ContextGroup

namespace {

std::vector<int> backwards(int ranks) {
  std::vector<int> members(static_cast<size_t>(ranks));
  std::iota(members.rbegin(), members.rend(), 0);
  return members;
}

}  // namespace

ContextGroup::ContextGroup(const CommStreamSite& on, const ContextCut& cut, CpCommType type, bool overlap)
    : cut_(cut),
      type_(type),
      compute_(on.compute),
      comm_streams_(on, comm_of("context"), "context", overlap ? 1 : 0),
      reversed_(type == CpCommType::all_gather
                    ? on.group.split(backwards(cut.ranks), "context reversed", comm_of("context"))
                    : nullptr) {
  for (auto& mark : marks_) mark = on.device.create_event();
}

void ContextGroup::pass_on(Tensor mine, Tensor of_previous, int mark) {
  const int c = cut_.ranks;
  comm_streams_.run(*marks_[static_cast<size_t>(mark)], [&](Communicator& group, Stream& stream) {
    group.exchange(mine, (cut_.rank + 1) % c, of_previous, (cut_.rank + c - 1) % c, stream);
  });
}

template <class F>
void ContextGroup::for_halves(Tensor whole, int mark, const F& f) {
  const int64_t half = cut_.seq / 2, piece = cut_.piece();
  const Tensor first = whole.slice(0, half), last = whole.slice(half, half);
  comm_streams_.run(*marks_[static_cast<size_t>(mark)], [&](Communicator& group, Stream& stream) {
    f(first.slice(cut_.rank * piece, piece), first, group, stream);
    f(last.slice(reversed_->rank() * piece, piece), last, *reversed_, stream);
  });
}

void ContextGroup::gather(Tensor whole, int mark) {
  for_halves(whole, mark, [](Tensor mine, Tensor half, Communicator& group, Stream& stream) {
    group.all_gather(mine, half, stream);
  });
}

void ContextGroup::reduce(Tensor terms, int mark) {
  for_halves(terms, mark, [](Tensor mine, Tensor half, Communicator& group, Stream& stream) {
    group.reduce_scatter(half, mine, Reduce::sum, stream);
  });
}

namespace {

// ---- keys and values side by side: [positions, b, kv heads, 2 d]

Shape kv_shape(const HeadsLayout& k, int64_t positions) { return {positions, k.b, k.groups * 2 * k.d}; }

HeadsView half_of(const Tensor& kv, const HeadsLayout& k, bool values) {
  return {kv, values ? k.d : 0, HeadsLayout::in_groups(kv.shape[0], k.b, k.groups, 1, k.d, 2 * k.d)};
}
// These queries, with views of the keys and values in `kv`: a tensor of kv_shape, or some of its positions.
QkvViews with_kv(const HeadsView& q, const Tensor& kv, const HeadsLayout& k) {
  return {q, half_of(kv, k, false), half_of(kv, k, true)};
}
void copy_kv(const Context& ctx, const QkvViews& from, const QkvViews& to, bool accumulate = false) {
  ctx.run(op::CopyHeads{.from = from.k, .to = to.k, .accumulate = accumulate});
  ctx.run(op::CopyHeads{.from = from.v, .to = to.v, .accumulate = accumulate});
}

Dropout part_of(Dropout dropout, int64_t first_query, const PositionMap& keys, int64_t first_key) {
  dropout.positions = dropout.positions.from(first_query);
  dropout.keys = keys.from(first_key);
  return dropout;
}

// The document starts for some of the rank's queries and for keys at these positions.
DocumentStarts part_of(Tensor starts, int64_t first_query, int64_t queries, const PositionMap& keys) {
  return starts ? DocumentStarts{starts.slice(first_query, queries), keys} : DocumentStarts{};
}

// ---- p2p. Mark 0: the next keys and values; mark 1: the gradient sums.

int owner_at(const ContextCut& cut, int hop) { return (cut.rank - hop + cut.ranks) % cut.ranks; }

void ring_forward(Context& ctx, const QkvViews& heads, Tensor out, Tensor lse, const Dropout& dropout, Tensor starts) {
  ContextGroup& group = *ctx.context;
  const ContextCut& cut = group.cut();
  const HeadsLayout& k = heads.k.layout;
  Scratch::Frame frame(ctx.scratch);
  Tensor kv[2];
  for (Tensor& side : kv) side = frame.tensor(out.dtype, kv_shape(k, cut.rows()));
  const Tensor sums = out.dtype == DType::f32 ? out : frame.tensor(DType::f32, out.shape);
  copy_kv(ctx, heads, with_kv(heads.q, kv[0], k));
  for (int hop = 0; hop < cut.ranks; ++hop) {
    const bool more = hop + 1 < cut.ranks;
    const Tensor& here = kv[hop % 2];
    if (more) group.pass_on(here, kv[(hop + 1) % 2], 0);
    const int owner = owner_at(cut, hop);
    const ContextVisit visit = visit_of(cut, owner);
    const QkvViews read =
        with_kv(positions_of(heads.q, visit.first_query, visit.queries), here.slice(visit.first_key, visit.keys), k);
    const Dropout drop = part_of(dropout, visit.first_query, cut.of(owner), visit.first_key);
    const DocumentStarts documents =
        part_of(starts, visit.first_query, visit.queries, cut.of(owner).from(visit.first_key));
    if (hop == 0) {
      ctx.run(op::AttentionForward{.qkv = read, .out = out, .lse = lse, .dropout = drop, .documents = documents});
      if (sums.data != out.data) ctx.run(op::Convert{out, sums});
    } else {
      Scratch::Frame part(ctx.scratch);
      const Tensor some = part.tensor(out.dtype, {visit.queries, out.shape[1], out.shape[2]});
      const Tensor some_lse = part.tensor(DType::f32, {lse.shape[0], lse.shape[1], visit.queries});
      ctx.run(op::AttentionForward{
          .qkv = read, .out = some, .lse = some_lse, .dropout = drop, .causal = false, .documents = documents});
      ctx.run(op::AttentionMerge{some, some_lse, sums, lse, visit.first_query});
    }
    if (more) group.wait(0);
  }
  if (sums.data != out.data) ctx.run(op::Convert{sums, out});
}

// The gradients of a rank's own keys from its own queries stay on the rank; the travelling sums begin at hop 1.
void ring_backward(Context& ctx, Tensor dout, const QkvViews& heads, Tensor out, Tensor lse, const QkvViews& dqkv,
                   const Dropout& dropout, Tensor starts) {
  ContextGroup& group = *ctx.context;
  const ContextCut& cut = group.cut();
  const HeadsLayout &q = heads.q.layout, &k = heads.k.layout;
  const int64_t half = cut.piece();
  Scratch::Frame frame(ctx.scratch);
  Tensor kv[2], dkv[2];
  for (Tensor& side : kv) side = frame.tensor(out.dtype, kv_shape(k, cut.rows()));
  for (Tensor& side : dkv) side = frame.tensor(DType::f32, kv_shape(k, cut.rows()));
  const Tensor dq_sums = frame.tensor(DType::f32, out.shape);
  // The same size on every rank, so that all ranks need the same memory.
  const Tensor dq_terms = frame.tensor(out.dtype, out.shape);
  const Tensor dkv_terms = frame.tensor(out.dtype, kv_shape(k, cut.rows()));
  const HeadsView dq = heads_view(dq_sums, q.heads(), q.groups);
  const auto add = [&](int owner, const ContextVisit& visit, const QkvViews& read, const QkvViews& kv_terms) {
    const HeadsView terms = heads_view(dq_terms.slice(0, visit.queries), q.heads(), q.groups);
    const PositionMap keys = cut.of(owner).from(visit.first_key);
    ctx.run(op::AttentionBackward{.dout = dout,
                                  .qkv = {positions_of(heads.q, visit.first_query, visit.queries), read.k, read.v},
                                  .out = out,
                                  .lse = lse,
                                  .dqkv = {terms, kv_terms.k, kv_terms.v},
                                  .dropout = part_of(dropout, visit.first_query, cut.of(owner), visit.first_key),
                                  .causal = visit.causal,
                                  .part = {.first_position = visit.first_query, .positions = cut.rows()},
                                  .documents = part_of(starts, visit.first_query, visit.queries, keys)});
    ctx.run(op::CopyHeads{.from = terms, .to = positions_of(dq, visit.first_query, visit.queries), .accumulate = true});
  };
  for (const Tensor& sums : {dq_sums, dkv[1]}) ctx.run(op::Fill{sums, 0});
  copy_kv(ctx, heads, with_kv(heads.q, kv[0], k));
  group.pass_on(kv[0], kv[1], 0);
  add(cut.rank, {half, half, 0, cut.rows(), true}, heads, dqkv);
  for (int hop = 1; hop < cut.ranks; ++hop) {
    const Tensor &here = kv[hop % 2], &sums = dkv[hop % 2];
    group.wait(0);
    if (hop + 1 < cut.ranks) group.pass_on(here, kv[(hop + 1) % 2], 0);
    const int owner = owner_at(cut, hop);
    const ContextVisit visit = visit_of(cut, owner);
    const QkvViews terms = with_kv(heads.q, dkv_terms.slice(0, visit.keys), k);
    add(owner, visit, with_kv(heads.q, here.slice(visit.first_key, visit.keys), k), terms);
    if (hop > 1) group.wait(1);
    copy_kv(ctx, terms, with_kv(heads.q, sums.slice(visit.first_key, visit.keys), k), true);
    group.pass_on(sums, dkv[(hop + 1) % 2], 1);
  }
  // While the sums return to their owners: the first half of this rank's own queries.
  const Tensor& home = dkv[cut.ranks % 2];
  const auto first_half = [&](const HeadsView& view) { return positions_of(view, 0, half); };
  const QkvViews terms = with_kv(heads.q, dkv_terms.slice(0, half), k);
  add(cut.rank, {0, half, 0, half, true}, {heads.q, first_half(heads.k), first_half(heads.v)}, terms);
  group.wait(1);
  copy_kv(ctx, dqkv, with_kv(heads.q, home, k), true);
  copy_kv(ctx, terms, with_kv(heads.q, home.slice(0, half), k), true);
  copy_kv(ctx, with_kv(heads.q, home, k), dqkv);
  ctx.run(op::CopyHeads{.from = dq, .to = dqkv.q});
}

// ---- all_gather

// Splits the kv heads, with the query heads that share them, into parts; two parts are held at a time.
struct HeadParts {
  static constexpr int64_t kMost = 4;
  int64_t count, groups;  // parts; kv heads per part

  explicit HeadParts(int64_t all) : count(std::min(all, kMost)) {
    while (all % count != 0) --count;
    groups = all / count;
  }
  QkvViews of(const QkvViews& heads, int64_t part) const {
    const auto some = [&](const HeadsView& view) { return groups_of(view, part * groups, groups); };
    return {some(heads.q), some(heads.k), some(heads.v)};
  }
};

// A part's keys and values from all ranks, in position order. Uses marks 0 and 1.
class GatheredKv {
 public:
  GatheredKv(Context& ctx, const QkvViews& heads, const HeadParts& parts, DType dtype, Scratch::Frame& frame)
      : ctx_(ctx), heads_(heads), parts_(parts), layout_(parts.of(heads, 0).k.layout) {
    for (Tensor& side : whole_) side = frame.tensor(dtype, kv_shape(layout_, ctx.context->cut().seq));
    begin(0);
  }
  // Returns the part's keys and values, [s, b, 2 d times its kv heads], and begins to gather the next part.
  const Tensor& take(int64_t part) {
    if (part + 1 < parts_.count) begin(part + 1);
    ctx_.context->wait(static_cast<int>(part % 2));
    return whole_[part % 2];
  }
  const HeadsLayout& layout() const { return layout_; }

 private:
  void begin(int64_t part) {
    const QkvViews own = parts_.of(heads_, part);
    const Tensor& whole = whole_[part % 2];
    const ContextCut& cut = ctx_.context->cut();
    cut.positions().for_runs(cut.rows(), [&](int64_t row, int64_t count, int64_t position) {
      const auto rows = [&](const HeadsView& view) { return positions_of(view, row, count); };
      copy_kv(ctx_, {own.q, rows(own.k), rows(own.v)}, with_kv(own.q, whole.slice(position, count), layout_));
    });
    ctx_.context->gather(whole, static_cast<int>(part % 2));
  }

  Context& ctx_;
  const QkvViews& heads_;
  const HeadParts& parts_;
  const HeadsLayout layout_;
  Tensor whole_[2];
};

// This rank's first or last half of queries, and how many keys they see.
struct Prefix {
  int64_t first_query, keys;
};
std::array<Prefix, 2> prefixes(const ContextCut& cut) {
  return {{{cut.piece(), cut.seen_by_last()}, {0, cut.seen_by_first()}}};
}

void gathered_forward(Context& ctx, const QkvViews& heads, Tensor out, Tensor lse, const Dropout& dropout,
                      Tensor starts) {
  const ContextCut& cut = ctx.context->cut();
  const HeadParts parts(heads.k.layout.groups);
  Scratch::Frame frame(ctx.scratch);
  GatheredKv gathered(ctx, heads, parts, out.dtype, frame);
  for (int64_t part = 0; part < parts.count; ++part) {
    const QkvViews own = parts.of(heads, part);
    const int64_t first_head = part * own.q.layout.heads();
    const Tensor& kv = gathered.take(part);
    for (const Prefix& prefix : prefixes(cut)) {
      Dropout drop = part_of(dropout, prefix.first_query, {}, 0);
      drop.first_head += first_head;
      ctx.run(op::AttentionForward{.qkv = with_kv(positions_of(own.q, prefix.first_query, cut.piece()),
                                                  kv.slice(0, prefix.keys), gathered.layout()),
                                   .out = out,
                                   .lse = lse,
                                   .dropout = drop,
                                   .part = {prefix.first_query, first_head, cut.rows(), heads.q.layout.heads()},
                                   .documents = part_of(starts, prefix.first_query, cut.piece(), {})});
    }
  }
}

void gathered_backward(Context& ctx, Tensor dout, const QkvViews& heads, Tensor out, Tensor lse, const QkvViews& dqkv,
                       const Dropout& dropout, Tensor starts) {
  ContextGroup& group = *ctx.context;
  const ContextCut& cut = group.cut();
  const HeadParts parts(heads.k.layout.groups);
  Scratch::Frame frame(ctx.scratch);
  GatheredKv gathered(ctx, heads, parts, out.dtype, frame);
  const HeadsLayout& k = gathered.layout();
  Tensor terms[2];  // for all positions; marks 2 and 3
  for (Tensor& side : terms) side = frame.tensor(out.dtype, kv_shape(k, cut.seq));
  const auto take_sums = [&](int64_t part) {
    const int mark = static_cast<int>(part % 2);
    group.wait(2 + mark);
    const QkvViews own = parts.of(dqkv, part);
    cut.positions().for_runs(cut.rows(), [&](int64_t row, int64_t count, int64_t position) {
      const auto rows = [&](const HeadsView& view) { return positions_of(view, row, count); };
      copy_kv(ctx, with_kv(own.q, terms[mark].slice(position, count), k), {own.q, rows(own.k), rows(own.v)});
    });
  };
  for (int64_t part = 0; part < parts.count; ++part) {
    const QkvViews own = parts.of(heads, part), own_grads = parts.of(dqkv, part);
    const int64_t first_head = part * own.q.layout.heads();
    const Tensor &kv = gathered.take(part), &sums = terms[part % 2];
    // The last queries see more keys: their terms are written first, and those of the first queries are added.
    const int64_t seen = cut.seen_by_last();
    if (seen < cut.seq) ctx.run(op::Fill{sums.slice(seen, cut.seq - seen), 0});
    for (const Prefix& prefix : prefixes(cut)) {
      Scratch::Frame added(ctx.scratch);
      // The same size on every rank, so that all ranks need the same memory.
      const bool first = prefix.first_query == 0;
      const Tensor to = first ? added.tensor(out.dtype, kv_shape(k, cut.seq / 2)) : sums;
      Dropout drop = part_of(dropout, prefix.first_query, {}, 0);
      drop.first_head += first_head;
      const QkvViews written =
          with_kv(positions_of(own_grads.q, prefix.first_query, cut.piece()), to.slice(0, prefix.keys), k);
      ctx.run(op::AttentionBackward{
          .dout = dout,
          .qkv = with_kv(positions_of(own.q, prefix.first_query, cut.piece()), kv.slice(0, prefix.keys), k),
          .out = out,
          .lse = lse,
          .dqkv = written,
          .dropout = drop,
          .part = {prefix.first_query, first_head, cut.rows(), heads.q.layout.heads()},
          .documents = part_of(starts, prefix.first_query, cut.piece(), {})});
      if (first) copy_kv(ctx, written, with_kv(written.q, sums.slice(0, prefix.keys), k), true);
    }
    group.reduce(sums, 2 + static_cast<int>(part % 2));
    if (part > 0) take_sums(part - 1);
  }
  take_sums(parts.count - 1);
}

}  // namespace

// ---- for layers

void attention_forward(Context& ctx, const QkvViews& heads, Tensor out, Tensor lse, const Dropout& dropout,
                       Tensor starts) {
  if (!ctx.context)
    return ctx.run(op::AttentionForward{
        .qkv = heads, .out = out, .lse = lse, .dropout = dropout, .documents = {.starts = starts}});
  const bool ring = ctx.context->type() == CpCommType::p2p;
  (ring ? ring_forward : gathered_forward)(ctx, heads, out, lse, dropout, starts);
}

void attention_backward(Context& ctx, Tensor dout, const QkvViews& heads, Tensor out, Tensor lse, const QkvViews& dqkv,
                        const Dropout& dropout, Tensor starts) {
  if (!ctx.context)
    return ctx.run(op::AttentionBackward{.dout = dout,
                                         .qkv = heads,
                                         .out = out,
                                         .lse = lse,
                                         .dqkv = dqkv,
                                         .dropout = dropout,
                                         .documents = {.starts = starts}});
  const bool ring = ctx.context->type() == CpCommType::p2p;
  (ring ? ring_backward : gathered_backward)(ctx, dout, heads, out, lse, dqkv, dropout, starts);
}

}  // namespace trivet
