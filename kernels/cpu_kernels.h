// CpuKernels: the arithmetic of all ops for one instruction set. kernels/cpu implements it, once for each CpuIsa.
#pragma once

#include <memory>

#include "kernels/cpu_isa.h"
#include "kernels/ops.h"

namespace trivet {

// Computes synchronously, on arguments already checked, with `threads` OpenMP threads including the caller's. An
// instance belongs to one rank; any thread may call it. Matmul is computed without its epilogue.
class CpuKernels {
 public:
  virtual ~CpuKernels() = default;
#define TRIVET_COMPUTE(Op) compute(const op::Op& op) = 0
  virtual void TRIVET_OPS(TRIVET_COMPUTE);
#undef TRIVET_COMPUTE
};

// REQUIRES: cpu_isa_problem(isa) is empty.
std::unique_ptr<CpuKernels> create_cpu_kernels(CpuIsa isa, int threads);

}  // namespace trivet
