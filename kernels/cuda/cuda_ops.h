// CudaOps: the ops of kernels/ops.h on one NVIDIA GPU. Each .cu file in this folder implements a few of them, in
// three sections: device helpers, kernels (raw pointers and sizes), launchers (the methods: grid, launch).
//
// Every call queues its kernels on the given stream and returns. Nothing synchronises, except the first GEMM of
// each shape, which times the candidate algorithms. No kernel in this folder adds floating-point numbers with
// atomics, so a second run gives the same bits. An instance belongs to one rank and is used on the thread that created
// its Device.
#pragma once

#include "kernels/cuda/workspace.h"
#include "kernels/ops.h"

namespace trivet {

struct AttentionArgs;
class CudaGemms;

class CudaOps : public Ops {
 public:
  CudaOps(Device& device, const CudaOptions& options);
  ~CudaOps() override;

  void run(const AnyOp& op, Stream& stream) override;

 private:
  // void launch(const op::Matmul& op, cudaStream_t stream), and so on: queues kernels; arguments are already checked.
#define TRIVET_LAUNCH(Op) launch(const op::Op& op, CUstream_st* stream)
  void TRIVET_OPS(TRIVET_LAUNCH);

  bool by_hopper(const AttentionArgs& args) const;

  Device& device_;
  const CudaOptions options_;
  const int multiprocessors_;
  const bool hopper_;  // uses Hopper's own kernels for attention that the tensor-core kernels support
  CudaWorkspaces workspaces_;
  std::unique_ptr<CudaGemms> gemms_;
};

}  // namespace trivet
