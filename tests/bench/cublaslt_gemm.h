// The GEMM of op::Matmul computed by cuBLASLt alone, for comparison: the fastest of all algorithms that the library
// proposes for the shape, with its own workspace. Null in a build without CUDA.
#pragma once

#include <functional>

#include "tests/support/matmul_options.h"

#ifdef TRIVET_BENCH_CUBLASLT
#include <cublasLt.h>
#include <limits>
#include <memory>
#include <vector>

#include "kernels/base/cuda_device.h"
#endif

namespace trivet {

#ifdef TRIVET_BENCH_CUBLASLT

class CublasLtProduct {
 public:
  // No bias, no GELU. Times the proposed algorithms on the operands, so an accumulating GEMM changes c.
  CublasLtProduct(Tensor a, Tensor b, Tensor c, const test::MatmulOptions& how, Stream& stream)
      : a_data_(a.data), b_data_(b.data), c_data_(c.data), beta_(how.accumulate ? 1 : 0), stream_(raw(stream)) {
    const auto type = [](const Tensor& t) { return t.dtype == DType::f32 ? CUDA_R_32F : CUDA_R_16BF; };
    check(cublasLtCreate(handle_.out()));
    check(cublasLtMatmulDescCreate(desc_.out(), CUBLAS_COMPUTE_32F, CUDA_R_32F));
    // The library is column-major, so it sees the row-major c = a b as c^T = b^T a^T.
    const cublasOperation_t first = how.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t second = how.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    check(cublasLtMatmulDescSetAttribute(desc_, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first));
    check(cublasLtMatmulDescSetAttribute(desc_, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second));
    const auto layout = [&](auto& to, const Tensor& t) {
      check(cublasLtMatrixLayoutCreate(to.out(), type(t), static_cast<uint64_t>(t.cols()),
                                       static_cast<uint64_t>(t.rows()), t.cols()));
    };
    layout(a_, a);
    layout(b_, b);
    layout(c_, c);
    check_cuda(cudaMalloc(workspace_.out(), kWorkspace), "cudaMalloc");
    choose();
  }

  void operator()() const { check(run(algorithm_)); }

 private:
  static constexpr size_t kWorkspace = size_t{64} << 20;
  static void check(cublasStatus_t status, std::source_location at = std::source_location::current()) {
    if (status != CUBLAS_STATUS_SUCCESS) fail(std::string("cuBLASLt: ") + cublasLtGetStatusString(status), at);
  }
  cublasStatus_t run(const cublasLtMatmulAlgo_t& algorithm) const {
    const float alpha = 1;
    return cublasLtMatmul(handle_, desc_, &alpha, b_data_, b_, a_data_, a_, &beta_, c_data_, c_, c_data_, c_,
                          &algorithm, workspace_, kWorkspace, stream_);
  }

  void choose() {
    constexpr int kMost = 64;
    Handle<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy> preference;
    check(cublasLtMatmulPreferenceCreate(preference.out()));
    check(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &kWorkspace,
                                               sizeof kWorkspace));
    std::vector<cublasLtMatmulHeuristicResult_t> proposals(kMost);
    int count = 0;
    check(cublasLtMatmulAlgoGetHeuristic(handle_, desc_, b_, a_, c_, c_, preference, kMost, proposals.data(), &count));
    float best = std::numeric_limits<float>::infinity();
    for (int i = 0; i < count; ++i)
      if (const float time = milliseconds(proposals[static_cast<size_t>(i)].algo); time < best) {
        best = time;
        algorithm_ = proposals[static_cast<size_t>(i)].algo;
      }
    if (best == std::numeric_limits<float>::infinity()) fail("cuBLASLt has no algorithm for a product");
  }
  float milliseconds(const cublasLtMatmulAlgo_t& algorithm) const {
    Handle<cudaEvent_t, cudaEventDestroy> begin, end;
    check_cuda(cudaEventCreate(begin.out()), "cudaEventCreate");
    check_cuda(cudaEventCreate(end.out()), "cudaEventCreate");
    if (run(algorithm) != CUBLAS_STATUS_SUCCESS) return std::numeric_limits<float>::infinity();
    check_cuda(cudaEventRecord(begin, stream_), "cudaEventRecord");
    for (int i = 0; i < 4; ++i) check(run(algorithm));
    check_cuda(cudaEventRecord(end, stream_), "cudaEventRecord");
    check_cuda(cudaEventSynchronize(end), "cudaEventSynchronize");
    float milliseconds = 0;
    check_cuda(cudaEventElapsedTime(&milliseconds, begin, end), "cudaEventElapsedTime");
    return milliseconds;
  }

  const void *a_data_, *b_data_;
  void* c_data_;
  const float beta_;
  const cudaStream_t stream_;
  Handle<cublasLtHandle_t, cublasLtDestroy> handle_;
  Handle<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy> desc_;
  Handle<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy> a_, b_, c_;
  Handle<void*, cudaFree> workspace_;
  cublasLtMatmulAlgo_t algorithm_{};
};

// Queues the GEMM on the stream.
inline std::function<void()> cublaslt_gemm(Tensor a, Tensor b, Tensor c, const test::MatmulOptions& how,
                                           Stream& stream) {
  return [product = std::make_shared<CublasLtProduct>(a, b, c, how, stream)] { (*product)(); };
}

#else

inline std::function<void()> cublaslt_gemm(Tensor, Tensor, Tensor, const test::MatmulOptions&, Stream&) {
  return nullptr;
}

#endif

}  // namespace trivet
