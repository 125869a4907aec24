#include "kernels/cpu/cpu_ops.h"

namespace trivet {

std::unique_ptr<Ops> create_cpu_ops(int threads) { return std::make_unique<CpuOps>(threads); }

}  // namespace trivet
