// Causal multi-head self-attention: the ops. The kernels are in attention_flash*.cu and attention_plain.cu, or cuDNN's.
#include <cmath>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/cudnn_attention.h"
#include "kernels/cuda/launch.h"
#include "kernels/op_checks.h"

namespace trivet {
namespace {

AttentionArgs check_attention(const char* op, const Tensor& qkv, const Tensor& out, const Tensor& lse,
                              const Ops::Attention& how) {
  shapes::expect_float(op, "qkv", qkv);
  if (how.heads < 1 || qkv.shape.rank != 3 || qkv.shape[2] % (3 * how.heads) != 0)
    shapes::mismatch(op, "qkv", qkv, "[s, b, heads * 3 * d] with " + std::to_string(how.heads) + " heads");
  const int64_t s = qkv.shape[0], b = qkv.shape[1], d = qkv.shape[2] / (3 * how.heads);
  shapes::expect_matrix(op, "out", out, qkv.dtype, s * b, how.heads * d);
  shapes::expect_matrix(op, "lse", lse, DType::f32, b * how.heads, s);
  shapes::expect_dropout(op, how.dropout);
  return {.qkv = qkv.data,
          .out = out.data,
          .lse = lse.as<float>(),
          .dout = nullptr,
          .dqkv = nullptr,
          .delta = nullptr,
          .s = s,
          .b = b,
          .heads = how.heads,
          .d = d,
          .scale = 1.0f / std::sqrt(static_cast<float>(d)),
          .dropout = how.dropout};
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

void CudaOps::attention_forward(Tensor qkv, Tensor out, Tensor lse, const Attention& how, Stream& stream) {
  constexpr const char* kOp = "attention_forward";
  const AttentionArgs args = check_attention(kOp, qkv, out, lse, how);
  if (qkv.numel() == 0) return;
  enqueue(stream, {kOp, Category::compute}, [&](cudaStream_t raw_stream) {
    if (by_cudnn(args, qkv.dtype) && aligned(qkv, out, lse))
      cudnn_attention_->forward(args, workspaces_.take(stream, cudnn_attention_->forward_bytes()), raw_stream);
    else if (by_flash(kOp, args, qkv.dtype, qkv, out)) flash_forward(args, raw_stream);
    else plain_attention_forward(qkv.dtype, args, raw_stream);
  });
}

void CudaOps::attention_backward(Tensor dout, Tensor qkv, Tensor out, Tensor lse, Tensor dqkv, const Attention& how,
                                 Stream& stream) {
  constexpr const char* kOp = "attention_backward";
  AttentionArgs args = check_attention(kOp, qkv, out, lse, how);
  shapes::expect_like(kOp, "dout", dout, out);
  shapes::expect_like(kOp, "dqkv", dqkv, qkv);
  if (qkv.numel() == 0) return;
  enqueue(stream, {kOp, Category::compute}, [&](cudaStream_t raw_stream) {
    args.dout = dout.data;
    args.dqkv = dqkv.data;
    if (by_cudnn(args, qkv.dtype) && aligned(dout, qkv, out, lse, dqkv)) {
      cudnn_attention_->backward(args, workspaces_.take(stream, cudnn_attention_->backward_bytes()), raw_stream);
      return;
    }
    args.delta = reinterpret_cast<float*>(workspaces_.take(stream, lse.bytes()));
    attention_delta(qkv.dtype, args, raw_stream);
    if (by_flash(kOp, args, qkv.dtype, qkv, dout, dqkv)) flash_backward(args, raw_stream);
    else plain_attention_backward(qkv.dtype, args, raw_stream);
  });
}

}  // namespace trivet
