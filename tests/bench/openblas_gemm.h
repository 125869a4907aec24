// The GEMM of op::Matmul computed by OpenBLAS, for comparison: fp32 only. Null in a build without OpenBLAS.
#pragma once

#include <functional>

#include "tests/support/matmul_options.h"

#ifdef TRIVET_BENCH_OPENBLAS
#include <cblas.h>
#endif

namespace trivet {

#ifdef TRIVET_BENCH_OPENBLAS

constexpr bool kOpenBlas = true;

inline std::function<void()> openblas_gemm(Tensor a, Tensor b, Tensor c, const test::MatmulOptions& how, int threads) {
  if (a.dtype != DType::f32 || c.dtype != DType::f32) return nullptr;
  openblas_set_num_threads(threads);
  return [=] {
    const auto size = [](int64_t n) { return static_cast<blasint>(n); };
    cblas_sgemm(CblasRowMajor, how.transpose_a ? CblasTrans : CblasNoTrans, how.transpose_b ? CblasTrans : CblasNoTrans,
                size(c.rows()), size(c.cols()), size(how.transpose_a ? a.rows() : a.cols()), 1.0f, a.as<float>(),
                size(a.cols()), b.as<float>(), size(b.cols()), how.accumulate ? 1.0f : 0.0f, c.as<float>(),
                size(c.cols()));
  };
}

#else

constexpr bool kOpenBlas = false;
inline std::function<void()> openblas_gemm(Tensor, Tensor, Tensor, const test::MatmulOptions&, int) { return nullptr; }

#endif

}  // namespace trivet
