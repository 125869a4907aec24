// Softmax cross-entropy over a rank's columns. Logits are by far the largest activation, so each of the two passes
// reads them once (both together, if a row fits in shared memory). One exponential per element keeps up with memory.
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/reduce.cuh"

namespace trivet {
namespace {

// ---- device helpers

// The sum of exp(x - max) over the elements seen so far, and their maximum.
struct OnlineSum {
  float max = -INFINITY, sum = 0;

  // Rescales to a maximum at least as large. (If both are -infinity, their difference would be NaN.)
  __device__ void rescale(float larger) {
    if (larger != max) sum *= __expf(max - larger);
    max = larger;
  }
};

// Replaces a pack's logits, from column i on, with their gradient. factor: scale / the row's sum.
__device__ inline void to_gradient(Pack& pack, int64_t i, int64_t columns, int64_t target, float max, float factor,
                                   float scale) {
#pragma unroll
  for (int k = 0; k < kPack; ++k) {
    float gradient = __expf(pack.v[k] - max) * factor;
    if (i + k == target) gradient -= scale;  // rounded once, by the store
    pack.v[k] = i + k < columns ? gradient : 0.0f;
  }
}

// ---- kernels

// A block handles one row; each thread takes every blockDim.x-th pack of real columns, with its own maximum. `vectors`:
// rows are whole packs; the last one with real columns may end in padding. kWaits: a thread keeps its packs in dynamic
// shared memory, where only it reads them; given the row's sum, it writes their gradient to `gradient`, the logits.
template <class T, bool kWaits>
__global__ void __launch_bounds__(512)
    cross_entropy_forward_kernel(const T* logits, const int* targets, int64_t v, int64_t columns, int64_t first_column,
                                 bool vectors, float* row_max, float* row_sum, float* target_logit, T* gradient,
                                 float scale) {
  __shared__ float shared[32];
  T* const waiting = dynamic_shared<T>();
  const int64_t row = blockIdx.x;
  const T* const x = logits + row * v;
  OnlineSum mine;
  with_flag(vectors, [&](auto whole) {
#pragma unroll 2
    for (int64_t i = static_cast<int64_t>(threadIdx.x) * kPack; i < columns; i += blockDim.x * kPack) {
      const RawPack<T> raw = load_raw(x, i, columns, whole);
      const Pack pack = unpack(raw);
      if constexpr (kWaits) *reinterpret_cast<RawPack<T>*>(waiting + i) = raw;
      float max = mine.max;
#pragma unroll
      for (int k = 0; k < kPack; ++k)
        if (i + k < columns) max = fmaxf(max, pack.v[k]);  // fmaxf ignores a NaN; the sum catches it
      mine.rescale(max);
#pragma unroll
      for (int k = 0; k < kPack; ++k)
        if (i + k < columns) mine.sum += __expf(pack.v[k] - max);
    }
  });
  const float max = block_reduce(mine.max, Max(), -INFINITY, shared);
  mine.rescale(max);
  const float sum = block_reduce(mine.sum, Sum(), 0.0f, shared);
  const int64_t target = targets[row] - first_column;
  if (threadIdx.x == 0) {
    target_logit[row] = target >= 0 && target < columns ? to_float(x[target]) : 0.0f;
    row_max[row] = max;
    row_sum[row] = sum;
  }
  if constexpr (!kWaits) return;
  __syncthreads();  // the target's logit has been read
  if (targets[row] < 0) scale = 0;
  with_flag(vectors, [&](auto whole) {
    for (int64_t i = static_cast<int64_t>(threadIdx.x) * kPack; i < v; i += blockDim.x * kPack) {
      Pack pack{};
      if (i < columns) pack = unpack(*reinterpret_cast<const RawPack<T>*>(waiting + i));
      to_gradient(pack, i, columns, target, max, scale / sum, scale);
      store_pack(gradient + row * v, i, v, whole, pack);
    }
  });
}

// Each thread handles one pack of a row, as RowGrid assigns them; columns from `columns` on are padding.
template <class T>
__global__ void cross_entropy_backward_kernel(T* logits, const int* targets, int64_t v, int64_t columns,
                                              int64_t first_column, int chunks, bool vectors, const float* row_max,
                                              const float* row_sum, float scale) {
  const int64_t row = blockIdx.x / chunks;
  const int64_t i = (static_cast<int64_t>(blockIdx.x % chunks) * blockDim.x + threadIdx.x) * kPack;
  if (i >= v) return;
  T* const x = logits + row * v;
  if (targets[row] < 0) scale = 0;
  const float max = row_max[row], factor = scale / row_sum[row];
  const int64_t target = targets[row] - first_column;
  Pack pack = load_pack(x, i, v, vectors);
  to_gradient(pack, i, columns, target, max, factor, scale);
  store_pack(x, i, v, vectors, pack);
}

// One thread per row.
__global__ void cross_entropy_rescale_kernel(const float* row_max, const float* global_max, float* row_sum, int64_t n) {
  const int64_t r = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (r < n) row_sum[r] *= expf(row_max[r] - global_max[r]);
}

// One block, whose threads share the rows.
__global__ void __launch_bounds__(1024)
    cross_entropy_loss_kernel(const int* targets, const float* row_max, const float* row_sum, const float* target_logit,
                              int64_t n, float scale, float* loss) {
  __shared__ double shared[32];
  double sum = 0;
  for (int64_t r = threadIdx.x; r < n; r += blockDim.x)
    if (targets[r] >= 0) sum += log(static_cast<double>(row_sum[r])) + row_max[r] - target_logit[r];
  sum = block_reduce(sum, Sum(), 0.0, shared);
  if (threadIdx.x == 0) loss[0] = static_cast<float>(loss[0] + scale * sum);
}

}  // namespace

// ---- launchers

void CudaOps::launch(const op::CrossEntropyForward& op, cudaStream_t stream) {
  const int64_t n = op.logits.rows(), v = op.logits.cols();
  if (n == 0) return;
  // Two blocks per multiprocessor, so that one reads while the other writes: they share 228 KiB, less 1 KiB per block.
  const int64_t row_bytes = ceil_div(v, kPack) * kPack * size_of(op.logits.dtype);
  const bool waits = op.gradient && row_bytes <= 112 * 1024;
  const auto shared = static_cast<size_t>(waits ? row_bytes : 0);
  dispatch_device(op.logits.dtype, [&]<class T>() {
    const auto kernel = waits ? cross_entropy_forward_kernel<T, true> : cross_entropy_forward_kernel<T, false>;
    allow_shared(kernel, shared);
    launch_kernel(kernel, {blocks(n, op.kSpan.name), 512, stream, shared}, elements<T>(op.logits),
                  op.targets.as<int32_t>(), v, real_columns(op.first_column, op.vocab_size, v), op.first_column,
                  v % kPack == 0 && aligned(op.logits), op.row_max.as<float>(), op.row_sum.as<float>(),
                  op.target_logit.as<float>(), elements<T>(op.gradient), op.scale);
  });
  if (op.gradient && !waits) launch(backward_of(op), stream);
}

void CudaOps::launch(const op::CrossEntropyRescale& op, cudaStream_t stream) {
  const int64_t n = op.row_max.numel();
  if (n == 0) return;
  launch_kernel(cross_entropy_rescale_kernel, {blocks(ceil_div(n, 256), op.kSpan.name), 256, stream},
                op.row_max.as<float>(), op.global_max.as<float>(), op.row_sum.as<float>(), n);
}

void CudaOps::launch(const op::CrossEntropyLoss& op, cudaStream_t stream) {
  launch_kernel(cross_entropy_loss_kernel, {1, 1024, stream}, op.targets.as<int32_t>(), op.row_max.as<float>(),
                op.row_sum.as<float>(), op.target_logit.as<float>(), op.row_max.numel(), op.scale, op.loss.as<float>());
}

void CudaOps::launch(const op::CrossEntropyBackward& op, cudaStream_t stream) {
  const int64_t n = op.logits.rows(), v = op.logits.cols();
  if (n * v == 0) return;
  const RowGrid grid(n, v, op.kSpan.name);
  dispatch_device(op.logits.dtype, [&]<class T>() {
    launch_kernel(cross_entropy_backward_kernel<T>, {grid.grid, grid.block, stream}, elements<T>(op.logits),
                  op.targets.as<int32_t>(), v, real_columns(op.first_column, op.vocab_size, v), op.first_column,
                  grid.chunks, v % kPack == 0 && aligned(op.logits), op.row_max.as<float>(), op.row_sum.as<float>(),
                  op.scale);
  });
}

}  // namespace trivet
