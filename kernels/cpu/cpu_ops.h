// CpuOps: the operations of kernels/ops.h on the CPU. Each .cc file of this folder computes a few of them.
//
// GEMM and attention are made of panels (panels.h); the rest are loops that the compiler vectorises. All are split over
// `threads` OpenMP threads in a fixed way, so that a run repeats bit for bit. An instance belongs to one rank.
#pragma once

#include "kernels/cpu/workspace.h"
#include "kernels/ops.h"

namespace trivet {

class CpuOps : public Ops {
 public:
  explicit CpuOps(int threads);
  int threads() const { return threads_; }

  void run(const AnyOp& op, Stream& stream) override;

 private:
  // void compute(const op::Matmul& op), and so on: in the op's place of its stream, with arguments that are checked. A
  // matmul leaves out its GELU epilogue, which run() makes an op of its own.
#define TRIVET_COMPUTE(Op) compute(const op::Op& op)
  void TRIVET_OPS(TRIVET_COMPUTE);

  int threads_;
  Workspaces workspaces_;  // of GEMM and attention
};

}  // namespace trivet
