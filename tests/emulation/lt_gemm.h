// The arithmetic of the emulated cuBLASLt (cublas_lt.cc): one GEMM of column-major matrices, as the library's
// documentation defines it. Runs on the stream's thread, which may access all pointers.
#pragma once

#include <cstdint>
#include <library_types.h>

namespace trivet::emulation {

enum class LtAlgorithm : uint64_t {
  whole = 1,         // each sum from its first term to its last
  halves,            // two halves of k, added in fp32: its rounding differs from `whole`
  halves_in_d_type,  // two halves of k, each rounded to D's type before they are added
  fails              // is proposed, but does not run
};

// D[m, n] = epilogue(alpha op(A) op(B) + beta C); for FP8, alpha times both scales.
struct LtProduct {
  int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false, tf32 = false;
  cudaDataType_t type = CUDA_R_32F, b_type = CUDA_R_32F;       // A's; B's
  cudaDataType_t d_type = CUDA_R_32F, bias_type = CUDA_R_32F;  // of C, D and the GELU's aux matrix; of the bias
  int64_t lda = 0, ldb = 0, ldc = 0, ldd = 0, ld_aux = 0;
  float alpha = 1, beta = 0;
  const void *a = nullptr, *b = nullptr, *c = nullptr, *bias = nullptr;
  const float *a_scale = nullptr, *b_scale = nullptr;           // for FP8
  void *d = nullptr, *aux = nullptr, *bias_gradient = nullptr;  // the last one: [n], sums of op(B) over k
  bool gelu = false, gelu_gradient = false;
  LtAlgorithm algorithm = LtAlgorithm::whole;
  float* workspace = nullptr;

  // This GEMM's part of the workspace: `halves` keeps its two terms there.
  int64_t workspace_bytes() const {
    return algorithm == LtAlgorithm::halves || algorithm == LtAlgorithm::halves_in_d_type
               ? 2 * m * n * static_cast<int64_t>(sizeof(float))
               : 0;
  }
};

// Outputs are NaN until they are written, so another stream that reads too early gets NaN.
void run(const LtProduct& product);

}  // namespace trivet::emulation
