// The ops of a model's layers: matrix products, norms, activation, attention, embeddings, residuals, the loss. The
// conventions of their contracts are in kernels/ops.h.
#pragma once

#include "kernels/base/trace.h"
#include "kernels/heads_view.h"
#include "kernels/op_fields.h"

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
  OptionalOut before_gelu{};   // [m, n] T: a b + bias; c = gelu(before_gelu)
  OptionalIn gelu_backward{};  // [m, n] T: c = (a b) * gelu'(gelu_backward); not with a bias
  void check() const;
};

// sum[c] += over rows of x[n, c]. x: T, sum: fp32. The gradient of a bias.
struct ColumnSum {
  static constexpr SpanInfo kSpan{"column_sum"};
  In x;
  InOut sum;
  void check() const;
};

// ---- layer normalisation (Ba, Kiros, Hinton 2016)

// y = (x - mean) * rstd * gamma + beta by rows. x, y: [n, h] T; gamma, beta: [h] T; mean, rstd: [n] fp32,
// rstd = 1 / sqrt(variance + eps) with the biased variance.
struct LayernormForward {
  static constexpr SpanInfo kSpan{"layernorm_forward"};
  In x, gamma, beta;
  float eps;
  Out y, mean, rstd;
  void check() const;
};

// dx = residual + gradient of x; dgamma += , dbeta += (fp32). residual: [n, h] T, may be dx itself. dx may alias dy.
struct LayernormBackward {
  static constexpr SpanInfo kSpan{"layernorm_backward"};
  In dy, x, gamma, mean, rstd;
  OptionalIn residual{};
  Out dx;
  InOut dgamma, dbeta;
  void check() const;
};

// ---- activation (Hendrycks, Gimpel 2016), the tanh form of GPT-2

// y = gelu(x). [n, c] T.
struct GeluForward {
  static constexpr SpanInfo kSpan{"gelu_forward"};
  In x;
  Out y;
  void check() const;
};

// dx = dy * gelu'(x). dx may alias dy.
struct GeluBackward {
  static constexpr SpanInfo kSpan{"gelu_backward"};
  In x, dy;
  Out dx;
  void check() const;
};

// ---- causal multi-head self-attention with online softmax (Dao et al. 2022); never holds more than a tile-row of
//      scores a thread

// softmax(q k^T / sqrt(d), masked) v of each query head. The views are of one type, T, and of the same s, b, groups and
// d; q has any number of heads a group, k and v one.
struct AttentionForward {
  static constexpr SpanInfo kSpan{"attention_forward"};
  QkvOf<In> qkv;
  Out out;            // [s, b, heads * d] T
  Out lse;            // [b, heads, s] fp32, log of the sum of exp of the scaled scores
  Dropout dropout{};  // of the probabilities, each a function of its query head
  void check() const;
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
  void check() const;
};

// ---- embeddings

// out[r] = table[tokens[r] - first_row], or zero where that is no row of this rank's table.
// tokens: [s, b] int32; table: [rows, h] T; out: [s, b, h] T.
struct EmbeddingForward {
  static constexpr SpanInfo kSpan{"embedding_forward"};
  In tokens, table;
  int64_t first_row;
  Out out;
  void check() const;
};

// dtable[tokens[r] - first_row] += dout[r], equal tokens in order of r. dtable: [rows, h] fp32.
struct EmbeddingBackward {
  static constexpr SpanInfo kSpan{"embedding_backward"};
  In tokens, dout;
  int64_t first_row;
  InOut dtable;
  void check() const;
};

// out = dropout(x + positions[position]). x, out: [s, b, h] T; positions: [s, h] T. out may alias x.
struct PositionForward {
  static constexpr SpanInfo kSpan{"position_forward"};
  In x, positions;
  Dropout dropout;
  Out out;
  void check() const;
};

// dx = dropped dout; dpositions[position] += over the batch of dx. dpositions: [s, h] fp32. dx may alias dout.
struct PositionBackward {
  static constexpr SpanInfo kSpan{"position_backward"};
  In dout;
  Dropout dropout;
  Out dx;
  InOut dpositions;
  void check() const;
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
  void check() const;
};

// dx = dropped dout: the gradient of x above, by the same mask. [s, b, h] T. dx may alias dout.
struct DropoutBackward {
  static constexpr SpanInfo kSpan{"dropout_backward"};
  In dout;
  Dropout dropout;
  Out dx;
  void check() const;
};

// ---- softmax cross-entropy in the pieces that a vocabulary cut over ranks needs (Shoeybi et al. 2019, section 3)

// One pass over this rank's columns. logits: [n, v] T, whose column j is vocabulary entry first_column + j; entries
// from `vocab_size` on are padding and never enter. targets: [n] int32. Outputs, [n] fp32: row_max (-inf where all
// columns are padding), row_sum = sum of exp(logit - row_max), target_logit (0 where the target is on another rank).
struct CrossEntropyForward {
  static constexpr SpanInfo kSpan{"cross_entropy_forward"};
  In logits, targets;
  int64_t first_column, vocab_size;
  Out row_max, row_sum, target_logit;
  void check() const;
};

// row_sum *= exp(row_max - global_max): from this rank's maximum to the one over all ranks. [n] fp32.
struct CrossEntropyRescale {
  static constexpr SpanInfo kSpan{"cross_entropy_rescale"};
  In row_max, global_max;
  InOut row_sum;
  void check() const;
};

// loss[0] += scale * sum over rows, in double, of log(row_sum) + row_max - target_logit. loss: [1] fp32.
struct CrossEntropyLoss {
  static constexpr SpanInfo kSpan{"cross_entropy_loss"};
  In row_max, row_sum, target_logit;
  float scale;
  InOut loss;
  void check() const;
};

// In place: logits = scale * (softmax - one-hot of the target), 0 in padded columns. row_max, row_sum: global.
struct CrossEntropyBackward {
  static constexpr SpanInfo kSpan{"cross_entropy_backward"};
  InOut logits;
  In targets;
  int64_t first_column, vocab_size;
  In row_max, row_sum;
  float scale;
  void check() const;
};

}  // namespace op
}  // namespace trivet
