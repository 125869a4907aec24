// Kernels: the ops of kernels/ops.h on the CPU. Each .cc file of this folder computes a few of them.
//
// All of this folder is compiled once for each instruction set (CpuIsa), with its compiler flags, as the namespace
// TRIVET_CPU: cpu_avx2, for example. Code of which a compiler may emit a copy wherever it is used (inline functions,
// templates, the standard library's too) would be linked once for the whole program, and might be the copy that an
// older processor cannot run. Therefore CMakeLists.txt makes one object of an instruction set's code, in which only
// names of its namespace stay visible; tests/kernels/isolated_isas.sh checks that. Nothing here may need a constructor
// before main, which would run on every processor.
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
  Workspaces workspaces_;  // of GEMM and attention
};

// The one function that code outside of the namespace calls, by its declaration in kernels/cpu_isa.cc.
std::unique_ptr<CpuKernels> create_kernels(int threads);

}  // namespace trivet::TRIVET_CPU
