// What each op asks of its arguments, the same for every back end: the contracts of kernels/ops.h as code. Each check
// throws Error, in the words of shapes.h, before the op is queued.
#include "kernels/ops.h"
#include "kernels/shapes.h"

namespace trivet {
namespace {

void expect_dropout(const char* op, const Dropout& dropout) {
  const float p = dropout.probability;
  if (!(p >= 0 && p < 1)) [[unlikely]]
    fail(std::string(op) + ": dropout probability is " + std::to_string(p) + ", expected [0, 1)");
  if (p > 0) shapes::expect_vector(op, "dropout.first_sample", dropout.first_sample, DType::i64, 1);
}

// [s, b, h] T: what dropout's coordinates take.
void expect_activation(const char* op, const char* argument, const Tensor& t) {
  shapes::expect_float(op, argument, t);
  shapes::expect_rank(op, argument, t, t.dtype, 3);
}

// There, of this type, and inside its memory.
template <class Memory>
void expect_heads(const char* op, const char* argument, const HeadsOf<Memory>& x, DType dtype) {
  const auto& [s, b, groups, members, d, position, entry, group, member] = x.layout;
  if (!x.memory || x.memory.dtype != dtype) [[unlikely]]
    shapes::mismatch(op, argument, x.memory, name_of(dtype));
  if (s < 0 || b < 0 || groups < 1 || members < 1 || d < 1 || x.first < 0 || position < 0 || entry < 0 || group < 0 ||
      member < 0) [[unlikely]]
    fail(std::string(op) + ": " + argument + " has a size or a stride below what can be");
  const int64_t end = x.first + x.layout.at(s - 1, b - 1, groups * members - 1) + d;
  if (s * b > 0 && end > x.memory.numel()) [[unlikely]]
    shapes::mismatch(op, argument, x.memory,
                     "at least the " + std::to_string(end) + " elements that its strides reach");
}

std::string describe_heads(const HeadsLayout& z, int64_t members) {
  return to_string(Shape{z.s, z.b, z.groups * members, z.d}) + " in " + std::to_string(z.groups) + " groups";
}

// The type and the sizes of `like`, but for `members` heads a group.
template <class Memory>
void expect_heads_like(const char* op, const char* argument, const HeadsOf<Memory>& x, const HeadsOf<In>& like,
                       int64_t members) {
  expect_heads(op, argument, x, like.memory.dtype);
  const HeadsLayout &z = x.layout, &other = like.layout;
  if (z.s != other.s || z.b != other.b || z.groups != other.groups || z.members != members || z.d != other.d)
      [[unlikely]]
    fail(std::string(op) + ": " + argument + " is " + describe_heads(z, z.members) + ", expected " +
         describe_heads(other, members));
}

void expect_attention(const char* op, const QkvOf<In>& qkv, const Tensor& out, const Tensor& lse,
                      const Dropout& dropout) {
  const HeadsLayout& z = qkv.q.layout;
  const DType T = qkv.q.memory.dtype;
  shapes::expect_float(op, "q", qkv.q.memory);
  expect_heads(op, "q", qkv.q, T);
  expect_heads_like(op, "k", qkv.k, qkv.q, 1);
  expect_heads_like(op, "v", qkv.v, qkv.q, 1);
  shapes::expect_matrix(op, "out", out, T, z.s * z.b, z.heads() * z.d);
  shapes::expect_matrix(op, "lse", lse, DType::f32, z.b * z.heads(), z.s);
  expect_dropout(op, dropout);
}

}  // namespace

namespace op {

void Matmul::check() const {
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
  if (!before_gelu && !gelu_backward) return;
  if (before_gelu) shapes::expect_matrix(kOp, "before_gelu", before_gelu, a.dtype, m, n);
  if (gelu_backward) shapes::expect_matrix(kOp, "gelu_backward", gelu_backward, a.dtype, m, n);
  shapes::expect_matrix(kOp, "c", c, a.dtype, m, n);
  if (accumulate) fail("matmul: a GELU cannot be taken of a sum that accumulates");
  if (before_gelu && gelu_backward) fail("matmul: before_gelu and gelu_backward cannot go together");
  if (gelu_backward && bias) fail("matmul: a bias cannot be added before gelu_backward");
}

void ColumnSum::check() const {
  shapes::expect_float(kSpan.name, "x", x);
  shapes::expect_vector(kSpan.name, "sum", sum, DType::f32, x.cols());
}

void LayernormForward::check() const {
  constexpr const char* kOp = kSpan.name;
  shapes::expect_float(kOp, "x", x);
  const int64_t n = x.rows(), h = x.cols();
  shapes::expect_vector(kOp, "gamma", gamma, x.dtype, h);
  shapes::expect_vector(kOp, "beta", beta, x.dtype, h);
  shapes::expect_like(kOp, "y", y, x);
  shapes::expect_vector(kOp, "mean", mean, DType::f32, n);
  shapes::expect_vector(kOp, "rstd", rstd, DType::f32, n);
}

void LayernormBackward::check() const {
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

void GeluForward::check() const {
  shapes::expect_float(kSpan.name, "x", x);
  shapes::expect_like(kSpan.name, "y", y, x);
}

void GeluBackward::check() const {
  shapes::expect_float(kSpan.name, "x", x);
  shapes::expect_like(kSpan.name, "dy", dy, x);
  shapes::expect_like(kSpan.name, "dx", dx, x);
}

void AttentionForward::check() const { expect_attention(kSpan.name, qkv, out, lse, dropout); }

void AttentionBackward::check() const {
  constexpr const char* kOp = kSpan.name;
  expect_attention(kOp, qkv, out, lse, dropout);
  shapes::expect_like(kOp, "dout", dout, out);
  expect_heads_like(kOp, "dq", dqkv.q, qkv.q, qkv.q.layout.members);
  expect_heads_like(kOp, "dk", dqkv.k, qkv.q, 1);
  expect_heads_like(kOp, "dv", dqkv.v, qkv.q, 1);
}

void EmbeddingForward::check() const {
  constexpr const char* kOp = kSpan.name;
  shapes::expect_float(kOp, "table", table);
  shapes::expect_vector(kOp, "tokens", tokens, DType::i32, tokens.numel());
  shapes::expect_matrix(kOp, "out", out, table.dtype, tokens.numel(), table.cols());
}

void EmbeddingBackward::check() const {
  constexpr const char* kOp = kSpan.name;
  shapes::expect_float(kOp, "dout", dout);
  shapes::expect_vector(kOp, "tokens", tokens, DType::i32, tokens.numel());
  shapes::expect_matrix(kOp, "dout", dout, dout.dtype, tokens.numel(), dout.cols());
  shapes::expect_matrix(kOp, "dtable", dtable, DType::f32, dtable.rows(), dout.cols());
}

void PositionForward::check() const {
  constexpr const char* kOp = kSpan.name;
  expect_activation(kOp, "x", x);
  shapes::expect_matrix(kOp, "positions", positions, x.dtype, x.shape[0], x.shape[2]);
  shapes::expect_like(kOp, "out", out, x);
  expect_dropout(kOp, dropout);
}

void PositionBackward::check() const {
  constexpr const char* kOp = kSpan.name;
  expect_activation(kOp, "dout", dout);
  shapes::expect_like(kOp, "dx", dx, dout);
  shapes::expect_matrix(kOp, "dpositions", dpositions, DType::f32, dout.shape[0], dout.shape[2]);
  expect_dropout(kOp, dropout);
}

void BiasDropoutAdd::check() const {
  constexpr const char* kOp = kSpan.name;
  expect_activation(kOp, "x", x);
  if (bias) shapes::expect_vector(kOp, "bias", bias, x.dtype, x.shape[2]);
  shapes::expect_like(kOp, "residual", residual, x);
  shapes::expect_like(kOp, "out", out, x);
  expect_dropout(kOp, dropout);
}

void DropoutBackward::check() const {
  expect_activation(kSpan.name, "dout", dout);
  shapes::expect_like(kSpan.name, "dx", dx, dout);
  expect_dropout(kSpan.name, dropout);
}

void CrossEntropyForward::check() const {
  constexpr const char* kOp = kSpan.name;
  shapes::expect_float(kOp, "logits", logits);
  const int64_t n = logits.rows();
  shapes::expect_vector(kOp, "targets", targets, DType::i32, n);
  shapes::expect_vector(kOp, "row_max", row_max, DType::f32, n);
  shapes::expect_vector(kOp, "row_sum", row_sum, DType::f32, n);
  shapes::expect_vector(kOp, "target_logit", target_logit, DType::f32, n);
}

void CrossEntropyRescale::check() const {
  constexpr const char* kOp = kSpan.name;
  const int64_t n = row_max.numel();
  shapes::expect_vector(kOp, "row_max", row_max, DType::f32, n);
  shapes::expect_vector(kOp, "global_max", global_max, DType::f32, n);
  shapes::expect_vector(kOp, "row_sum", row_sum, DType::f32, n);
}

void CrossEntropyLoss::check() const {
  constexpr const char* kOp = kSpan.name;
  const int64_t n = row_max.numel();
  shapes::expect_vector(kOp, "row_max", row_max, DType::f32, n);
  shapes::expect_vector(kOp, "row_sum", row_sum, DType::f32, n);
  shapes::expect_vector(kOp, "target_logit", target_logit, DType::f32, n);
  shapes::expect_vector(kOp, "loss", loss, DType::f32, 1);
}

void CrossEntropyBackward::check() const {
  constexpr const char* kOp = kSpan.name;
  shapes::expect_float(kOp, "logits", logits);
  const int64_t n = logits.rows();
  shapes::expect_vector(kOp, "targets", targets, DType::i32, n);
  shapes::expect_vector(kOp, "row_max", row_max, DType::f32, n);
  shapes::expect_vector(kOp, "row_sum", row_sum, DType::f32, n);
}

void AdamWStep::check() const {
  constexpr const char* kOp = kSpan.name;
  for (const AdamWPiece& piece : pieces) {
    const int64_t n = piece.weight.numel();
    shapes::expect_vector(kOp, "weight", piece.weight, DType::f32, n);
    shapes::expect_vector(kOp, "grad", piece.grad, DType::f32, n);
    shapes::expect_vector(kOp, "m", piece.m, DType::f32, n);
    shapes::expect_vector(kOp, "v", piece.v, DType::f32, n);
    if (piece.model_weight) shapes::expect_vector(kOp, "model_weight", piece.model_weight, DType::bf16, n);
  }
  shapes::expect_vector(kOp, "grad_scale", grad_scale, DType::f32, 1);
  if (proceed) shapes::expect_vector(kOp, "proceed", proceed, DType::f32, 1);
  trivet::check(how.step >= 1, "adamw: step counts from 1");
}

void SumOfSquares::check() const {
  for (const Tensor& x : xs) shapes::expect_vector(kSpan.name, "x", x, DType::f32, x.numel());
  shapes::expect_vector(kSpan.name, "bins", bins, DType::i64, kExactSumBins);
}

void ClipScale::check() const {
  shapes::expect_vector(kSpan.name, "bins", bins, DType::i64, kExactSumBins);
  shapes::expect_vector(kSpan.name, "norm", norm, DType::f32, 1);
  shapes::expect_vector(kSpan.name, "grad_scale", grad_scale, DType::f32, 1);
}

void JudgeStep::check() const {
  trivet::check(numbers.numel() <= static_cast<int64_t>(kJudgedNumbers), "judge_step: more numbers than limits");
  shapes::expect_vector(kSpan.name, "numbers", numbers, DType::f32, numbers.numel());
  shapes::expect_vector(kSpan.name, "proceed", proceed, DType::f32, 1);
}

void FindNonFinite::check() const {
  shapes::expect_vector(kSpan.name, "x", x, DType::f32, x.numel());
  shapes::expect_vector(kSpan.name, "proceed", proceed, DType::f32, 1);
  shapes::expect_vector(kSpan.name, "found", found, DType::i64, kNonFiniteNumbers);
}

void Fill::check() const { shapes::expect_vector(kSpan.name, "x", x, x.dtype, x.numel()); }

void Convert::check() const {
  shapes::expect_vector(kSpan.name, "to", to, to.dtype, from.numel());
  shapes::expect_vector(kSpan.name, "from", from, from.dtype, from.numel());
  if (from.dtype == to.dtype) return;
  shapes::expect_float(kSpan.name, "from", from);
  shapes::expect_float(kSpan.name, "to", to);
}

void Add::check() const {
  shapes::expect_float(kSpan.name, "a", a);
  shapes::expect_vector(kSpan.name, "b", b, a.dtype, a.numel());
  shapes::expect_vector(kSpan.name, "out", out, a.dtype, a.numel());
}

}  // namespace op
}  // namespace trivet
