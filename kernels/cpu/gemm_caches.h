// A hook of the tests.
#pragma once

#include <cstdint>

namespace trivet {

// The CPU's GEMMs are cut as if the caches were smaller by this factor: small shapes then take every branch.
inline int64_t gemm_cache_divisor = 1;

}  // namespace trivet
