// CpuOps: the operations of kernels/ops.h on the CPU. Each .cc file of this folder holds a few of them.
//
// Matrix products and attention are made of panels (panels.h); the rest are loops that the compiler vectorises. All is
// cut over `threads` OpenMP threads in a fixed way, so that a run repeats bit for bit. An instance belongs to one rank.
#pragma once

#include "kernels/cpu/workspace.h"
#include "kernels/ops.h"

namespace trivet {

class CpuOps : public Ops {
 public:
  explicit CpuOps(int threads);
  int threads() const { return threads_; }

  void matmul(Tensor a, Tensor b, Tensor c, const Matmul& how, Stream& stream) override;
  void column_sum(Tensor x, Tensor sum, Stream& stream) override;
  void layernorm_forward(Tensor x, Tensor gamma, Tensor beta, float eps, Tensor y, Tensor mean, Tensor rstd,
                         Stream& stream) override;
  void layernorm_backward(Tensor dy, Tensor x, Tensor gamma, Tensor mean, Tensor rstd, Tensor residual, Tensor dx,
                          Tensor dgamma, Tensor dbeta, Stream& stream) override;
  void gelu_forward(Tensor x, Tensor y, Stream& stream) override;
  void gelu_backward(Tensor x, Tensor dy, Tensor dx, Stream& stream) override;
  void attention_forward(Tensor qkv, Tensor out, Tensor lse, const Attention& how, Stream& stream) override;
  void attention_backward(Tensor dout, Tensor qkv, Tensor out, Tensor lse, Tensor dqkv, const Attention& how,
                          Stream& stream) override;
  void embedding_forward(Tensor tokens, Tensor table, int64_t first_row, Tensor out, Stream& stream) override;
  void embedding_backward(Tensor tokens, Tensor dout, int64_t first_row, Tensor dtable, Stream& stream) override;
  void position_forward(Tensor x, Tensor positions, const Dropout& dropout, Tensor out, Stream& stream) override;
  void position_backward(Tensor dout, const Dropout& dropout, Tensor dx, Tensor dpositions, Stream& stream) override;
  void bias_dropout_add(Tensor x, Tensor bias, Tensor residual, const Dropout& dropout, Tensor out,
                        Stream& stream) override;
  void dropout_backward(Tensor dout, const Dropout& dropout, Tensor dx, Stream& stream) override;
  void cross_entropy_forward(Tensor logits, Tensor targets, int64_t first_column, int64_t vocab_size, Tensor row_max,
                             Tensor row_sum, Tensor target_logit, Stream& stream) override;
  void cross_entropy_rescale(Tensor row_max, Tensor global_max, Tensor row_sum, Stream& stream) override;
  void cross_entropy_loss(Tensor row_max, Tensor row_sum, Tensor target_logit, float scale, Tensor loss,
                          Stream& stream) override;
  void cross_entropy_backward(Tensor logits, Tensor targets, int64_t first_column, int64_t vocab_size, Tensor row_max,
                              Tensor row_sum, float scale, Stream& stream) override;
  void adamw(std::span<const AdamWPiece> pieces, Tensor grad_scale, Tensor proceed, const AdamW& how,
             Stream& stream) override;
  void sum_of_squares(std::span<const Tensor> xs, Tensor bins, Stream& stream) override;
  void clip_scale(Tensor bins, float multiplier, float max_norm, Tensor norm, Tensor grad_scale,
                  Stream& stream) override;
  void judge_step(Tensor numbers, const StepLimits& limits, Tensor proceed, Stream& stream) override;
  void find_non_finite(Tensor x, Tensor proceed, Tensor found, Stream& stream) override;
  void fill(Tensor x, float value, Stream& stream) override;
  void clear(std::span<const Tensor> xs, Stream& stream) override;
  void convert(Tensor from, Tensor to, Stream& stream) override;
  void add(Tensor a, Tensor b, Tensor out, Stream& stream) override;

 private:
  int threads_;
  Workspaces workspaces_;  // of products and attention
};

}  // namespace trivet
