// WrappedOps: the one list of all operations, for what stands before other operations and does the same with each
// call: notes it, maps its tensors. Self derives from WrappedOps<Self> and has two templates, which may be private,
//   void call(const char* name, Op op, Stream& stream, const Arguments&... arguments);
//   void call_once_a_step(…the same…);  // for those of the optimizer, and others that take lists
// op: the member of Ops that was called, arguments: all that it was given but the stream. It is called as an Ops.
#pragma once

#include "kernels/ops.h"

namespace trivet {

template <class Self>
class WrappedOps : public Ops {
 private:
  void matmul(Tensor a, Tensor b, Tensor c, const Matmul& how, Stream& stream) override {
    self().call(__func__, &Ops::matmul, stream, a, b, c, how);
  }
  void column_sum(Tensor x, Tensor sum, Stream& stream) override {
    self().call(__func__, &Ops::column_sum, stream, x, sum);
  }
  void layernorm_forward(Tensor x, Tensor gamma, Tensor beta, float eps, Tensor y, Tensor mean, Tensor rstd,
                         Stream& stream) override {
    self().call(__func__, &Ops::layernorm_forward, stream, x, gamma, beta, eps, y, mean, rstd);
  }
  void layernorm_backward(Tensor dy, Tensor x, Tensor gamma, Tensor mean, Tensor rstd, Tensor residual, Tensor dx,
                          Tensor dgamma, Tensor dbeta, Stream& stream) override {
    self().call(__func__, &Ops::layernorm_backward, stream, dy, x, gamma, mean, rstd, residual, dx, dgamma, dbeta);
  }
  void gelu_forward(Tensor x, Tensor y, Stream& stream) override {
    self().call(__func__, &Ops::gelu_forward, stream, x, y);
  }
  void gelu_backward(Tensor x, Tensor dy, Tensor dx, Stream& stream) override {
    self().call(__func__, &Ops::gelu_backward, stream, x, dy, dx);
  }
  void attention_forward(Tensor qkv, Tensor out, Tensor lse, const Attention& how, Stream& stream) override {
    self().call(__func__, &Ops::attention_forward, stream, qkv, out, lse, how);
  }
  void attention_backward(Tensor dout, Tensor qkv, Tensor out, Tensor lse, Tensor dqkv, const Attention& how,
                          Stream& stream) override {
    self().call(__func__, &Ops::attention_backward, stream, dout, qkv, out, lse, dqkv, how);
  }
  void embedding_forward(Tensor tokens, Tensor table, int64_t first_row, Tensor out, Stream& stream) override {
    self().call(__func__, &Ops::embedding_forward, stream, tokens, table, first_row, out);
  }
  void embedding_backward(Tensor tokens, Tensor dout, int64_t first_row, Tensor dtable, Stream& stream) override {
    self().call(__func__, &Ops::embedding_backward, stream, tokens, dout, first_row, dtable);
  }
  void position_forward(Tensor x, Tensor positions, const Dropout& dropout, Tensor out, Stream& stream) override {
    self().call(__func__, &Ops::position_forward, stream, x, positions, dropout, out);
  }
  void position_backward(Tensor dout, const Dropout& dropout, Tensor dx, Tensor dpositions, Stream& stream) override {
    self().call(__func__, &Ops::position_backward, stream, dout, dropout, dx, dpositions);
  }
  void bias_dropout_add(Tensor x, Tensor bias, Tensor residual, const Dropout& dropout, Tensor out,
                        Stream& stream) override {
    self().call(__func__, &Ops::bias_dropout_add, stream, x, bias, residual, dropout, out);
  }
  void dropout_backward(Tensor dout, const Dropout& dropout, Tensor dx, Stream& stream) override {
    self().call(__func__, &Ops::dropout_backward, stream, dout, dropout, dx);
  }
  void cross_entropy_forward(Tensor logits, Tensor targets, int64_t first_column, int64_t vocab_size, Tensor row_max,
                             Tensor row_sum, Tensor target_logit, Stream& stream) override {
    self().call(__func__, &Ops::cross_entropy_forward, stream, logits, targets, first_column, vocab_size, row_max,
                row_sum, target_logit);
  }
  void cross_entropy_rescale(Tensor row_max, Tensor global_max, Tensor row_sum, Stream& stream) override {
    self().call(__func__, &Ops::cross_entropy_rescale, stream, row_max, global_max, row_sum);
  }
  void cross_entropy_loss(Tensor row_max, Tensor row_sum, Tensor target_logit, float scale, Tensor loss,
                          Stream& stream) override {
    self().call(__func__, &Ops::cross_entropy_loss, stream, row_max, row_sum, target_logit, scale, loss);
  }
  void cross_entropy_backward(Tensor logits, Tensor targets, int64_t first_column, int64_t vocab_size, Tensor row_max,
                              Tensor row_sum, float scale, Stream& stream) override {
    self().call(__func__, &Ops::cross_entropy_backward, stream, logits, targets, first_column, vocab_size, row_max,
                row_sum, scale);
  }
  void adamw(std::span<const AdamWPiece> pieces, Tensor grad_scale, Tensor proceed, const AdamW& how,
             Stream& stream) override {
    void (Ops::*const op)(std::span<const AdamWPiece>, Tensor, Tensor, const AdamW&, Stream&) = &Ops::adamw;
    self().call_once_a_step(__func__, op, stream, pieces, grad_scale, proceed, how);
  }
  void sum_of_squares(std::span<const Tensor> xs, Tensor bins, Stream& stream) override {
    void (Ops::*const op)(std::span<const Tensor>, Tensor, Stream&) = &Ops::sum_of_squares;
    self().call_once_a_step(__func__, op, stream, xs, bins);
  }
  void clip_scale(Tensor bins, float multiplier, float max_norm, Tensor norm, Tensor grad_scale,
                  Stream& stream) override {
    self().call_once_a_step(__func__, &Ops::clip_scale, stream, bins, multiplier, max_norm, norm, grad_scale);
  }
  void judge_step(Tensor numbers, const StepLimits& limits, Tensor proceed, Stream& stream) override {
    self().call_once_a_step(__func__, &Ops::judge_step, stream, numbers, limits, proceed);
  }
  void find_non_finite(Tensor x, Tensor proceed, Tensor found, Stream& stream) override {
    self().call_once_a_step(__func__, &Ops::find_non_finite, stream, x, proceed, found);
  }
  void clear(std::span<const Tensor> xs, Stream& stream) override {
    self().call_once_a_step(__func__, &Ops::clear, stream, xs);
  }
  void fill(Tensor x, float value, Stream& stream) override { self().call(__func__, &Ops::fill, stream, x, value); }
  void convert(Tensor from, Tensor to, Stream& stream) override {
    self().call(__func__, &Ops::convert, stream, from, to);
  }
  void add(Tensor a, Tensor b, Tensor out, Stream& stream) override {
    self().call(__func__, &Ops::add, stream, a, b, out);
  }

  Self& self() { return static_cast<Self&>(*this); }
};

}  // namespace trivet
