// Copies or adds heads from one view to another; merges in attention results over more keys.
// Memory-bound: each element is read and written once.
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/pack.cuh"

namespace trivet {
namespace {

// ---- kernels

// A row is a position of a batch entry; each thread handles one pack of one of its heads, as RowGrid assigns them.
template <class From, class To>
__global__ void copy_heads_kernel(HeadsLayout from, const From* source, HeadsLayout to, To* target, bool accumulate,
                                  int chunks, bool vectors) {
  const int d = static_cast<int>(from.d), packs = (d + kPack - 1) / kPack;
  const int which = static_cast<int>(blockIdx.x % chunks * blockDim.x + threadIdx.x), at = which % packs * kPack;
  const int head = which / packs;
  if (head >= static_cast<int>(from.heads())) return;
  const int64_t row = blockIdx.x / chunks, position = row / from.b, entry = row % from.b;
  To* const y = target + to.at(position, entry, head);
  with_flag(vectors, [&](auto whole) {
    Pack x = load_pack(source + from.at(position, entry, head), at, d, whole);
    if (accumulate) {
      const Pack old = load_pack(y, at, d, whole);
#pragma unroll
      for (int i = 0; i < kPack; ++i) x.v[i] += old.v[i];
    }
    store_pack(y, at, d, whole, x);
  });
}

// Computes the factors for `out` and `more` and the new lse, one thread per query. This is a separate kernel because
// lse is both read and written.
__global__ void merge_factors_kernel(const float* more_lse, float* lse, float2* factors, int64_t rows, int64_t n,
                                     int64_t s, int64_t first) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;  // index in more_lse [b * heads][n]
  if (i >= rows * n) return;
  float& old = lse[i / n * s + first + i % n];
  const float more = more_lse[i];
  float2 factor = {1.0f, 0.0f};
  if (more != -INFINITY) {
    const float larger = fmaxf(old, more), both = larger + logf(expf(old - larger) + expf(more - larger));
    factor = {expf(old - both), expf(more - both)};
    old = both;
  }
  factors[i] = factor;
}
template <class T>
__global__ void merge_kernel(const T* more, float* out, const float2* factors, int64_t n, int b, int heads, int d,
                             int chunks, bool vectors) {
  const int packs = (d + kPack - 1) / kPack;
  const int which = static_cast<int>(blockIdx.x % chunks * blockDim.x + threadIdx.x), at = which % packs * kPack;
  const int head = which / packs;
  if (head >= heads) return;
  const int64_t row = blockIdx.x / chunks, offset = (row * heads + head) * d;
  const float2 factor = factors[(row % b * heads + head) * n + row / b];
  if (factor.y == 0.0f) return;  // regardless of what `more` holds
  with_flag(vectors, [&](auto whole) {
    Pack x = load_pack(out + offset, at, d, whole);
    const Pack add = load_pack(more + offset, at, d, whole);
#pragma unroll
    for (int i = 0; i < kPack; ++i) x.v[i] = (factor.x == 0.0f ? 0.0f : x.v[i] * factor.x) + add.v[i] * factor.y;
    store_pack(out + offset, at, d, whole, x);
  });
}

}  // namespace

// ---- launchers

void CudaOps::launch(const op::CopyHeads& op, cudaStream_t stream) {
  const HeadsLayout& z = op.from.layout;
  if (z.numel() == 0) return;
  const RowGrid grid(z.s * z.b, z.heads() * ceil_div(z.d, kPack) * kPack, op.kSpan.name);
  const bool vectors = z.d % kPack == 0 && heads_are_aligned(op.from, op.to);
  dispatch_device(op.from.memory.dtype, [&]<class From>() {
    dispatch_device(op.to.memory.dtype, [&]<class To>() {
      launch_kernel(copy_heads_kernel<From, To>, {grid.grid, grid.block, stream}, z,
                    static_cast<const From*>(op.from.data()), op.to.layout, static_cast<To*>(op.to.data()),
                    op.accumulate, grid.chunks, vectors);
    });
  });
}

void CudaOps::launch(const op::AttentionMerge& op, cudaStream_t stream) {
  const int64_t n = op.more.shape[0], b = op.more.shape[1], heads = op.more_lse.shape[1], s = op.lse.shape[2];
  if (op.more.numel() == 0) return;
  const int64_t d = op.more.shape[2] / heads;
  const Tensor out = op.out.view({s, b, heads * d}).slice(op.first_position, n);
  auto* const factors = reinterpret_cast<float2*>(workspaces_.take(stream, n * b * heads * int64_t{sizeof(float2)}));
  launch_kernel(merge_factors_kernel,
                {blocks(ceil_div(n * b * heads, kBlockThreads), op.kSpan.name), kBlockThreads, stream},
                op.more_lse.as<float>(), op.lse.as<float>(), factors, b * heads, n, s, op.first_position);
  const RowGrid grid(n * b, heads * ceil_div(d, kPack) * kPack, op.kSpan.name);
  const bool vectors = d % kPack == 0 && aligned(op.more, out);
  dispatch_device(op.more.dtype, [&]<class T>() {
    launch_kernel(merge_kernel<T>, {grid.grid, grid.block, stream}, elements<T>(op.more), out.as<float>(), factors, n,
                  static_cast<int>(b), static_cast<int>(heads), static_cast<int>(d), grid.chunks, vectors);
  });
}

}  // namespace trivet
