// The kernels of GELU (activation.cu), for an op that queues them within a span of its own.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/base/tensor.h"

namespace trivet {

// y = gelu(x). x, y: [n, c] T on the device.
void launch_gelu_forward(const Tensor& x, const Tensor& y, cudaStream_t stream);
// dx = dy * gelu'(x). dx may be dy.
void launch_gelu_backward(const Tensor& x, const Tensor& dy, const Tensor& dx, cudaStream_t stream);

}  // namespace trivet
