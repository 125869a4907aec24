// CudaOps: the operations of kernels/ops.h on one NVIDIA GPU. Each .cu file of this folder holds a few of them, in
// three sections: device helpers, kernels (raw pointers and sizes), launchers (the methods: checks, grid, launch).
//
// Every call queues its kernels on the stream given and returns; nothing synchronises, but for the first product of
// each shape, which measures the algorithms it may choose from. No kernel of this folder adds floating-point numbers by
// atomics, so a second run gives the same bits (cuDNN's attention: CudaOptions::deterministic). An instance belongs to
// one rank and is used on the thread that made its Device.
#pragma once

#include "kernels/cuda/workspace.h"
#include "kernels/ops.h"

namespace trivet {

struct AttentionArgs;
class CudaProducts;
class CudnnAttention;

class CudaOps : public Ops {
 public:
  CudaOps(Device& device, const CudaOptions& options);
  ~CudaOps() override;

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
  bool by_cudnn(const AttentionArgs& args, DType dtype) const;
  void flash_forward(const AttentionArgs& args, CUstream_st* stream) const;
  void flash_backward(const AttentionArgs& args, CUstream_st* stream) const;

  Device& device_;
  const CudaOptions options_;
  const int multiprocessors_;
  const bool by_hopper_;  // attention that the tensor-core kernels take
  CudaWorkspaces workspaces_;
  std::unique_ptr<CudaProducts> products_;
  std::unique_ptr<CudnnAttention> cudnn_attention_;  // null: not asked for
};

}  // namespace trivet
