// CudaGemms: GEMMs by cuBLASLt, autotuned. The first GEMM of a shape asks the library for its proposals, times each on
// its own operands, and stores the fastest for later ones. An epilogue competes with separate kernels: which is
// faster differs from GPU to GPU. The library is loaded when an instance is made: a cold load takes half a second,
// which a program that runs on the CPU should not spend.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <tuple>

#include "kernels/cuda/workspace.h"
#include "kernels/ops.h"

namespace trivet {

// c[m, n] (+)= a[m, k] b[k, n] (+ bias) (+ residual), or with an activation, as op::Matmul, row-major.
struct CudaGemm {
  int64_t m, n, k;
  bool transpose_a, transpose_b, accumulate;
  bool fast;                      // FP8: may be summed with fewer bits than fp32 has
  DType dtype, b_dtype, c_dtype;  // of a; of b, another one in FP8 alone; of c and, but for FP8, the bias
  const void *a_scale, *b_scale;  // FP8: on the device; null else
  const void *a, *b;
  void* c;
  const void* bias;                 // null: none
  void* pre_activation;             // null: none; of c's type, as the next
  const void* activation_backward;  // null: none
  Activation activation;            // of these
  void* bias_grad;                  // null: none; [m] of c's type, is overwritten
  const void* residual;             // null: none; of c's type

  bool has_activation() const { return pre_activation || activation_backward; }
  bool has_epilogue() const { return has_activation() || bias_grad || residual; }  // beyond a bias
};

// The same without an epilogue: a GEMM, and the kernels that do the rest. Timed, they may write what the GEMM with the
// epilogue would, and nothing else.
struct CudaGemmApart {
  CudaGemm gemm;
  std::function<void()> timed_rest;
};

class CudaGemms {
 public:
  explicit CudaGemms(const CudaOptions& options);
  ~CudaGemms();

  // Bytes of workspace that run() is to be given.
  static constexpr int64_t kWorkspaceBytes = 32 << 20;

  // Queues the GEMM; false, and nothing is queued, where the library has no algorithm for it or fails, or where it has
  // an activation and is not bf16, or an epilogue that is not faster than what does without. The library wants FP8 with
  // transpose_b alone, and k a multiple of 16. The first call of a shape that accumulates allocates memory of the size
  // of c for its trials, if there is any. apart: where it has an epilogue.
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
