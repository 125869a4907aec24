// CUDA ops on host tensors, so that op tests run unchanged on both back ends: each call copies its tensors to the GPU,
// runs there, synchronises, and copies all of them back.
//
// On the GPU, a tensor lies between two guards whose bytes must come back unchanged, and at the same offset modulo 256
// bytes as on the host, so that kernels see unaligned slices. Tensors of a call that alias on the host alias on the
// GPU.
#pragma once

#include <memory>

#include "kernels/ops.h"

namespace trivet::test {

// The number of threads that selects the GPU.
inline constexpr int kOnCuda = 0;

// The instruction set of the CPU ops under test: TRIVET_TEST_CPU_ISA in the environment, or this machine's best.
CpuIsa tested_cpu_isa();

// CPU ops with `threads` threads, or, for kOnCuda, CUDA ops on the first GPU with these options (null if there is
// no GPU).
std::unique_ptr<Ops> create_test_ops(int threads, const CudaOptions& options = {});

// True if the first GPU is emulated on the CPU (tests/emulation): large shapes are slow.
bool gpu_is_emulated();

}  // namespace trivet::test
