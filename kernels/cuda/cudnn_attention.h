// CudnnAttention: attention_forward and attention_backward of one shape by cuDNN's fused kernels. Plans are made when
// an instance is, which takes seconds (the library is loaded, kernels are compiled); a run queues one of them. Without
// dropout: cuDNN draws from a generator of its own, so the mask would be another one than trivet::Dropout names.
//
// An instance belongs to one CudaOps, and to its thread. no_cudnn.cc is the twin in a build without cuDNN.
#pragma once

#include <cstddef>
#include <memory>

#include "kernels/ops.h"

struct CUstream_st;

namespace trivet {

struct AttentionArgs;

class CudnnAttention {
 public:
  virtual ~CudnnAttention() = default;
  // Bytes of workspace that forward() and backward() are to be given.
  virtual int64_t forward_bytes() const = 0;
  virtual int64_t backward_bytes() const = 0;
  // Queues it. The tensors of `args` are aligned to 16 bytes.
  virtual void forward(const AttentionArgs& args, std::byte* workspace, CUstream_st* stream) = 0;
  virtual void backward(const AttentionArgs& args, std::byte* workspace, CUstream_st* stream) = 0;
};

bool built_with_cudnn();

// On the current GPU. Throws ConfigError where cuDNN is not there, is too old, or has no kernel for the shape.
std::unique_ptr<CudnnAttention> create_cudnn_attention(const AttentionShape& shape, bool deterministic);

}  // namespace trivet
