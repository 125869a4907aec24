// Test hooks, defined once in kernels/cpu_ops.cc: an inline variable would be duplicated in each instruction set's
// kernels, whose symbols the linker hides.
#pragma once

#include <cstdint>

namespace trivet {

// CPU GEMMs are blocked as if the caches were smaller by this factor, so that small shapes exercise every branch.
extern int64_t gemm_cache_divisor;
// Runs only the last part of each parallel loop: a cheap way to test the end of a tensor with billions of elements.
extern bool only_last_parts;

}  // namespace trivet
