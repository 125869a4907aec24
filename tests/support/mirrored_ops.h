// CUDA operations on host tensors, so that the tests of ops run unchanged over both back ends: each call copies its
// tensors to the GPU, runs there, synchronises, and copies all of them back.
//
// A tensor lies on the GPU between two guards, whose bytes must come back as they were, and at the same offset from 256
// bytes as on the host, so that slices meet kernels unaligned. Tensors of a call that are one on the host are one
// there.
#pragma once

#include <memory>

#include "kernels/ops.h"

namespace trivet::test {

// The number of threads that asks for the GPU.
inline constexpr int kOnCuda = 0;

// The instruction set of the CPU's ops under test: TRIVET_TEST_CPU_ISA in the environment, or this machine's best.
CpuIsa tested_cpu_isa();

// Ops of the CPU with so many threads, or for kOnCuda CUDA on the first GPU, as the options have it; null where that is
// asked for and there is none.
std::unique_ptr<Ops> create_test_ops(int threads, const CudaOptions& options = {});

// The first GPU is a CPU (tests/emulation): large shapes take long.
bool gpu_is_emulated();

}  // namespace trivet::test
