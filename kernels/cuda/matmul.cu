// GEMMs: cuBLASLt (cuda_gemms.h), and small kernels for the rest: k = 0, shapes without an algorithm, a bf16 bias on an
// fp32 result, and what is no epilogue.
#include "kernels/cuda/column_partials.cuh"
#include "kernels/cuda/cuda_gemms.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/pack.cuh"

namespace trivet {
namespace {

// ---- kernels

// A thread has one element of c. Right for every shape, and slow. bias: null for none.
template <class T, class C>
__global__ void plain_gemm_kernel(const T* a, const T* b, const T* bias, C* c, int64_t m, int64_t n, int64_t k,
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

// f.template operator()<T, C>() for a GEMM's types.
template <class F>
void with_types(DType dtype, DType c_dtype, const F& f) {
  if (dtype == DType::f32) f.template operator()<float, float>();
  else if (c_dtype == DType::f32) f.template operator()<__nv_bfloat16, float>();
  else f.template operator()<__nv_bfloat16, __nv_bfloat16>();
}

}  // namespace

void CudaOps::launch(const op::Matmul& op, cudaStream_t stream) {
  const int64_t m = op.c.rows(), n = op.c.cols(), k = op.transpose_a ? op.a.rows() : op.a.cols();
  if (m * n == 0) return;
  const bool fused_bias = op.bias && op.bias.dtype == op.c.dtype;
  CudaGemm gemm{.m = m,
                .n = n,
                .k = k,
                .transpose_a = op.transpose_a,
                .transpose_b = op.transpose_b,
                .accumulate = op.accumulate,
                .dtype = op.a.dtype,
                .c_dtype = op.c.dtype,
                .a = op.a.data,
                .b = op.b.data,
                .c = op.c.data,
                .bias = fused_bias ? op.bias.data : nullptr,
                .pre_activation = op.pre_activation.data,
                .activation_backward = op.activation_backward.data,
                .activation = op.activation,
                .bias_grad = nullptr,
                .residual = op.residual.data};
  std::byte* const workspace = workspaces_.take(stream, CudaGemms::kWorkspaceBytes + (op.bias_grad ? m * 4 : 0));
  const auto run = [&](const CudaGemmApart* apart) { return k > 0 && gemms_->run(gemm, apart, workspace, stream); };
  // Without an epilogue, after the GEMM.
  const auto rest = [&](const Tensor& bias_grad) {
    if (op.pre_activation) launch(activation_of(op), stream);
    if (op.activation_backward) launch(activation_backward_of(op), stream);
    if (op.bias_grad) launch(op::ColumnSum{op.a, bias_grad}, stream);
    if (op.residual) launch(residual_of(op), stream);
  };
  if (gemm.has_epilogue() || op.bias_grad) {
    CudaGemm plain = gemm;
    plain.residual = nullptr;
    if (op.residual) plain.bias = nullptr;  // added with it
    plain.pre_activation = nullptr;
    plain.activation_backward = nullptr;
    if (op.pre_activation) plain.c = op.pre_activation.data;
    // The library overwrites the sum, so it goes behind its workspace, and is then added.
    const Tensor sum{op.bias_grad ? workspace + CudaGemms::kWorkspaceBytes : nullptr, DType::f32, {m}};
    gemm.bias_grad = op.c.dtype == DType::f32 ? sum.data : nullptr;
    const CudaGemmApart apart{plain, [&] { rest(sum); }};
    if (gemm.has_epilogue() && run(&apart)) {
      if (sum) add_column_partials(sum.as<float>(), 1, m, op.bias_grad.as<float>(), nullptr, stream);
      return;
    }
    gemm = plain;
  }
  const bool done = run(nullptr);
  const Tensor bias = op.residual ? Tensor{} : Tensor(op.bias);
  if (!done || (bias && !fused_bias))
    with_types(op.a.dtype, op.c.dtype, [&]<class T, class C>() {
      const unsigned int grid = blocks(ceil_div(m * n, 256), op.kSpan.name);
      C* const to = static_cast<C*>(gemm.c);
      if (done) launch_kernel(add_bias_kernel<T, C>, {grid, 256, stream}, elements<T>(bias), to, m, n);
      else
        launch_kernel(plain_gemm_kernel<T, C>, {grid, 256, stream}, elements<T>(op.a), elements<T>(op.b),
                      elements<T>(bias), to, m, n, k, op.transpose_a, op.transpose_b, op.accumulate);
    });
  rest(op.bias_grad);
}

}  // namespace trivet
