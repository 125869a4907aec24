// The ops of a model's layers: matmul, norms, activation, attention, embeddings, residuals. The conventions of
// their contracts are in kernels/ops.h; check() is the contract's shapes and types as code.
#pragma once

#include <algorithm>

#include "kernels/activation.h"
#include "kernels/base/scale_blocks.h"
#include "kernels/base/trace.h"
#include "kernels/heads_view.h"
#include "kernels/op_fields.h"
#include "kernels/position_map.h"
#include "kernels/rotary.h"
#include "kernels/shapes.h"

namespace trivet {

// The elements that dropout zeroes: a pure function of the seed, the site (one number per dropout in the model) and the
// element's global coordinates, so the mask is the same under every layout. With 7 rounds of Philox (kernels/philox.h),
// an activation of a micro-batch uses word index % 4 of philox4x32(index / 4, site, seed), where
//   index = ((first_sample + batch entry) * seq_length + positions.at(row)) * width + column,
// and an attention probability uses word query / 8 % 2 * 2 + key / 8 % 2 of philox4x32(square, site, seed), where
//   square = (((first_sample + batch entry) * total_heads + first_head + head) * pairs + dropout_pair(key)) * pairs +
//            dropout_pair(query)   with pairs = dropout_pairs(seq_length), and query, key from `positions`, `keys`.
// The element is kept when its word >= dropout_threshold(probability), and is then scaled by 1 / (1 - probability).
// The sample's index is read on the device when the op runs; everything else is the same in every micro-batch, so one
// graph serves all of them.
struct Dropout {
  float probability = 0;  // 0: no dropout, and nothing is drawn
  uint64_t seed = 0;
  uint64_t site = 0;
  OptionalIn first_sample = {};  // [1] int64, the micro-batch's first; null if nothing is drawn
  int64_t seq_length = 0;        // of the whole sequence
  PositionMap positions{};       // of the op's rows; for attention, of its queries
  PositionMap keys{};            // attention only, of its keys
  int64_t first_head = 0;        // attention only, the op's first head
  int64_t total_heads = 0;       // attention only, the model's heads

  void check(const Expect& expect) const {
    if (!(probability >= 0 && probability < 1)) [[unlikely]]
      fail(std::string(expect.op) + ": dropout probability is " + std::to_string(probability) + ", expected [0, 1)");
    if (probability > 0) expect.vector("dropout.first_sample", first_sample, DType::i64, 1);
  }
};

// Attention within the documents of a sequence: a query sees no key before the first one of its document. Kernels skip
// tiles by the starts of their first and last queries, so starts must not descend along the rows of a batch entry.
struct DocumentStarts {
  OptionalIn starts{};  // [s, b] int32, per query of the op: the position of the first key that it sees; null: all
  PositionMap keys{};   // positions of the rows of keys and values; ascending

  void check(const Expect& expect, const HeadsLayout& q) const {
    if (starts) expect.matrix("documents.starts", starts, DType::i32, q.s, q.b);
  }
};

// The scales of FP8 operands: an element stands for its FP8 value times the scale, a power of two.
struct OperandScales {
  OptionalIn a, b;           // fp32, each [1] or per block (ScaleBlocks); null if the operands are T
  bool narrow_sums = false;  // on CPUs: sums with 14 bits, as on Hopper's tensor cores (kernels/cpu/matmul.cc)
};
inline void expect_scale(const Expect& expect, const char* name, const Tensor& scale, const Tensor& values) {
  if (!ScaleBlocks::given(scale)) return expect.vector(name, scale, DType::f32, 1);
  if (scale.dtype != DType::f32 || !ScaleBlocks::fit(scale, values)) [[unlikely]]
    expect.mismatch(name, scale, "fp32 scales of blocks of 128 of " + to_string(values.shape));
}

namespace op {

// ---- matmul

// amax[0] = the largest |x|; infinity if an element is not finite. x: T; amax: [1] fp32.
struct Amax {
  static constexpr SpanInfo kSpan{"amax"};
  In x;
  Out amax;

  void check(const Expect& expect) const {
    expect.floats("x", x);
    expect.vector("amax", amax, DType::f32, 1);
  }
};

// Current scaling: values = x * s in FP8, and scale = 1 / s. With amax, s = Fp8Format::scale_for(amax[0]); without,
// s follows from the largest |x| of each block. x: T; values: shaped like x, E4M3 or E5M2; amax: [1] fp32; scale: like
// amax, or fp32 per block (ScaleBlocks) as its shape says.
struct Quantize {
  static constexpr SpanInfo kSpan{"quantize"};
  enum Role : uint8_t { weight, activation, gradient };
  In x;
  OptionalIn amax;
  Out values, scale;
  Role role = weight;  // x's role, for reports

  void check(const Expect& expect) const {
    expect.floats("x", x);
    expect.fp8("values", values);
    expect.matrix("values", values, values.dtype, x.rows(), x.cols());
    expect_scale(expect, "scale", scale, values);
    if (amax || !ScaleBlocks::given(scale)) expect.vector("amax", amax, DType::f32, 1);
    if (amax) expect.vector("scale", scale, DType::f32, 1);
  }
};

// c[m, n] = a[m, k] b[k, n] + bias. a, b: T. c: T, or fp32.
// Or a, b: FP8, at most one of them E5M2 (products are exact in fp32); T is then bf16, and there is no bias_grad.
struct Matmul {
  static constexpr SpanInfo kSpan{"matmul"};
  In a, b;
  InOut c;                   // read if it accumulates
  bool transpose_a = false;  // a is given as [k, m]
  bool transpose_b = false;  // b is given as [n, k]
  bool accumulate = false;   // c += a b; else c = a b
  OptionalIn bias{};         // [n] T, added to every row; not with accumulate
  // Epilogues with an ungated activation, which save passes over memory. At most one of the two; c is then T,
  // and nothing is accumulated. On a CPU the result has the bits of this op followed by ActivationForward or
  // ActivationBackward; elsewhere it is close.
  OptionalOut pre_activation{};      // [m, n] T: a b + bias; c = act(pre_activation)
  OptionalIn activation_backward{};  // [m, n] T: c = (a b) * act'(activation_backward); not with a bias
  // [m] fp32: += sum over k of a, the bias gradient if c is the weight gradient. On a CPU: same bits as ColumnSum.
  OptionalInOut bias_grad{};  // with transpose_a only
  // [m, n] T, not c: c = residual + a b + bias. On a CPU: same bits as BiasDropoutAdd; elsewhere it is rounded once.
  OptionalIn residual{};
  Activation activation = Activation::gelu;  // act
  OperandScales scales{};

  void check(const Expect& expect) const {
    const bool quantised = is_fp8(a.dtype);
    const DType T = quantised ? DType::bf16 : a.dtype;
    if (quantised) {
      expect.fp8("a", a), expect.fp8("b", b);
      expect_scale(expect, "scales.a", scales.a, a), expect_scale(expect, "scales.b", scales.b, b);
      if (a.dtype == DType::e5m2 && b.dtype == DType::e5m2) fail("matmul: a and b are both e5m2");
      if (bias_grad) fail("matmul: bias_grad is a sum of numbers that are not quantised");
    } else {
      expect.floats("a", a), expect.floats("b", b);
      if (scales.a || scales.b) fail("matmul: scales go with FP8 operands");
    }
    const int64_t m = transpose_a ? a.cols() : a.rows(), k = transpose_a ? a.rows() : a.cols();
    const int64_t n = transpose_b ? b.rows() : b.cols();
    expect.matrix("b", b, quantised ? b.dtype : T, transpose_b ? n : k, transpose_b ? k : n);
    expect.floats("c", c);
    expect.matrix("c", c, c.dtype == DType::f32 ? DType::f32 : T, m, n);
    if (bias) {
      expect.vector("bias", bias, T, n);
      if (accumulate) fail("matmul: a bias cannot be added while accumulating");
    }
    if (bias_grad) {
      expect.vector("bias_grad", bias_grad, DType::f32, m);
      if (!transpose_a || bias || pre_activation || activation_backward)
        fail("matmul: bias_grad goes with transpose_a alone");
    }
    if (residual) {
      expect.matrix("residual", residual, T, m, n);
      expect.matrix("c", c, T, m, n);
      if (accumulate || pre_activation || activation_backward || bias_grad || residual.data == c.data)
        fail("matmul: a residual goes with a bias alone, and is not c");
    }
    if (!pre_activation && !activation_backward) return;
    if (pre_activation) expect.matrix("pre_activation", pre_activation, T, m, n);
    if (activation_backward) expect.matrix("activation_backward", activation_backward, T, m, n);
    expect.matrix("c", c, T, m, n);
    if (accumulate) fail("matmul: an epilogue of an activation cannot accumulate");
    if (is_gated(activation)) fail("matmul: an activation with a gate is no epilogue");
    if (pre_activation && activation_backward)
      fail("matmul: pre_activation and activation_backward cannot go together");
    if (activation_backward && bias) fail("matmul: a bias cannot be added before activation_backward");
  }
};

// sum[c] += the sum over rows of x[n, c]. x: T, sum: fp32. The gradient of a bias.
struct ColumnSum {
  static constexpr SpanInfo kSpan{"column_sum"};
  In x;
  InOut sum;

  void check(const Expect& expect) const {
    expect.floats("x", x);
    expect.vector("sum", sum, DType::f32, x.cols());
  }
};

// ---- layer normalisation (Ba, Kiros, Hinton 2016) and RMS normalisation (Zhang, Sennrich 2019)

// The rows that a norm works on: those of x and y, or n heads of h columns in each, ordered as [s, b, heads].
struct NormRows {
  HeadRows x{}, y{};  // heads in both or in neither

  int64_t count(const Tensor& of_x) const { return x.any() ? x.layout.numel() / x.layout.d : of_x.rows(); }
  int64_t width(const Tensor& of_x) const { return x.any() ? x.layout.d : of_x.cols(); }
  void check(const Expect& expect, const Tensor& of_x, const char* argument, const Tensor& of_y) const {
    if (!x.any() && !y.any()) {
      if (x.first != 0 || y.first != 0) expect.fail("rows", "an offset without heads", "0");
      return expect.like(argument, of_y, of_x);
    }
    const HeadsOf<In> heads{of_x, x.first, x.layout};
    expect_heads(expect, "x", heads, of_x.dtype);
    expect_heads_like(expect, argument, HeadsOf<In>{of_y, y.first, y.layout}, heads, heads.layout.members);
  }
};

// y = (x - mean) * rstd * gamma + beta by rows. x, y: [n, h] T; gamma, beta: [h] T; mean, rstd: [n] fp32,
// rstd = 1 / sqrt(variance + eps) with the biased variance.
// Without beta and mean: RMSNorm, y = x * rstd * gamma with rstd = 1 / sqrt(mean of x^2 + eps).
struct LayernormForward {
  static constexpr SpanInfo kSpan{"layernorm_forward"};
  In x, gamma;
  OptionalIn beta;
  float eps;
  Out y;
  OptionalOut mean;
  Out rstd;
  NormRows rows{};

  void check(const Expect& expect) const {
    expect.floats("x", x);
    const int64_t n = rows.count(x), h = rows.width(x);
    rows.check(expect, x, "y", y);
    expect.vector("gamma", gamma, x.dtype, h);
    expect.vector("rstd", rstd, DType::f32, n);
    if (!beta && !mean) return;  // RMSNorm
    expect.vector("beta", beta, x.dtype, h);
    expect.vector("mean", mean, DType::f32, n);
  }
};

// dx = residual + gradient of x; dgamma += , dbeta += (fp32). residual: [n, h] T, may be dx itself. dx may alias dy.
// Heads are laid out in dy, residual and dx as in y. Without mean and dbeta: RMSNorm.
struct LayernormBackward {
  static constexpr SpanInfo kSpan{"layernorm_backward"};
  In dy, x, gamma;
  OptionalIn mean;
  In rstd;
  OptionalIn residual{};
  Out dx;
  InOut dgamma;
  OptionalInOut dbeta;
  NormRows rows{};

  void check(const Expect& expect) const {
    expect.floats("x", x);
    const int64_t n = rows.count(x), h = rows.width(x);
    rows.check(expect, x, "dy", dy);
    expect.vector("gamma", gamma, x.dtype, h);
    expect.vector("rstd", rstd, DType::f32, n);
    if (residual) rows.check(expect, x, "residual", residual);
    rows.check(expect, x, "dx", dx);
    expect.vector("dgamma", dgamma, DType::f32, h);
    if (!mean && !dbeta) return;
    expect.vector("mean", mean, DType::f32, n);
    expect.vector("dbeta", dbeta, DType::f32, h);
  }
};

// ---- activation (kernels/activation.h)

// x: [n, f] T, and y like x; for a gated kind x is [n, 2 f] and y [n, f].
inline void expect_activation(const Expect& expect, Activation kind, const Tensor& x, const char* name,
                              const Tensor& y) {
  expect.floats("x", x);
  if (!is_gated(kind)) return expect.like(name, y, x);
  if (x.cols() % 2 != 0) [[unlikely]]
    expect.mismatch("x", x, "an even number of columns");
  expect.matrix(name, y, x.dtype, x.rows(), x.cols() / 2);
}

// y = act(x), or act(gate) * up.
struct ActivationForward {
  static constexpr SpanInfo kSpan{"activation_forward"};
  In x;
  Out y;
  Activation kind = Activation::gelu;

  void check(const Expect& expect) const { expect_activation(expect, kind, x, "y", y); }
};

// dx, shaped like x: the gradient of x, from that of y. Without a gate dx may alias dy.
struct ActivationBackward {
  static constexpr SpanInfo kSpan{"activation_backward"};
  In x, dy;
  Out dx;
  Activation kind = Activation::gelu;

  void check(const Expect& expect) const {
    expect_activation(expect, kind, x, "dy", dy);
    expect.like("dx", dx, x);
  }
};

// The ops that follow a plain GEMM in place of a Matmul's epilogue: with a pre_activation, which the GEMM writes, or
// with an activation_backward, after a GEMM into c.
inline ActivationForward activation_of(const Matmul& op) {
  return {.x = op.pre_activation, .y = op.c, .kind = op.activation};
}
inline ActivationBackward activation_backward_of(const Matmul& op) {
  return {.x = op.activation_backward, .dy = op.c, .dx = op.c, .kind = op.activation};
}

// ---- rotary positions (Su et al. 2021)

// table[r] = the cosines of width / 2 angles at position first + r, then their sines, from rotary_frequency() in
// double, rounded once. table: [positions, width] fp32.
struct RotaryTable {
  static constexpr SpanInfo kSpan{"rotary_table"};
  Rotary rotary;
  Out table;
  int64_t first = 0;

  void check(const Expect& expect) const {
    if (rotary.width < 2 || rotary.width % 2 != 0) [[unlikely]]
      fail("rotary_table: " + std::to_string(rotary.width) + " columns, expected pairs");
    expect.matrix("table", table, DType::f32, table.rows(), rotary.width);
  }
};

// Rotates each head's columns i and i + width / 2 by their angle at the head's position, in place; width is the
// table's, and columns from `width` on are unchanged. inverse: rotates back, as for gradients. table: [s, width], for
// the s positions of the views; or, with ids [s, b] int32, [n, width], whose rows the ids select.
struct Rope {
  static constexpr SpanInfo kSpan{"rope"};
  HeadsOf<InOut> q, k;  // of the same type, T, and the same s, b, groups and d
  In table;
  bool inverse = false;
  OptionalIn ids{};

  void check(const Expect& expect) const {
    expect.floats("q", q.memory);
    expect_heads(expect, "q", q, q.memory.dtype);
    expect_heads_like(expect, "k", k, q, 1);
    expect.matrix("table", table, DType::f32, ids ? table.rows() : q.layout.s, table.cols());
    if (ids) expect.vector("ids", ids, DType::i32, q.layout.s * q.layout.b);
    if (table.cols() % 2 != 0 || table.cols() > q.layout.d) [[unlikely]]
      expect.mismatch("table", table, "an even number of columns, at most the head's " + std::to_string(q.layout.d));
  }
};

// ---- copies of heads

// to = from, or with `accumulate` to += from in fp32, rounded once. Equal sizes; any two float types.
struct CopyHeads {
  static constexpr SpanInfo kSpan{"copy_heads"};
  HeadsOf<In> from;
  HeadsOf<InOut> to;  // the rest of its memory is unchanged
  bool accumulate = false;

  void check(const Expect& expect) const {
    expect.floats("from", from.memory);
    expect.floats("to", to.memory);
    expect_heads(expect, "from", from, from.memory.dtype);
    expect_heads(expect, "to", to, to.memory.dtype);
    expect_sizes_like(expect, "to", to.layout, from.layout, from.layout.members);
  }
};

// ---- multi-head attention with online softmax (Dao et al. 2022); holds at most a tile-row of scores per thread

inline void expect_attention(const Expect& expect, const QkvOf<In>& qkv, bool causal, const Tensor& out,
                             const Tensor& lse, const AttentionPart& part, const Dropout& dropout) {
  const HeadsLayout &z = qkv.q.layout, &keys = qkv.k.layout;
  const DType T = qkv.q.memory.dtype;
  expect.floats("q", qkv.q.memory);
  expect_heads(expect, "q", qkv.q, T);
  HeadsOf<In> keys_like = qkv.q;
  keys_like.layout.s = causal ? std::max(z.s, keys.s) : keys.s;
  expect_heads_like(expect, "k", qkv.k, keys_like, 1);
  expect_heads_like(expect, "v", qkv.v, keys_like, 1);
  const int64_t positions = part.positions_of(z), heads = part.heads_of(z);
  expect.matrix("out", out, T, positions * z.b, heads * z.d);
  expect.matrix("lse", lse, DType::f32, z.b * heads, positions);
  if (part.first_position < 0 || part.first_head < 0 || part.first_position + z.s > positions ||
      part.first_head + z.heads() > heads) [[unlikely]]
    fail(std::string(expect.op) + ": the queries are no part of out");
  dropout.check(expect);
  if (dropout.probability > 0 && !(dropout.positions.in_steps_of(16) && dropout.keys.in_steps_of(16))) [[unlikely]]
    fail(std::string(expect.op) + ": dropout needs positions that begin at multiples of 16");
}

// softmax(q k^T / sqrt(d), masked) v for each query head. The views have the same type, T, and the same b, groups and
// d; q has any number of heads per group, k and v one. Causal: the s queries are at the last s positions of the keys
// and values (all of them, new tokens in text generation, or a part of the sequence), and none sees a later key.
// Otherwise each sees all keys. With documents, a query sees only those of its keys from its start on; one that sees
// none has out = 0 and lse = -infinity. On a CPU, a query's result has the same bits whichever other queries are given.
struct AttentionForward {
  static constexpr SpanInfo kSpan{"attention_forward"};
  QkvOf<In> qkv;
  InOut out;          // [s, b, heads * d] T; only `part` of it is written
  InOut lse;          // [b, heads, s] fp32, likewise: log of the sum of exp of the scaled scores
  Dropout dropout{};  // on the probabilities, by query head
  bool causal = true;
  AttentionPart part{};
  DocumentStarts documents{};

  void check(const Expect& expect) const {
    expect_attention(expect, qkv, causal, out, lse, part, dropout);
    documents.check(expect, qkv.q.layout);
  }
};

// Recomputes the probabilities from q, k and lse. lse and out may cover more keys than are given here. dk and dv
// are sums over the query heads of their group, in the order of the heads, and over each head's queries, kept in fp32
// and rounded once. So they have the same bits on every layout that keeps whole groups on a rank. A key that no query
// sees has gradients of 0, and so does a query that sees no key.
struct AttentionBackward {
  static constexpr SpanInfo kSpan{"attention_backward"};
  In dout;  // like out
  QkvOf<In> qkv;
  In out, lse;      // from the forward pass
  QkvOf<Out> dqkv;  // same sizes as qkv, with its own strides
  Dropout dropout{};
  bool causal = true;
  AttentionPart part{};  // of out, dout and lse
  DocumentStarts documents{};

  void check(const Expect& expect) const {
    expect_attention(expect, qkv, causal, out, lse, part, dropout);
    documents.check(expect, qkv.q.layout);
    expect.like("dout", dout, out);
    expect_heads_like(expect, "dq", dqkv.q, qkv.q, qkv.q.layout.members);
    expect_heads_like(expect, "dk", dqkv.k, qkv.k, 1);
    expect_heads_like(expect, "dv", dqkv.v, qkv.k, 1);
  }
};

// Merges attention results over two sets of keys (Dao et al. 2022): with l = log(exp(lse) + exp(more_lse)),
//   out = exp(lse - l) out + exp(more_lse - l) more,   lse = l.
// An lse of -infinity means no keys.
struct AttentionMerge {
  static constexpr SpanInfo kSpan{"attention_merge"};
  In more, more_lse;  // [n, b, heads * d] T; [b, heads, n] fp32: for queries from first_position on
  InOut out, lse;     // [s, b, heads * d] fp32; [b, heads, s] fp32
  int64_t first_position = 0;

  void check(const Expect& expect) const {
    expect.floats("more", more);
    if (more.shape.rank != 3 || more_lse.shape.rank != 3 || lse.shape.rank != 3) [[unlikely]]
      fail("attention_merge: more is [n, b, heads * d], the sums are [b, heads, n] and [b, heads, s]");
    const int64_t n = more.shape[0], b = more.shape[1], heads = more_lse.shape[1], s = lse.shape[2];
    expect.matrix("more_lse", more_lse, DType::f32, b * heads, n);
    expect.matrix("lse", lse, DType::f32, b * heads, s);
    expect.matrix("out", out, DType::f32, s * b, more.shape[2]);
    if (heads < 1 || more.shape[2] % heads != 0 || first_position < 0 || first_position + n > s) [[unlikely]]
      fail("attention_merge: the queries are no part of out");
  }
};

// ---- embeddings

// out[r] = table[tokens[r] - first_row], or zero if that is not a row of this rank's table.
// tokens: [s, b] int32; table: [rows, h] T; out: [s, b, h] T.
struct EmbeddingForward {
  static constexpr SpanInfo kSpan{"embedding_forward"};
  In tokens, table;
  int64_t first_row;
  Out out;

  void check(const Expect& expect) const {
    expect.floats("table", table);
    expect.vector("tokens", tokens, DType::i32, tokens.numel());
    expect.matrix("out", out, table.dtype, tokens.numel(), table.cols());
  }
};

// dtable[tokens[r] - first_row] += dout[r], equal tokens in order of r. dtable: [rows, h] fp32.
struct EmbeddingBackward {
  static constexpr SpanInfo kSpan{"embedding_backward"};
  In tokens, dout;
  int64_t first_row;
  InOut dtable;

  void check(const Expect& expect) const {
    expect.floats("dout", dout);
    expect.vector("tokens", tokens, DType::i32, tokens.numel());
    expect.matrix("dout", dout, dout.dtype, tokens.numel(), dout.cols());
    expect.matrix("dtable", dtable, DType::f32, dtable.rows(), dout.cols());
  }
};

// out = dropout(x + positions[position]). x, out: [s, b, h] T; positions: [s, h] T; or, with ids [s, b] int32,
// [n, h] T, whose rows the ids select. out may alias x.
struct PositionForward {
  static constexpr SpanInfo kSpan{"position_forward"};
  In x, positions;
  Dropout dropout;
  Out out;
  OptionalIn ids{};

  void check(const Expect& expect) const {
    expect.activation("x", x);
    expect.matrix("positions", positions, x.dtype, ids ? positions.rows() : x.shape[0], x.shape[2]);
    if (ids) expect.vector("ids", ids, DType::i32, x.rows());
    expect.like("out", out, x);
    dropout.check(expect);
  }
};

// dx = dropout(dout); dpositions[position] += the sum over the batch of dx. dpositions: [s, h] fp32. dx may alias dout.
struct PositionBackward {
  static constexpr SpanInfo kSpan{"position_backward"};
  In dout;
  Dropout dropout;
  Out dx;
  InOut dpositions;

  void check(const Expect& expect) const {
    expect.activation("dout", dout);
    expect.like("dx", dx, dout);
    expect.matrix("dpositions", dpositions, DType::f32, dout.shape[0], dout.shape[2]);
    dropout.check(expect);
  }
};

// ---- residual branch

// out = residual + dropout(x + bias). x, residual, out: [s, b, h] T; bias: [h] T. out may alias x or residual.
struct BiasDropoutAdd {
  static constexpr SpanInfo kSpan{"bias_dropout_add"};
  In x;
  OptionalIn bias;
  In residual;
  Dropout dropout;
  Out out;

  void check(const Expect& expect) const {
    expect.activation("x", x);
    if (bias) expect.vector("bias", bias, x.dtype, x.shape[2]);
    expect.like("residual", residual, x);
    expect.like("out", out, x);
    dropout.check(expect);
  }
};

// Turns a GEMM's result, in c and without the bias, into that of a Matmul with a residual.
inline BiasDropoutAdd residual_of(const Matmul& op) {
  const Shape rows{op.c.rows(), 1, op.c.cols()};
  return {
      .x = op.c.view(rows), .bias = op.bias, .residual = op.residual.view(rows), .dropout = {}, .out = op.c.view(rows)};
}

// dx = dropout(dout), with the same mask: the gradient of x above. [s, b, h] T. dx may alias dout.
struct DropoutBackward {
  static constexpr SpanInfo kSpan{"dropout_backward"};
  In dout;
  Dropout dropout;
  Out dx;

  void check(const Expect& expect) const {
    expect.activation("dout", dout);
    expect.like("dx", dx, dout);
    dropout.check(expect);
  }
};

}  // namespace op
}  // namespace trivet
