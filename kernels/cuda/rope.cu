// Rotary positions: the table of angles, and the rotation of queries and keys, all heads of both in one kernel.
// Memory-bound: each element is read and written once; the table is small and stays in the cache.
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/pack.cuh"

namespace trivet {
namespace {

// ---- kernels

// One thread per angle of table[positions][2 half].
__global__ void rotary_table_kernel(Rotary rotary, int64_t first, int64_t positions, int64_t half, float* table) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x, position = i / half, pair = i % half;
  if (position >= positions) return;
  const double angle = static_cast<double>(first + position) * rotary_frequency(rotary, pair);
  table[position * 2 * half + pair] = static_cast<float>(cos(angle));
  table[position * 2 * half + half + pair] = static_cast<float>(sin(angle));
}

template <class T>
struct TurnedHeads {
  HeadsLayout layout;
  T* data;

  explicit TurnedHeads(const HeadsOf<InOut>& x) : layout(x.layout), data(static_cast<T*>(x.data())) {}
};

// A row is a position of a batch entry; its table row is ids[row] or, without ids, the position. Each thread handles
// one pack of pairs of one of its heads, as RowGrid assigns them: first q's heads, then k's. sign: the angles' sign.
template <class T>
__global__ void rope_kernel(TurnedHeads<T> q, TurnedHeads<T> k, const float* table, const int* ids, int half,
                            float sign, int chunks, bool vectors) {
  const int packs = (half + kPack - 1) / kPack, q_heads = static_cast<int>(q.layout.heads());
  const int which = static_cast<int>(blockIdx.x % chunks * blockDim.x + threadIdx.x), at = which % packs * kPack;
  const int head = which / packs;
  if (head >= q_heads + static_cast<int>(k.layout.heads())) return;
  const TurnedHeads<T>& x = head < q_heads ? q : k;
  const int64_t row = blockIdx.x / chunks, position = row / x.layout.b;
  T* const first = x.data + x.layout.at(position, row % x.layout.b, head < q_heads ? head : head - q_heads);
  T* const second = first + half;
  const float *const cosines = table + (ids ? ids[row] : position) * 2 * half, *const sines = cosines + half;
  with_flag(vectors, [&](auto whole) {
    const Pack c = load_pack(cosines, at, half, whole), s = load_pack(sines, at, half, whole);
    Pack a = load_pack(first, at, half, whole), b = load_pack(second, at, half, whole);
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      const float old = a.v[i], sine = sign * s.v[i];
      a.v[i] = old * c.v[i] - b.v[i] * sine;
      b.v[i] = b.v[i] * c.v[i] + old * sine;
    }
    store_pack(first, at, half, whole, a);
    store_pack(second, at, half, whole, b);
  });
}

// ---- launchers

}  // namespace

void CudaOps::launch(const op::RotaryTable& op, cudaStream_t stream) {
  const int64_t positions = op.table.rows(), half = op.rotary.width / 2;
  if (positions == 0) return;
  launch_kernel(rotary_table_kernel,
                {blocks(ceil_div(positions * half, kBlockThreads), op.kSpan.name), kBlockThreads, stream}, op.rotary,
                op.first, positions, half, op.table.as<float>());
}

void CudaOps::launch(const op::Rope& op, cudaStream_t stream) {
  const int64_t rows = op.q.layout.s * op.q.layout.b, half = op.table.cols() / 2;
  if (rows == 0) return;
  const int64_t heads = op.q.layout.heads() + op.k.layout.heads();
  const RowGrid grid(rows, heads * ceil_div(half, kPack) * kPack, op.kSpan.name);
  const bool vectors = half % kPack == 0 && aligned(op.table) && heads_are_aligned(op.q, op.k);
  dispatch_device(op.q.memory.dtype, [&]<class T>() {
    launch_kernel(rope_kernel<T>, {grid.grid, grid.block, stream}, TurnedHeads<T>(op.q), TurnedHeads<T>(op.k),
                  op.table.as<float>(), elements<int32_t>(op.ids), static_cast<int>(half), op.inverse ? -1.0f : 1.0f, grid.chunks, vectors);
  });
}

}  // namespace trivet
