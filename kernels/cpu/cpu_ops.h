// CpuOps: the operations of kernels/ops.h on the CPU. Each .cc file of this folder computes a few of them.
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

  void run(const AnyOp& op, Stream& stream) override;

 private:
  // In the op's place of its stream, with arguments that it has checked.
  void compute(const op::Matmul& op);  // but for the GELU behind it, which run() makes an op of its own
  void compute(const op::ColumnSum& op);
  void compute(const op::LayernormForward& op);
  void compute(const op::LayernormBackward& op);
  void compute(const op::GeluForward& op);
  void compute(const op::GeluBackward& op);
  void compute(const op::AttentionForward& op);
  void compute(const op::AttentionBackward& op);
  void compute(const op::EmbeddingForward& op);
  void compute(const op::EmbeddingBackward& op);
  void compute(const op::PositionForward& op);
  void compute(const op::PositionBackward& op);
  void compute(const op::BiasDropoutAdd& op);
  void compute(const op::DropoutBackward& op);
  void compute(const op::CrossEntropyForward& op);
  void compute(const op::CrossEntropyRescale& op);
  void compute(const op::CrossEntropyLoss& op);
  void compute(const op::CrossEntropyBackward& op);
  void compute(const op::AdamWStep& op);
  void compute(const op::SumOfSquares& op);
  void compute(const op::ClipScale& op);
  void compute(const op::JudgeStep& op);
  void compute(const op::FindNonFinite& op);
  void compute(const op::Fill& op);
  void compute(const op::Clear& op);
  void compute(const op::Convert& op);
  void compute(const op::Add& op);

  int threads_;
  Workspaces workspaces_;  // of products and attention
};

}  // namespace trivet
