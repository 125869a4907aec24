// The one tolerance of numeric tests: how far a result may be from a double-precision reference.
#pragma once

#include <cmath>

#include "kernels/base/dtype.h"

namespace trivet::test {

// c * eps(dtype) * sqrt(n) * scale, for a sum of n terms of magnitude about `scale`, stored in `dtype`.
inline double tolerance(DType dtype, int64_t reduction_length, double scale = 1.0) {
  const double eps = dtype == DType::bf16 ? std::ldexp(1.0, -8) : std::ldexp(1.0, -23);
  return 4.0 * eps * std::sqrt(static_cast<double>(reduction_length)) * scale;
}

}  // namespace trivet::test
