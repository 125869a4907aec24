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

// The elements of an operand that share a scale; the values are the library's.
enum class LtScale : int32_t { tensor = 0, vec128 = 4, blk128x128 = 5 };

// D[m, n] = epilogue(alpha op(A) op(B) + beta C); for FP8, alpha times both scales, or, with scales of blocks, the
// partial sum of every 128 products along k times those of its blocks.
struct LtProduct {
  int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false, tf32 = false;
  cudaDataType_t type = CUDA_R_32F, b_type = CUDA_R_32F;       // A's; B's
  cudaDataType_t d_type = CUDA_R_32F, bias_type = CUDA_R_32F;  // of C, D and the GELU's aux matrix; of the bias
  int64_t lda = 0, ldb = 0, ldc = 0, ldd = 0, ld_aux = 0;
  float alpha = 1, beta = 0;
  const void *a = nullptr, *b = nullptr, *c = nullptr, *bias = nullptr;
  const float *a_scale = nullptr, *b_scale = nullptr;  // for FP8
  LtScale a_mode = LtScale::tensor, b_mode = LtScale::tensor;
  void *d = nullptr, *aux = nullptr, *bias_gradient = nullptr;  // the last one: [n], sums of op(B) over k
  bool gelu = false, gelu_gradient = false;
  LtAlgorithm algorithm = LtAlgorithm::whole;
  float* workspace = nullptr;

  bool in_blocks() const { return a_mode != LtScale::tensor; }
  // The scale of block `l` along k in row `i` of A, or column `i` of B, of `outer` (m or n): vectors are contiguous
  // along rows or columns, squares along k, padded to multiples of 4.
  static int64_t scale_at(LtScale mode, int64_t i, int64_t l, int64_t outer, int64_t k) {
    return mode == LtScale::vec128 ? l * outer + i : i / 128 * (((k + 127) / 128 + 3) / 4 * 4) + l;
  }
  static int64_t scale_bytes(LtScale mode, int64_t outer, int64_t k) {
    return 4 * (mode == LtScale::tensor ? 1 : scale_at(mode, outer - 1, (k + 127) / 128 - 1, outer, k) + 1);
  }
  // Its part of the workspace: `halves` keeps its two terms there.
  int64_t workspace_bytes() const {
    return algorithm == LtAlgorithm::halves || algorithm == LtAlgorithm::halves_in_d_type
               ? 2 * m * n * static_cast<int64_t>(sizeof(float))
               : 0;
  }
};

// Outputs are NaN until they are written, so another stream that reads too early gets NaN.
void run(const LtProduct& product);

}  // namespace trivet::emulation
