// Hooks for the tests. They are defined once, in kernels/cpu_ops.cc: an inline variable would be a separate one in each
// instruction set's kernels, whose names the linker hides.
#pragma once

#include <cstdint>

namespace trivet {

// The CPU's GEMMs are blocked as if the caches were smaller by this factor, so that small shapes take every branch.
extern int64_t gemm_cache_divisor;
// Only the last part of a loop over threads runs: a cheap test of the end of a tensor with billions of elements.
extern bool only_last_parts;

}  // namespace trivet
