// The token embedding, and the gradient of the position embedding. The backward pass of the token embedding
// adds the gradients of equal tokens in order, so its bits equal the CPU's: the positions of each token, a few thousand
// integers, are collected and sorted first.
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/dropout.cuh"
#include "kernels/cuda/launch.h"

namespace trivet {
namespace {

// ---- kernels. "RowGrid": each thread handles one pack of a row of [n, h].

template <class T>
__global__ void embedding_forward_kernel(const int* tokens, const T* table, int64_t table_rows, int64_t first_row,
                                         int64_t h, int chunks, bool vectors, T* out) {
  const int64_t r = blockIdx.x / chunks;
  const int64_t i = (static_cast<int64_t>(blockIdx.x % chunks) * blockDim.x + threadIdx.x) * kPack;
  if (i >= h) return;
  const int64_t row = tokens[r] - first_row;
  Pack pack{};
  if (row >= 0 && row < table_rows) pack = load_pack(table + row * h, i, h, vectors);
  store_pack(out + r * h, i, h, vectors, pack);
}

// For each table row, the positions r among this call's n where it occurs. Entries of absent rows are not read.
struct Occurrences {
  int *count, *offset;     // [table rows]: number of occurrences, and where they begin in `sorted`
  int* slot;               // [n]: a position's index in its row, in counting order; -1: not in this table
  int *unsorted, *sorted;  // [n]: positions, row by row
  int* total;              // [1]: elements of `sorted` allocated so far
};

// One thread per position. The order of counting is not deterministic, but no result depends on it.
__global__ void count_kernel(const int* tokens, int n, int64_t first_row, int64_t table_rows, Occurrences o) {
  const int r = blockIdx.x * blockDim.x + threadIdx.x;
  if (r >= n) return;
  const int64_t row = tokens[r] - first_row;
  o.slot[r] = row >= 0 && row < table_rows ? atomicAdd(o.count + row, 1) : -1;
}
// The position that was counted first allocates its row's space.
__global__ void place_kernel(const int* tokens, int n, int64_t first_row, Occurrences o) {
  const int r = blockIdx.x * blockDim.x + threadIdx.x;
  if (r >= n || o.slot[r] != 0) return;
  const int64_t row = tokens[r] - first_row;
  o.offset[row] = atomicAdd(o.total, o.count[row]);
}
__global__ void collect_kernel(const int* tokens, int n, int64_t first_row, Occurrences o) {
  const int r = blockIdx.x * blockDim.x + threadIdx.x;
  if (r >= n || o.slot[r] < 0) return;
  o.unsorted[o.offset[tokens[r] - first_row] + o.slot[r]] = r;
}
// Places a position after all smaller ones in its row.
__global__ void sort_kernel(const int* tokens, int n, int64_t first_row, Occurrences o) {
  const int r = blockIdx.x * blockDim.x + threadIdx.x;
  if (r >= n || o.slot[r] < 0) return;
  const int64_t row = tokens[r] - first_row;
  const int* const all = o.unsorted + o.offset[row];
  int smaller = 0;
  for (int k = 0; k < o.count[row]; ++k) smaller += all[k] < r;
  o.sorted[o.offset[row] + smaller] = r;
}

// RowGrid over the n positions. Only a row's first-counted position does any work: it adds all of them in order.
template <class T>
__global__ void embedding_backward_kernel(const int* tokens, const T* dout, int64_t first_row, int64_t h, int chunks,
                                          bool vectors, Occurrences o, float* dtable) {
  const int64_t r = blockIdx.x / chunks;
  const int64_t i = (static_cast<int64_t>(blockIdx.x % chunks) * blockDim.x + threadIdx.x) * kPack;
  if (i >= h || o.slot[r] != 0) return;
  const int64_t row = tokens[r] - first_row;
  const int* const positions = o.sorted + o.offset[row];
  const int count = o.count[row];
  with_flag(vectors, [&](auto whole) {
    Pack sum = load_pack(dtable + row * h, i, h, whole);
    // In text, one token may occur at every twentieth position: thousands of rows for one block, which therefore needs
    // many loads in flight.
#pragma unroll 16
    for (int k = 0; k < count; ++k) {
      const Pack pack = load_pack(dout + static_cast<int64_t>(positions[k]) * h, i, h, whole);
#pragma unroll
      for (int j = 0; j < kPack; ++j) sum.v[j] += pack.v[j];
    }
    store_pack(dtable + row * h, i, h, whole, sum);
  });
}

// RowGrid over the s positions; a thread adds up its pack of the b rows at its position, in order.
template <class T>
__global__ void position_backward_kernel(const T* dout, DropoutArgs dropout, T* dx, float* dpositions, int64_t b,
                                         int64_t h, int chunks, bool vectors) {
  const int64_t position = blockIdx.x / chunks;
  const int64_t i = (static_cast<int64_t>(blockIdx.x % chunks) * blockDim.x + threadIdx.x) * kPack;
  if (i >= h) return;
  Pack sum = load_pack(dpositions + position * h, i, h, vectors);
  for (int64_t row = position * b; row < (position + 1) * b; ++row) {
    Pack gradient = load_pack(dout + row * h, i, h, vectors);
    const Pack scale = dropout.scales(row, b, h, i);
#pragma unroll
    for (int k = 0; k < kPack; ++k) {
      gradient.v[k] *= scale.v[k];
      sum.v[k] += gradient.v[k];
    }
    store_pack(dx + row * h, i, h, vectors, gradient);
  }
  store_pack(dpositions + position * h, i, h, vectors, sum);
}

}  // namespace

// ---- launchers

void CudaOps::launch(const op::EmbeddingForward& op, cudaStream_t stream) {
  const int64_t n = op.tokens.numel(), h = op.table.cols();
  if (n * h == 0) return;
  const RowGrid grid(n, h, op.kSpan.name);
  dispatch_device(op.table.dtype, [&]<class T>() {
    launch_kernel(embedding_forward_kernel<T>, {grid.grid, grid.block, stream}, op.tokens.as<int32_t>(),
                  elements<T>(op.table), op.table.rows(), op.first_row, h, grid.chunks,
                  h % kPack == 0 && aligned(op.table, op.out), elements<T>(op.out));
  });
}

void CudaOps::launch(const op::EmbeddingBackward& op, cudaStream_t stream) {
  const int64_t n = op.tokens.numel(), h = op.dout.cols(), table_rows = op.dtable.rows();
  if (n * h == 0) return;
  if (n > 0x3fffffff) fail("embedding_backward: " + std::to_string(n) + " tokens are more than a call takes");
  const auto cut = [&](WorkspaceCut memory) {
    Occurrences o{};
    o.count = memory.part<int>(table_rows + 1);  // and the total, so that one memset clears both
    o.total = o.count ? o.count + table_rows : nullptr;
    o.offset = memory.part<int>(table_rows);
    o.slot = memory.part<int>(n);
    o.unsorted = memory.part<int>(n);
    o.sorted = memory.part<int>(n);
    return std::pair(o, memory.bytes());
  };
  const Occurrences o = cut(WorkspaceCut(workspaces_.take(stream, cut(WorkspaceCut(nullptr)).second))).first;
  check_cuda(cudaMemsetAsync(o.count, 0, static_cast<size_t>(table_rows + 1) * sizeof(int), stream), "cudaMemsetAsync");
  const int count = static_cast<int>(n);
  const Launch positions{blocks(ceil_div(n, 256), op.kSpan.name), 256, stream};
  const int* const ids = op.tokens.as<int32_t>();
  launch_kernel(count_kernel, positions, ids, count, op.first_row, table_rows, o);
  launch_kernel(place_kernel, positions, ids, count, op.first_row, o);
  launch_kernel(collect_kernel, positions, ids, count, op.first_row, o);
  launch_kernel(sort_kernel, positions, ids, count, op.first_row, o);
  const RowGrid grid(n, h, op.kSpan.name);
  dispatch_device(op.dout.dtype, [&]<class T>() {
    launch_kernel(embedding_backward_kernel<T>, {grid.grid, grid.block, stream}, ids, elements<T>(op.dout),
                  op.first_row, h, grid.chunks, h % kPack == 0 && aligned(op.dout, op.dtable), o,
                  op.dtable.as<float>());
  });
}

void CudaOps::launch(const op::PositionBackward& op, cudaStream_t stream) {
  const int64_t s = op.dout.shape[0], b = op.dout.shape[1], h = op.dout.shape[2];
  if (op.dout.numel() == 0) return;
  const RowGrid grid(s, h, op.kSpan.name);
  dispatch_device(op.dout.dtype, [&]<class T>() {
    launch_kernel(position_backward_kernel<T>, {grid.grid, grid.block, stream}, elements<T>(op.dout),
                  DropoutArgs(op.dropout), elements<T>(op.dx), op.dpositions.as<float>(), b, h, grid.chunks,
                  h % kPack == 0 && aligned(op.dout, op.dx, op.dpositions));
  });
}

}  // namespace trivet
