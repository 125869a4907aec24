// GELU in the tanh form of GPT-2, as kernels/cpu/activation.cc writes it: with u = sqrt(2 / pi) (x + 0.044715 x^3),
//   gelu(x) = x s,   s = 1 / (1 + e^(-2u)),   gelu'(x) = s + x s (1 - s) 2u'.
// Bound by memory: about 20 instructions an element beside 4 bytes (bf16, forward), where some 27 would fit.
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/gelu.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/pack.cuh"

namespace trivet {
namespace {

// ---- device helpers

// -2u = x (kLinear + kCubic x^2)
constexpr float kLinear = -1.5957691216057308f, kCubic = 0.044715f * kLinear;

__device__ inline float gelu(float x) { return __fdividef(x, 1.0f + __expf(x * (kLinear + kCubic * (x * x)))); }

// Beyond 9 the gradient is 0 or 1 to within 1e-25; further out e would overflow, and e s be NaN. A NaN passes.
__device__ inline float gelu_gradient(float far) {
  const float x = far < -9.0f ? -9.0f : far > 9.0f ? 9.0f : far, x2 = x * x;
  const float e = __expf(x * (kLinear + kCubic * x2)), s = __fdividef(1.0f, 1.0f + e);
  return s - x * (kLinear + 3.0f * kCubic * x2) * s * (e * s);
}

// ---- kernels: a thread has one pack

template <class T>
__global__ void gelu_forward_kernel(const T* x, T* y, int64_t n, bool vectors) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kPack;
  if (i >= n) return;
  Pack pack = load_pack(x, i, n, vectors);
#pragma unroll
  for (int k = 0; k < kPack; ++k) pack.v[k] = gelu(pack.v[k]);
  store_pack(y, i, n, vectors, pack);
}

template <class T>
__global__ void gelu_backward_kernel(const T* x, const T* dy, T* dx, int64_t n, bool vectors) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kPack;
  if (i >= n) return;
  with_flag(is_whole(i, n, vectors), [&](auto whole) {
    const Pack at = load_pack(x, i, n, whole);
    Pack gradient = load_pack(dy, i, n, whole);
#pragma unroll
    for (int k = 0; k < kPack; ++k) gradient.v[k] *= gelu_gradient(at.v[k]);
    store_pack(dx, i, n, whole, gradient);
  });
}

constexpr int kThreads = 256;

}  // namespace

// ---- launchers

void launch_gelu_forward(const Tensor& x, const Tensor& y, cudaStream_t stream) {
  const int64_t n = x.numel();
  if (n == 0) return;
  const unsigned int grid = blocks(ceil_div(n, kThreads * kPack), "gelu_forward");
  dispatch_device(x.dtype, [&]<class T>() {
    launch_kernel(gelu_forward_kernel<T>, {grid, kThreads, stream}, elements<T>(x), elements<T>(y), n, aligned(x, y));
  });
}

void launch_gelu_backward(const Tensor& x, const Tensor& dy, const Tensor& dx, cudaStream_t stream) {
  const int64_t n = x.numel();
  if (n == 0) return;
  const unsigned int grid = blocks(ceil_div(n, kThreads * kPack), "gelu_backward");
  dispatch_device(x.dtype, [&]<class T>() {
    launch_kernel(gelu_backward_kernel<T>, {grid, kThreads, stream}, elements<T>(x), elements<T>(dy), elements<T>(dx),
                  n, aligned(x, dy, dx));
  });
}

void CudaOps::launch(const op::GeluForward& op, cudaStream_t stream) { launch_gelu_forward(op.x, op.y, stream); }

void CudaOps::launch(const op::GeluBackward& op, cudaStream_t stream) {
  launch_gelu_backward(op.x, op.dy, op.dx, stream);
}

}  // namespace trivet
