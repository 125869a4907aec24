// The peak that MFU is measured against on a CPU: what a matrix product reaches here at its best.
#pragma once

#include "kernels/ops.h"

namespace trivet {

// TFLOP/s of the fastest of a few large products in `dtype` on `ops`; takes less than a second.
double measure_gemm_peak_tflops(Device& device, Ops& ops, DType dtype);

}  // namespace trivet
