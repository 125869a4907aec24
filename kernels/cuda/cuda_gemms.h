// CudaGemms: matrix products by cuBLASLt. The first product of a shape asks the library for its proposals, tries
// each out on the very operands, and keeps the fastest; later ones take what was kept. A GELU in the product competes
// with the product and the GELU as two kernels: which is faster differs from GPU to GPU. The library is loaded when an
// instance is made, because it takes half a second to load cold, which a program that runs on the CPU should not spend.
#pragma once

#include <map>
#include <memory>
#include <tuple>

#include "kernels/cuda/workspace.h"
#include "kernels/ops.h"

namespace trivet {

// c[m, n] (+)= a[m, k] b[k, n] (+ bias), or with a GELU, as op::Matmul, row-major.
struct CudaProduct {
  int64_t m, n, k;
  bool transpose_a, transpose_b, accumulate;
  DType dtype, c_dtype;  // of a and b; of c and the bias
  const void *a, *b;
  void* c;
  const void* bias;           // null: none
  void* pre_activation;       // null: none; of c's type, as the next
  const void* gelu_backward;  // null: none

  bool has_gelu() const { return pre_activation || gelu_backward; }
};

class CudaGemms {
 public:
  explicit CudaGemms(const CudaOptions& options);
  ~CudaGemms();

  // Bytes of workspace that run() is to be given.
  static constexpr int64_t kWorkspaceBytes = 32 << 20;

  // Queues the product; false, and nothing is queued, where the library has no algorithm for it. A GELU it takes along
  // only in bf16, and where that is faster than two kernels. The first call of a shape that accumulates takes memory of
  // the size of c for its trials, if there is any.
  bool run(const CudaProduct& product, std::byte* workspace, cudaStream_t stream);

 private:
  struct Library;
  struct Plan;
  // Sizes; transposes, accumulation, types, bias and GELU; alignments of the operands.
  using Key = std::tuple<int64_t, int64_t, int64_t, int, int64_t>;

  static Key key_of(const CudaProduct& product);
  Plan& plan_of(const CudaProduct& product, std::byte* workspace, cudaStream_t stream);
  std::unique_ptr<Plan> make_plan(const CudaProduct& product, std::byte* workspace, cudaStream_t stream);
  float time_apart(const CudaProduct& product, std::byte* workspace, cudaStream_t stream);

  const CudaOptions options_;
  const std::unique_ptr<Library> library_;
  std::map<Key, std::unique_ptr<Plan>> plans_;
};

}  // namespace trivet
