#include "kernels/cpu/kernels.h"

namespace trivet::TRIVET_CPU {

std::unique_ptr<CpuKernels> create_kernels(int threads) { return std::make_unique<Kernels>(threads); }

}  // namespace trivet::TRIVET_CPU
