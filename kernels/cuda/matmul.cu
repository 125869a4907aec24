// Matrix products: cuBLASLt (cuda_products.h), and small kernels for what it leaves: sums of nothing, shapes without an
// algorithm, a bf16 bias on an fp32 result, and a GELU where it does not fit into the product.
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/cuda_products.h"
#include "kernels/cuda/gelu.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/pack.cuh"
#include "kernels/op_checks.h"

namespace trivet {
namespace {

// ---- kernels

// A thread has one element of c. Right for every shape, and slow. bias: null for none.
template <class T, class C>
__global__ void plain_product_kernel(const T* a, const T* b, const T* bias, C* c, int64_t m, int64_t n, int64_t k,
                                     bool transpose_a, bool transpose_b, bool accumulate) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= m * n) return;
  const int64_t row = i / n, column = i % n;
  float sum = 0;
  for (int64_t l = 0; l < k; ++l)
    sum += to_float(a[transpose_a ? l * m + row : row * k + l]) *
           to_float(b[transpose_b ? column * k + l : l * n + column]);
  if (accumulate) sum += to_float(c[i]);
  if (bias) sum += to_float(bias[column]);
  c[i] = from_float<C>(sum);
}

// A thread has one element: c[m, n] += bias[n].
template <class T, class C>
__global__ void add_bias_kernel(const T* bias, C* c, int64_t m, int64_t n) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < m * n) c[i] = from_float<C>(to_float(c[i]) + to_float(bias[i % n]));
}

// ---- launchers

// f.template operator()<T, C>() for a product's types.
template <class F>
void with_types(DType dtype, DType c_dtype, const F& f) {
  if (dtype == DType::f32) f.template operator()<float, float>();
  else if (c_dtype == DType::f32) f.template operator()<__nv_bfloat16, float>();
  else f.template operator()<__nv_bfloat16, __nv_bfloat16>();
}

}  // namespace

void CudaOps::matmul(Tensor a, Tensor b, Tensor c, const Matmul& how, Stream& stream) {
  shapes::check_matmul(a, b, c, how);
  const int64_t m = c.rows(), n = c.cols(), k = how.transpose_a ? a.rows() : a.cols();
  if (m * n == 0) return;
  enqueue(stream, {"matmul", Category::compute}, [&](cudaStream_t raw_stream) {
    const bool fused_bias = how.bias && how.bias.dtype == c.dtype;
    CudaProduct product{.m = m,
                        .n = n,
                        .k = k,
                        .transpose_a = how.transpose_a,
                        .transpose_b = how.transpose_b,
                        .accumulate = how.accumulate,
                        .dtype = a.dtype,
                        .c_dtype = c.dtype,
                        .a = a.data,
                        .b = b.data,
                        .c = c.data,
                        .bias = fused_bias ? how.bias.data : nullptr,
                        .before_gelu = how.before_gelu.data,
                        .gelu_backward = how.gelu_backward.data};
    const auto run = [&] {
      return k > 0 && products_->run(product, workspaces_.take(stream, CudaProducts::kWorkspaceBytes), raw_stream);
    };
    if (product.has_gelu()) {
      if (run()) return;
      product.before_gelu = nullptr;
      product.gelu_backward = nullptr;
      if (how.before_gelu) product.c = how.before_gelu.data;
    }
    const bool done = run();
    if (!done || (how.bias && !fused_bias))
      with_types(a.dtype, c.dtype, [&]<class T, class C>() {
        const unsigned int grid = blocks(ceil_div(m * n, 256), "matmul");
        const T* const bias = static_cast<const T*>(how.bias.data);
        C* const to = static_cast<C*>(product.c);
        if (done) launch_kernel(add_bias_kernel<T, C>, {grid, 256, raw_stream}, bias, to, m, n);
        else
          launch_kernel(plain_product_kernel<T, C>, {grid, 256, raw_stream}, static_cast<const T*>(a.data),
                        static_cast<const T*>(b.data), bias, to, m, n, k, how.transpose_a, how.transpose_b,
                        how.accumulate);
      });
    if (how.before_gelu) launch_gelu_forward(how.before_gelu, c, raw_stream);
    if (how.gelu_backward) launch_gelu_backward(how.gelu_backward, c, c, raw_stream);
  });
}

}  // namespace trivet
