#include "kernels/cpu/cpu_ops.h"

namespace trivet {

CpuOps::CpuOps(int threads) : threads_(threads) { check(threads >= 1, "CpuOps needs at least one thread"); }

std::unique_ptr<Ops> create_cpu_ops(int threads) { return std::make_unique<CpuOps>(threads); }

}  // namespace trivet
