// What each op asks of its arguments, the same for every back end: the contracts of kernels/ops.h as code. Each check
// throws Error, in the words of shapes.h, before the op is queued.
#pragma once

#include "kernels/ops.h"
#include "kernels/shapes.h"

namespace trivet::shapes {

inline void expect_dropout(const char* op, const Dropout& dropout) {
  const float p = dropout.probability;
  if (!(p >= 0 && p < 1)) [[unlikely]]
    fail(std::string(op) + ": dropout probability is " + std::to_string(p) + ", expected [0, 1)");
  if (p > 0) expect_vector(op, "dropout.first_sample", dropout.first_sample, DType::i64, 1);
}

inline void check_layernorm_forward(const Tensor& x, const Tensor& gamma, const Tensor& beta, const Tensor& y,
                                    const Tensor& mean, const Tensor& rstd) {
  constexpr const char* kOp = "layernorm_forward";
  expect_float(kOp, "x", x);
  const int64_t n = x.rows(), h = x.cols();
  expect_vector(kOp, "gamma", gamma, x.dtype, h);
  expect_vector(kOp, "beta", beta, x.dtype, h);
  expect_like(kOp, "y", y, x);
  expect_vector(kOp, "mean", mean, DType::f32, n);
  expect_vector(kOp, "rstd", rstd, DType::f32, n);
}

inline void check_layernorm_backward(const Tensor& dy, const Tensor& x, const Tensor& gamma, const Tensor& mean,
                                     const Tensor& rstd, const Tensor& residual, const Tensor& dx, const Tensor& dgamma,
                                     const Tensor& dbeta) {
  constexpr const char* kOp = "layernorm_backward";
  expect_float(kOp, "x", x);
  const int64_t n = x.rows(), h = x.cols();
  expect_like(kOp, "dy", dy, x);
  expect_vector(kOp, "gamma", gamma, x.dtype, h);
  expect_vector(kOp, "mean", mean, DType::f32, n);
  expect_vector(kOp, "rstd", rstd, DType::f32, n);
  if (residual) expect_like(kOp, "residual", residual, x);
  expect_like(kOp, "dx", dx, x);
  expect_vector(kOp, "dgamma", dgamma, DType::f32, h);
  expect_vector(kOp, "dbeta", dbeta, DType::f32, h);
}

inline void check_cross_entropy_forward(const Tensor& logits, const Tensor& targets, const Tensor& row_max,
                                        const Tensor& row_sum, const Tensor& target_logit) {
  constexpr const char* kOp = "cross_entropy_forward";
  expect_float(kOp, "logits", logits);
  const int64_t n = logits.rows();
  expect_vector(kOp, "targets", targets, DType::i32, n);
  expect_vector(kOp, "row_max", row_max, DType::f32, n);
  expect_vector(kOp, "row_sum", row_sum, DType::f32, n);
  expect_vector(kOp, "target_logit", target_logit, DType::f32, n);
}

inline void check_cross_entropy_rescale(const Tensor& row_max, const Tensor& global_max, const Tensor& row_sum) {
  constexpr const char* kOp = "cross_entropy_rescale";
  const int64_t n = row_max.numel();
  expect_vector(kOp, "row_max", row_max, DType::f32, n);
  expect_vector(kOp, "global_max", global_max, DType::f32, n);
  expect_vector(kOp, "row_sum", row_sum, DType::f32, n);
}

inline void check_cross_entropy_loss(const Tensor& row_max, const Tensor& row_sum, const Tensor& target_logit,
                                     const Tensor& loss) {
  constexpr const char* kOp = "cross_entropy_loss";
  const int64_t n = row_max.numel();
  expect_vector(kOp, "row_max", row_max, DType::f32, n);
  expect_vector(kOp, "row_sum", row_sum, DType::f32, n);
  expect_vector(kOp, "target_logit", target_logit, DType::f32, n);
  expect_vector(kOp, "loss", loss, DType::f32, 1);
}

inline void check_cross_entropy_backward(const Tensor& logits, const Tensor& targets, const Tensor& row_max,
                                         const Tensor& row_sum) {
  constexpr const char* kOp = "cross_entropy_backward";
  expect_float(kOp, "logits", logits);
  const int64_t n = logits.rows();
  expect_vector(kOp, "targets", targets, DType::i32, n);
  expect_vector(kOp, "row_max", row_max, DType::f32, n);
  expect_vector(kOp, "row_sum", row_sum, DType::f32, n);
}

inline void check_adamw(std::span<const Ops::AdamWPiece> pieces, const Tensor& grad_scale, const Tensor& proceed,
                        const AdamW& how) {
  constexpr const char* kOp = "adamw";
  for (const Ops::AdamWPiece& piece : pieces) {
    const int64_t n = piece.weight.numel();
    expect_vector(kOp, "weight", piece.weight, DType::f32, n);
    expect_vector(kOp, "grad", piece.grad, DType::f32, n);
    expect_vector(kOp, "m", piece.m, DType::f32, n);
    expect_vector(kOp, "v", piece.v, DType::f32, n);
    if (piece.model_weight) expect_vector(kOp, "model_weight", piece.model_weight, DType::bf16, n);
  }
  expect_vector(kOp, "grad_scale", grad_scale, DType::f32, 1);
  if (proceed) expect_vector(kOp, "proceed", proceed, DType::f32, 1);
  check(how.step >= 1, "adamw: step counts from 1");
}

inline void check_sum_of_squares(std::span<const Tensor> xs, const Tensor& bins) {
  constexpr const char* kOp = "sum_of_squares";
  for (const Tensor& x : xs) expect_vector(kOp, "x", x, DType::f32, x.numel());
  expect_vector(kOp, "bins", bins, DType::i64, kExactSumBins);
}

inline void check_judge_step(const Tensor& numbers, const Tensor& proceed) {
  constexpr const char* kOp = "judge_step";
  check(numbers.numel() <= static_cast<int64_t>(Ops::kJudgedNumbers), "judge_step: more numbers than limits");
  expect_vector(kOp, "numbers", numbers, DType::f32, numbers.numel());
  expect_vector(kOp, "proceed", proceed, DType::f32, 1);
}

inline void check_find_non_finite(const Tensor& x, const Tensor& proceed, const Tensor& found) {
  constexpr const char* kOp = "find_non_finite";
  expect_vector(kOp, "x", x, DType::f32, x.numel());
  expect_vector(kOp, "proceed", proceed, DType::f32, 1);
  expect_vector(kOp, "found", found, DType::i64, kNonFiniteNumbers);
}

inline void check_gelu_backward(const Tensor& x, const Tensor& dy, const Tensor& dx) {
  constexpr const char* kOp = "gelu_backward";
  expect_float(kOp, "x", x);
  expect_like(kOp, "dy", dy, x);
  expect_like(kOp, "dx", dx, x);
}

inline void check_embedding_backward(const Tensor& tokens, const Tensor& dout, const Tensor& dtable) {
  constexpr const char* kOp = "embedding_backward";
  expect_float(kOp, "dout", dout);
  const int64_t n = tokens.numel(), h = dout.cols(), table_rows = dtable.rows();
  expect_vector(kOp, "tokens", tokens, DType::i32, n);
  expect_matrix(kOp, "dout", dout, dout.dtype, n, h);
  expect_matrix(kOp, "dtable", dtable, DType::f32, table_rows, h);
}

inline void check_position_forward(const Tensor& x, const Tensor& positions, const Dropout& dropout,
                                   const Tensor& out) {
  constexpr const char* kOp = "position_forward";
  expect_float(kOp, "x", x);
  expect_rank(kOp, "x", x, x.dtype, 3);
  const int64_t s = x.shape[0], h = x.shape[2];
  expect_matrix(kOp, "positions", positions, x.dtype, s, h);
  expect_like(kOp, "out", out, x);
  expect_dropout(kOp, dropout);
}

inline void check_position_backward(const Tensor& dout, const Dropout& dropout, const Tensor& dx,
                                    const Tensor& dpositions) {
  constexpr const char* kOp = "position_backward";
  expect_float(kOp, "dout", dout);
  expect_rank(kOp, "dout", dout, dout.dtype, 3);
  const int64_t s = dout.shape[0], h = dout.shape[2];
  expect_like(kOp, "dx", dx, dout);
  expect_matrix(kOp, "dpositions", dpositions, DType::f32, s, h);
  expect_dropout(kOp, dropout);
}

inline void check_clip_scale(const Tensor& bins, const Tensor& norm, const Tensor& grad_scale) {
  constexpr const char* kOp = "clip_scale";
  expect_vector(kOp, "bins", bins, DType::i64, kExactSumBins);
  expect_vector(kOp, "norm", norm, DType::f32, 1);
  expect_vector(kOp, "grad_scale", grad_scale, DType::f32, 1);
}

inline void check_add(const Tensor& a, const Tensor& b, const Tensor& out) {
  constexpr const char* kOp = "add";
  expect_float(kOp, "a", a);
  expect_vector(kOp, "b", b, a.dtype, a.numel());
  expect_vector(kOp, "out", out, a.dtype, a.numel());
}

inline void check_matmul(const Tensor& a, const Tensor& b, const Tensor& c, const Ops::Matmul& how) {
  expect_float("matmul", "a", a);
  const int64_t m = how.transpose_a ? a.cols() : a.rows(), k = how.transpose_a ? a.rows() : a.cols();
  expect_float("matmul", "b", b);
  const int64_t n = how.transpose_b ? b.rows() : b.cols();
  expect_matrix("matmul", "b", b, a.dtype, how.transpose_b ? n : k, how.transpose_b ? k : n);
  expect_float("matmul", "c", c);
  expect_matrix("matmul", "c", c, c.dtype == DType::f32 ? DType::f32 : a.dtype, m, n);
  if (how.bias) {
    expect_vector("matmul", "bias", how.bias, a.dtype, n);
    if (how.accumulate) fail("matmul: a bias cannot be added when accumulating");
  }
  if (!how.before_gelu && !how.gelu_backward) return;
  if (how.before_gelu) expect_matrix("matmul", "before_gelu", how.before_gelu, a.dtype, m, n);
  if (how.gelu_backward) expect_matrix("matmul", "gelu_backward", how.gelu_backward, a.dtype, m, n);
  expect_matrix("matmul", "c", c, a.dtype, m, n);
  if (how.accumulate) fail("matmul: a GELU cannot be taken of a sum that accumulates");
  if (how.before_gelu && how.gelu_backward) fail("matmul: before_gelu and gelu_backward cannot go together");
  if (how.gelu_backward && how.bias) fail("matmul: a bias cannot be added before gelu_backward");
}

}  // namespace trivet::shapes
