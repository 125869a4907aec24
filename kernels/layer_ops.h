// The ops of a model's layers: matrix products, norms, activation, attention, embeddings, residuals. The conventions of
// their contracts are in kernels/ops.h; check() is the contract's shapes and types as code.
#pragma once

#include "kernels/base/trace.h"
#include "kernels/heads_view.h"
#include "kernels/op_fields.h"
#include "kernels/shapes.h"

namespace trivet {

// Which elements a dropout zeroes: a pure function of the seed, the site (one number a dropout in the model) and the
// element's global coordinates, so that it is the same under every layout. With 7 rounds of Philox (kernels/philox.h),
// an activation of a micro-batch has word index % 4 of philox4x32(index / 4, site, seed), where
//   index = ((first_sample + batch entry) * seq_length + first_position + position) * width + column,
// and a probability of attention word query / 8 % 2 * 2 + key / 8 % 2 of philox4x32(square, site, seed), where
//   square = (((first_sample + batch entry) * total_heads + first_head + head) * pairs + dropout_pair(key)) * pairs +
//            dropout_pair(query)   with pairs = dropout_pairs(seq_length).
// The element is kept when its word >= dropout_threshold(probability), and is then scaled by 1 / (1 - probability).
// The number of the sample is read on the device when the op runs: all else is the same in every micro-batch, so that a
// graph of the calls can be launched for each.
struct Dropout {
  float probability = 0;  // 0: everything is kept and nothing is drawn
  uint64_t seed = 0;
  uint64_t site = 0;
  OptionalIn first_sample = {};  // [1] int64, the micro-batch's first; null where nothing is drawn
  int64_t seq_length = 0;        // of the whole sequence
  int64_t first_position = 0;    // of this rank's slice, under sequence parallelism
  int64_t first_head = 0;        // of this rank, and
  int64_t total_heads = 0;       // of the model: attention only

  void check(const char* op) const {
    if (!(probability >= 0 && probability < 1)) [[unlikely]]
      fail(std::string(op) + ": dropout probability is " + std::to_string(probability) + ", expected [0, 1)");
    if (probability > 0) shapes::expect_vector(op, "dropout.first_sample", first_sample, DType::i64, 1);
  }
};

namespace op {

// ---- matrix products

// c[m, n] = a[m, k] b[k, n] + bias. a, b: T. c: T, or fp32.
struct Matmul {
  static constexpr SpanInfo kSpan{"matmul"};
  In a, b;
  InOut c;                   // read where it accumulates
  bool transpose_a = false;  // a is given as [k, m]
  bool transpose_b = false;  // b is given as [n, k]
  bool accumulate = false;   // c += a b; else c = a b
  OptionalIn bias{};         // [n] T, added to every row; not with accumulate
  // A GELU behind the product, which saves passes over memory. At most one of the two; c is T then, and nothing is
  // accumulated. On a CPU with the bits of this op and GeluForward or GeluBackward behind it; elsewhere near them.
  OptionalOut pre_activation{};  // [m, n] T: a b + bias; c = gelu(pre_activation)
  OptionalIn gelu_backward{};    // [m, n] T: c = (a b) * gelu'(gelu_backward); not with a bias

  void check() const {
    constexpr const char* kOp = kSpan.name;
    shapes::expect_float(kOp, "a", a);
    const int64_t m = transpose_a ? a.cols() : a.rows(), k = transpose_a ? a.rows() : a.cols();
    shapes::expect_float(kOp, "b", b);
    const int64_t n = transpose_b ? b.rows() : b.cols();
    shapes::expect_matrix(kOp, "b", b, a.dtype, transpose_b ? n : k, transpose_b ? k : n);
    shapes::expect_float(kOp, "c", c);
    shapes::expect_matrix(kOp, "c", c, c.dtype == DType::f32 ? DType::f32 : a.dtype, m, n);
    if (bias) {
      shapes::expect_vector(kOp, "bias", bias, a.dtype, n);
      if (accumulate) fail("matmul: a bias cannot be added when accumulating");
    }
    if (!pre_activation && !gelu_backward) return;
    if (pre_activation) shapes::expect_matrix(kOp, "pre_activation", pre_activation, a.dtype, m, n);
    if (gelu_backward) shapes::expect_matrix(kOp, "gelu_backward", gelu_backward, a.dtype, m, n);
    shapes::expect_matrix(kOp, "c", c, a.dtype, m, n);
    if (accumulate) fail("matmul: a GELU cannot be taken of a sum that accumulates");
    if (pre_activation && gelu_backward) fail("matmul: pre_activation and gelu_backward cannot go together");
    if (gelu_backward && bias) fail("matmul: a bias cannot be added before gelu_backward");
  }
};

// sum[c] += over rows of x[n, c]. x: T, sum: fp32. The gradient of a bias.
struct ColumnSum {
  static constexpr SpanInfo kSpan{"column_sum"};
  In x;
  InOut sum;

  void check() const {
    shapes::expect_float(kSpan.name, "x", x);
    shapes::expect_vector(kSpan.name, "sum", sum, DType::f32, x.cols());
  }
};

// ---- layer normalisation (Ba, Kiros, Hinton 2016)

// y = (x - mean) * rstd * gamma + beta by rows. x, y: [n, h] T; gamma, beta: [h] T; mean, rstd: [n] fp32,
// rstd = 1 / sqrt(variance + eps) with the biased variance.
struct LayernormForward {
  static constexpr SpanInfo kSpan{"layernorm_forward"};
  In x, gamma, beta;
  float eps;
  Out y, mean, rstd;

  void check() const {
    constexpr const char* kOp = kSpan.name;
    shapes::expect_float(kOp, "x", x);
    const int64_t n = x.rows(), h = x.cols();
    shapes::expect_vector(kOp, "gamma", gamma, x.dtype, h);
    shapes::expect_vector(kOp, "beta", beta, x.dtype, h);
    shapes::expect_like(kOp, "y", y, x);
    shapes::expect_vector(kOp, "mean", mean, DType::f32, n);
    shapes::expect_vector(kOp, "rstd", rstd, DType::f32, n);
  }
};

// dx = residual + gradient of x; dgamma += , dbeta += (fp32). residual: [n, h] T, may be dx itself. dx may alias dy.
struct LayernormBackward {
  static constexpr SpanInfo kSpan{"layernorm_backward"};
  In dy, x, gamma, mean, rstd;
  OptionalIn residual{};
  Out dx;
  InOut dgamma, dbeta;

  void check() const {
    constexpr const char* kOp = kSpan.name;
    shapes::expect_float(kOp, "x", x);
    const int64_t n = x.rows(), h = x.cols();
    shapes::expect_like(kOp, "dy", dy, x);
    shapes::expect_vector(kOp, "gamma", gamma, x.dtype, h);
    shapes::expect_vector(kOp, "mean", mean, DType::f32, n);
    shapes::expect_vector(kOp, "rstd", rstd, DType::f32, n);
    if (residual) shapes::expect_like(kOp, "residual", residual, x);
    shapes::expect_like(kOp, "dx", dx, x);
    shapes::expect_vector(kOp, "dgamma", dgamma, DType::f32, h);
    shapes::expect_vector(kOp, "dbeta", dbeta, DType::f32, h);
  }
};

// ---- activation (Hendrycks, Gimpel 2016), the tanh form of GPT-2

// y = gelu(x). [n, c] T.
struct GeluForward {
  static constexpr SpanInfo kSpan{"gelu_forward"};
  In x;
  Out y;

  void check() const {
    shapes::expect_float(kSpan.name, "x", x);
    shapes::expect_like(kSpan.name, "y", y, x);
  }
};

// dx = dy * gelu'(x). dx may alias dy.
struct GeluBackward {
  static constexpr SpanInfo kSpan{"gelu_backward"};
  In x, dy;
  Out dx;

  void check() const {
    shapes::expect_float(kSpan.name, "x", x);
    shapes::expect_like(kSpan.name, "dy", dy, x);
    shapes::expect_like(kSpan.name, "dx", dx, x);
  }
};

// ---- causal multi-head self-attention with online softmax (Dao et al. 2022); never holds more than a tile-row of
//      scores a thread

inline void expect_attention(const char* op, const QkvOf<In>& qkv, const Tensor& out, const Tensor& lse,
                             const Dropout& dropout) {
  const HeadsLayout& z = qkv.q.layout;
  const DType T = qkv.q.memory.dtype;
  shapes::expect_float(op, "q", qkv.q.memory);
  shapes::expect_heads(op, "q", qkv.q, T);
  shapes::expect_heads_like(op, "k", qkv.k, qkv.q, 1);
  shapes::expect_heads_like(op, "v", qkv.v, qkv.q, 1);
  shapes::expect_matrix(op, "out", out, T, z.s * z.b, z.heads() * z.d);
  shapes::expect_matrix(op, "lse", lse, DType::f32, z.b * z.heads(), z.s);
  dropout.check(op);
}

// softmax(q k^T / sqrt(d), masked) v of each query head. The views are of one type, T, and of the same s, b, groups and
// d; q has any number of heads a group, k and v one.
struct AttentionForward {
  static constexpr SpanInfo kSpan{"attention_forward"};
  QkvOf<In> qkv;
  Out out;            // [s, b, heads * d] T
  Out lse;            // [b, heads, s] fp32, log of the sum of exp of the scaled scores
  Dropout dropout{};  // of the probabilities, each a function of its query head

  void check() const { expect_attention(kSpan.name, qkv, out, lse, dropout); }
};

// Recomputes the probabilities from q, k and lse. dk and dv are sums over the query heads of their group, in the order
// of the heads, and of each over its queries, kept in fp32 and rounded once (cuDNN's: in an order of its own, each
// head's rounded). So they have the same bits on every layout that keeps whole groups on a rank.
struct AttentionBackward {
  static constexpr SpanInfo kSpan{"attention_backward"};
  In dout;  // as out
  QkvOf<In> qkv;
  In out, lse;      // of the forward pass
  QkvOf<Out> dqkv;  // of the sizes of qkv; the strides are its own
  Dropout dropout{};

  void check() const {
    constexpr const char* kOp = kSpan.name;
    expect_attention(kOp, qkv, out, lse, dropout);
    shapes::expect_like(kOp, "dout", dout, out);
    shapes::expect_heads_like(kOp, "dq", dqkv.q, qkv.q, qkv.q.layout.members);
    shapes::expect_heads_like(kOp, "dk", dqkv.k, qkv.q, 1);
    shapes::expect_heads_like(kOp, "dv", dqkv.v, qkv.q, 1);
  }
};

// ---- embeddings

// out[r] = table[tokens[r] - first_row], or zero where that is no row of this rank's table.
// tokens: [s, b] int32; table: [rows, h] T; out: [s, b, h] T.
struct EmbeddingForward {
  static constexpr SpanInfo kSpan{"embedding_forward"};
  In tokens, table;
  int64_t first_row;
  Out out;

  void check() const {
    constexpr const char* kOp = kSpan.name;
    shapes::expect_float(kOp, "table", table);
    shapes::expect_vector(kOp, "tokens", tokens, DType::i32, tokens.numel());
    shapes::expect_matrix(kOp, "out", out, table.dtype, tokens.numel(), table.cols());
  }
};

// dtable[tokens[r] - first_row] += dout[r], equal tokens in order of r. dtable: [rows, h] fp32.
struct EmbeddingBackward {
  static constexpr SpanInfo kSpan{"embedding_backward"};
  In tokens, dout;
  int64_t first_row;
  InOut dtable;

  void check() const {
    constexpr const char* kOp = kSpan.name;
    shapes::expect_float(kOp, "dout", dout);
    shapes::expect_vector(kOp, "tokens", tokens, DType::i32, tokens.numel());
    shapes::expect_matrix(kOp, "dout", dout, dout.dtype, tokens.numel(), dout.cols());
    shapes::expect_matrix(kOp, "dtable", dtable, DType::f32, dtable.rows(), dout.cols());
  }
};

// out = dropout(x + positions[position]). x, out: [s, b, h] T; positions: [s, h] T. out may alias x.
struct PositionForward {
  static constexpr SpanInfo kSpan{"position_forward"};
  In x, positions;
  Dropout dropout;
  Out out;

  void check() const {
    constexpr const char* kOp = kSpan.name;
    shapes::expect_activation(kOp, "x", x);
    shapes::expect_matrix(kOp, "positions", positions, x.dtype, x.shape[0], x.shape[2]);
    shapes::expect_like(kOp, "out", out, x);
    dropout.check(kOp);
  }
};

// dx = dropped dout; dpositions[position] += over the batch of dx. dpositions: [s, h] fp32. dx may alias dout.
struct PositionBackward {
  static constexpr SpanInfo kSpan{"position_backward"};
  In dout;
  Dropout dropout;
  Out dx;
  InOut dpositions;

  void check() const {
    constexpr const char* kOp = kSpan.name;
    shapes::expect_activation(kOp, "dout", dout);
    shapes::expect_like(kOp, "dx", dx, dout);
    shapes::expect_matrix(kOp, "dpositions", dpositions, DType::f32, dout.shape[0], dout.shape[2]);
    dropout.check(kOp);
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

  void check() const {
    constexpr const char* kOp = kSpan.name;
    shapes::expect_activation(kOp, "x", x);
    if (bias) shapes::expect_vector(kOp, "bias", bias, x.dtype, x.shape[2]);
    shapes::expect_like(kOp, "residual", residual, x);
    shapes::expect_like(kOp, "out", out, x);
    dropout.check(kOp);
  }
};

// dx = dropped dout: the gradient of x above, by the same mask. [s, b, h] T. dx may alias dout.
struct DropoutBackward {
  static constexpr SpanInfo kSpan{"dropout_backward"};
  In dout;
  Dropout dropout;
  Out dx;

  void check() const {
    shapes::expect_activation(kSpan.name, "dout", dout);
    shapes::expect_like(kSpan.name, "dx", dx, dout);
    dropout.check(kSpan.name);
  }
};

}  // namespace op
}  // namespace trivet
