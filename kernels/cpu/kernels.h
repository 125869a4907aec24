// Kernels: the ops of kernels/ops.h on the CPU. Each .cc file in this folder implements a few of them.
//
// This whole folder is compiled once per instruction set (CpuIsa), with that set's compiler flags, as the namespace
// TRIVET_CPU: cpu_avx2, for example. Code that a compiler may emit wherever it is used (inline functions and templates,
// the standard library's too) would be linked once for the whole program, and might be a copy that an older processor
// cannot run. So CMakeLists.txt combines an instruction set's code into one object, in which only names of its
// namespace stay visible; tests/kernels/isolated_isas.sh checks that. Nothing here may need a static constructor,
// which would run on every processor.
//
// GEMM and attention work on panels (panels.h); the rest are loops over vectors (vector.h). All are split over
// OpenMP threads in a fixed way, so that a run repeats bit for bit.
#pragma once

#include "kernels/cpu_kernels.h"
#include "kernels/workspaces.h"

namespace trivet::TRIVET_CPU {

class Kernels final : public CpuKernels {
 public:
  explicit Kernels(int threads) : threads_(threads) {}

#define TRIVET_COMPUTE(Op) compute(const op::Op& op) override
  void TRIVET_OPS(TRIVET_COMPUTE);
#undef TRIVET_COMPUTE

 private:
  void decode(const Tensor& values, const Tensor& scale, bf16* to) const;

  int threads_;
  Workspaces workspaces_;  // for GEMM and attention
};

// The only function that code outside the namespace calls; kernels/cpu_isa.cc declares it.
std::unique_ptr<CpuKernels> create_kernels(int threads);

}  // namespace trivet::TRIVET_CPU
