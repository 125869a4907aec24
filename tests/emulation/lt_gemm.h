// The arithmetic of the emulated cuBLASLt (cublas_lt.cc): one product, of matrices that lie column by column, as the
// library's documentation defines it. Runs on whichever thread runs the stream; all pointers may be touched there.
#pragma once

#include <cstdint>
#include <library_types.h>

namespace trivet::emulation {

enum class LtAlgorithm : uint64_t {
  whole = 1,         // each sum from its first term to its last
  halves,            // two halves of k, added up in fp32: another rounding than `whole`
  halves_in_d_type,  // two halves of k, each rounded to D's type before they are added up
  fails              // is proposed, and does not run
};

// D[m, n] = epilogue(alpha op(A) op(B) + beta C); of FP8, alpha times both scales.
struct LtProduct {
  int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false, tf32 = false;
  cudaDataType_t type = CUDA_R_32F, b_type = CUDA_R_32F;       // of A; of B
  cudaDataType_t d_type = CUDA_R_32F, bias_type = CUDA_R_32F;  // of C, D and the GELU's matrix; of the bias
  int64_t lda = 0, ldb = 0, ldc = 0, ldd = 0, ld_aux = 0;
  float alpha = 1, beta = 0;
  const void *a = nullptr, *b = nullptr, *c = nullptr, *bias = nullptr;
  const float *a_scale = nullptr, *b_scale = nullptr;           // of FP8
  void *d = nullptr, *aux = nullptr, *bias_gradient = nullptr;  // the last: [n], the sums of op(B) over k
  bool gelu = false, gelu_gradient = false;
  LtAlgorithm algorithm = LtAlgorithm::whole;
  float* workspace = nullptr;

  // Part of the workspace: `halves` keeps its two terms there.
  int64_t workspace_bytes() const {
    return algorithm == LtAlgorithm::halves || algorithm == LtAlgorithm::halves_in_d_type
               ? 2 * m * n * static_cast<int64_t>(sizeof(float))
               : 0;
  }
};

// What it is to write is NaN until it is written: another stream that looks too early finds that.
void run(const LtProduct& product);

}  // namespace trivet::emulation
