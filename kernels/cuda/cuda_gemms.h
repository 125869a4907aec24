// CudaGemms: GEMMs with cuBLASLt, autotuned. The first GEMM of a shape asks the library for candidates, times each
// on its own operands, and keeps the fastest for later ones. Epilogues are also timed against separate kernels, because
// which is faster depends on the GPU. The library is loaded only when an instance is created: a cold load takes half a
// second, which a program that runs on the CPU should not pay.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <tuple>

#include "kernels/cuda/workspace.h"
#include "kernels/ops.h"

namespace trivet {

// The elements of an FP8 operand that share a scale: all; 128 along k; a square of 128 x 128. `foreign`: other blocks,
// which the library does not have. The rest are values of its cublasLtMatmulMatrixScale_t, which its header has from
// 12.9 on. They are documented for A and B in any combination but two squares.
enum class ScaleMode : int32_t { tensor = 0, vectors = 4, squares = 5, foreign = 15 };

// c[m, n] (+)= a[m, k] b[k, n] (+ bias) (+ residual), or with an activation as in op::Matmul. Row-major.
struct CudaGemm {
  int64_t m, n, k;
  bool transpose_a, transpose_b, accumulate;
  bool fast;                      // FP8: sums may have fewer bits than fp32
  DType dtype, b_dtype, c_dtype;  // of a; of b, different from a's in FP8 only; of c and, except in FP8, the bias
  // FP8: on the device; otherwise null. Vectors: [k / 128, m or n], rounded up; squares: [n / 128, k / 128], rounded
  // up, the latter to a multiple of 4.
  const void *a_scale, *b_scale;
  const void *a, *b;
  void* c;
  const void* bias;                 // null: none
  void* pre_activation;             // null: none; of c's type, like the next
  const void* activation_backward;  // null: none
  Activation activation;            // of the two above
  void* bias_grad;                  // null: none; [m] of c's type, overwritten
  const void* residual;             // null: none; of c's type
  ScaleMode a_mode = ScaleMode::tensor, b_mode = ScaleMode::tensor;

  bool has_activation() const { return pre_activation || activation_backward; }
  bool has_epilogue() const { return has_activation() || bias_grad || residual; }  // beyond a bias
};

// The same computation without an epilogue: a GEMM, and separate kernels for the rest. When timed, they may write what
// the GEMM with the epilogue would write, and nothing else.
struct CudaGemmApart {
  CudaGemm gemm;
  std::function<void()> timed_rest;
};

class CudaGemms {
 public:
  explicit CudaGemms(const CudaOptions& options);
  ~CudaGemms();

  // Of the library: 10000 times the major version, plus 100 times the minor one. Block scales need 12.9.
  int64_t version() const;

  // Bytes of workspace that run() requires.
  static constexpr int64_t kWorkspaceBytes = 32 << 20;

  // Queues the GEMM. Returns false and queues nothing if the library has no algorithm for it or fails, if it has an
  // activation and is not bf16, or if its epilogue is no faster than separate kernels. For FP8 operands the library
  // requires only transpose_b, and k % 16 == 0; with block scales also m % 4 == 0, and no `fast`. The first call with
  // a given shape, if it accumulates, allocates a buffer of c's size for its trials if it can. apart: given if the GEMM
  // has an epilogue.
  bool run(const CudaGemm& gemm, const CudaGemmApart* apart, std::byte* workspace, cudaStream_t stream);

 private:
  struct Library;
  struct Plan;
  // Sizes; transposes, accumulation, types, bias and epilogue; alignments of the operands.
  using Key = std::tuple<int64_t, int64_t, int64_t, int, int64_t>;

  static Key key_of(const CudaGemm& gemm);
  Plan& plan_of(const CudaGemm& gemm, const CudaGemmApart* apart, std::byte* workspace, cudaStream_t stream);
  std::unique_ptr<Plan> make_plan(const CudaGemm& gemm, const CudaGemmApart* apart, std::byte* workspace,
                                  cudaStream_t stream);
  float time_of(const CudaGemmApart& apart, void* out, std::byte* workspace, cudaStream_t stream);

  const CudaOptions options_;
  const std::unique_ptr<Library> library_;
  std::map<Key, std::unique_ptr<Plan>> plans_;
};

}  // namespace trivet
