// Causal multi-head self-attention: the ops. The kernels are in attention_flash*.cu and attention_plain.cu, or cuDNN's.
#include <cmath>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/cudnn_attention.h"
#include "kernels/cuda/launch.h"

namespace trivet {
namespace {

AttentionArgs arguments_of(const Tensor& qkv, const Tensor& out, const Tensor& lse, int64_t heads,
                           const Dropout& dropout) {
  const int64_t d = qkv.shape[2] / (3 * heads);
  return {.qkv = qkv.data,
          .out = out.data,
          .lse = lse.as<float>(),
          .dout = nullptr,
          .dqkv = nullptr,
          .delta = nullptr,
          .s = qkv.shape[0],
          .b = qkv.shape[1],
          .heads = heads,
          .d = d,
          .scale = 1.0f / std::sqrt(static_cast<float>(d)),
          .dropout = dropout};
}

// Whether the tensor-core kernels take it: by type, head size and alignment.
template <class... Tensors>
bool by_flash(const char* op, const AttentionArgs& args, DType dtype, const Tensors&... tensors) {
  if (flash_attention_has(dtype, args.d) && aligned(tensors...)) return true;
  if (args.d > kPlainAttentionColumns)
    fail(std::string(op) + ": heads of " + std::to_string(args.d) + " columns, expected at most " +
         std::to_string(kPlainAttentionColumns));
  return false;
}

}  // namespace

bool CudaOps::by_cudnn(const AttentionArgs& args, DType dtype) const {
  const AttentionShape shape{.s = args.s, .b = args.b, .heads = args.heads, .d = args.d, .dtype = dtype};
  return cudnn_attention_ && shape == options_.cudnn_attention && args.dropout.probability == 0;
}

void CudaOps::flash_forward(const AttentionArgs& args, CUstream_st* stream) const {
  if (by_hopper_) hopper_attention_forward(args, multiprocessors_, stream);
  else flash_attention_forward(args, stream);
}

void CudaOps::flash_backward(const AttentionArgs& args, CUstream_st* stream) const {
  if (by_hopper_) {
    hopper_attention_backward_keys(args, multiprocessors_, stream);
    hopper_attention_backward_queries(args, multiprocessors_, stream);
  } else {
    flash_attention_backward(args, stream);
  }
}

void CudaOps::launch(const op::AttentionForward& op, cudaStream_t stream) {
  if (op.qkv.numel() == 0) return;
  const AttentionArgs args = arguments_of(op.qkv, op.out, op.lse, op.heads, op.dropout);
  const DType dtype = op.qkv.dtype;
  if (by_cudnn(args, dtype) && aligned(op.qkv, op.out, op.lse))
    cudnn_attention_->forward(args, workspaces_.take(stream, cudnn_attention_->forward_bytes()), stream);
  else if (by_flash(op.kSpan.name, args, dtype, op.qkv, op.out)) flash_forward(args, stream);
  else plain_attention_forward(dtype, args, stream);
}

void CudaOps::launch(const op::AttentionBackward& op, cudaStream_t stream) {
  if (op.qkv.numel() == 0) return;
  AttentionArgs args = arguments_of(op.qkv, op.out, op.lse, op.heads, op.dropout);
  const DType dtype = op.qkv.dtype;
  args.dout = op.dout.data;
  args.dqkv = op.dqkv.data;
  if (by_cudnn(args, dtype) && aligned(op.dout, op.qkv, op.out, op.lse, op.dqkv)) {
    cudnn_attention_->backward(args, workspaces_.take(stream, cudnn_attention_->backward_bytes()), stream);
    return;
  }
  args.delta = reinterpret_cast<float*>(workspaces_.take(stream, op.lse.bytes()));
  attention_delta(dtype, args, stream);
  if (by_flash(op.kSpan.name, args, dtype, op.qkv, op.dout, op.dqkv)) flash_backward(args, stream);
  else plain_attention_backward(dtype, args, stream);
}

}  // namespace trivet
