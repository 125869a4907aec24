// Hooks of the tests. They are defined once, in kernels/cpu_ops.cc: an inline variable would be another one in the
// kernels of each instruction set, whose names the linker hides.
#pragma once

#include <cstdint>

namespace trivet {

// The CPU's GEMMs are cut as if the caches were smaller by this factor: small shapes then take every branch.
extern int64_t gemm_cache_divisor;
// Of a loop that is cut over threads only the last part runs: the end of a tensor of billions of elements costs little.
extern bool only_last_parts;

}  // namespace trivet
