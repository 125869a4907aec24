// Whether a step is taken: the decision, and where the numbers went wrong.
#include <climits>

#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/reduce.cuh"

namespace trivet {
namespace {

// ---- kernels

// One thread: a few numbers.
__global__ void accept_step_kernel(const float* numbers, int n, StepLimits limits, float* accepted) {
  bool passes = true;
  for (int i = 0; i < n; ++i) passes &= isfinite(numbers[i]) ? numbers[i] <= limits.at_most[i] : !limits.finite;
  *accepted = passes ? 1.0f : 0.0f;
}

struct Smaller {
  __device__ long long operator()(long long a, long long b) const { return a < b ? a : b; }
};

constexpr int kThreads = 1024;

// One block, which has nothing to do in a step that is taken: what it costs then is its launch. In the other it walks
// all of x, which need not be fast.
__global__ void __launch_bounds__(kThreads)
    find_non_finite_kernel(const float* x, int64_t n, const float* accepted, int64_t* found) {
  __shared__ long long shared[32];
  if (*accepted != 0) return;
  long long first = LLONG_MAX, nans = 0, infinities = 0;
  for (int64_t i = threadIdx.x; i < n; i += kThreads) {
    if (isfinite(x[i])) continue;
    if (first == LLONG_MAX) first = i;
    if (isnan(x[i])) ++nans;
    else ++infinities;
  }
  first = block_reduce(first, Smaller(), LLONG_MAX, shared);
  nans = block_reduce(nans, Sum(), 0LL, shared);
  infinities = block_reduce(infinities, Sum(), 0LL, shared);
  if (threadIdx.x != 0) return;
  const bool any = first != LLONG_MAX;
  found[0] = any ? first : -1;
  found[1] = nans;
  found[2] = infinities;
  found[3] = any ? __float_as_uint(x[first]) : 0;
  found[4] = any && first > 0 ? __float_as_uint(x[first - 1]) : 0;
}

}  // namespace

// ---- launchers

void CudaOps::launch(const op::AcceptStep& op, cudaStream_t stream) {
  launch_kernel(accept_step_kernel, {1, 1, stream}, op.numbers.as<float>(), static_cast<int>(op.numbers.numel()),
                op.limits, op.accepted.as<float>());
}

void CudaOps::launch(const op::FindNonFinite& op, cudaStream_t stream) {
  launch_kernel(find_non_finite_kernel, {1, kThreads, stream}, op.x.as<float>(), op.x.numel(), op.accepted.as<float>(),
                op.found.as<int64_t>());
}

}  // namespace trivet
