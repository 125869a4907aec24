// Token and position embeddings. The forward passes move each element once. The backward pass of the token embedding
// adds equal tokens in their order, so it has the CPU's bits: the positions of each token are collected and sorted
// first, a few thousand integers.
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/dropout.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/op_checks.h"

namespace trivet {
namespace {

// ---- kernels. "RowGrid": a thread has one pack of a row of [n, h].

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

// Where each row of the table has its positions r, of the n of this call. Rows without any are not looked at.
struct Occurrences {
  int *count, *offset;     // [table rows]: how many, and where in `sorted` they begin
  int* slot;               // [n]: as the how-manieth of its row a position was counted
  int *unsorted, *sorted;  // [n]: positions, row by row
  int* total;              // [1]: of `sorted` handed out
};

// A thread has one position. Which position is counted first is up to chance; nothing that leaves here depends on it.
__global__ void count_kernel(const int* tokens, int n, int64_t first_row, int64_t table_rows, Occurrences o) {
  const int r = blockIdx.x * blockDim.x + threadIdx.x;
  if (r >= n) return;
  const int64_t row = tokens[r] - first_row;
  o.slot[r] = row >= 0 && row < table_rows ? atomicAdd(o.count + row, 1) : -1;
}
// The position that was counted first takes a place for its row.
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
// A position comes behind all smaller ones of its row.
__global__ void sort_kernel(const int* tokens, int n, int64_t first_row, Occurrences o) {
  const int r = blockIdx.x * blockDim.x + threadIdx.x;
  if (r >= n || o.slot[r] < 0) return;
  const int64_t row = tokens[r] - first_row;
  const int* const all = o.unsorted + o.offset[row];
  int smaller = 0;
  for (int k = 0; k < o.count[row]; ++k) smaller += all[k] < r;
  o.sorted[o.offset[row] + smaller] = r;
}

// RowGrid over the n positions; only that which took its row's place works, for all of the row's positions in order.
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
    // In text one token in twenty may be the same: thousands of rows for one block, of which many are to be on their
    // way.
#pragma unroll 16
    for (int k = 0; k < count; ++k) {
      const Pack pack = load_pack(dout + static_cast<int64_t>(positions[k]) * h, i, h, whole);
#pragma unroll
      for (int j = 0; j < kPack; ++j) sum.v[j] += pack.v[j];
    }
    store_pack(dtable + row * h, i, h, whole, sum);
  });
}

// RowGrid over s * b rows: out = dropout(x + positions).
template <class T>
__global__ void position_forward_kernel(const T* x, const T* positions, DropoutArgs dropout, T* out, int64_t b,
                                        int64_t h, int chunks, bool vectors) {
  const int64_t row = blockIdx.x / chunks;
  const int64_t i = (static_cast<int64_t>(blockIdx.x % chunks) * blockDim.x + threadIdx.x) * kPack;
  if (i >= h) return;
  with_flag(vectors, [&](auto whole) {
    Pack sum = load_pack(x + row * h, i, h, whole);
    const Pack position = load_pack(positions + row / b * h, i, h, whole);
    const Pack scale = dropout.scales(row, b, h, i);
#pragma unroll
    for (int k = 0; k < kPack; ++k) sum.v[k] = (sum.v[k] + position.v[k]) * scale.v[k];
    store_pack(out + row * h, i, h, whole, sum);
  });
}

// RowGrid over the s positions; a thread adds its pack of the b rows of its position, in order.
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

void CudaOps::embedding_forward(Tensor tokens, Tensor table, int64_t first_row, Tensor out, Stream& stream) {
  constexpr const char* kOp = "embedding_forward";
  shapes::expect_float(kOp, "table", table);
  const int64_t n = tokens.numel(), h = table.cols();
  shapes::expect_vector(kOp, "tokens", tokens, DType::i32, n);
  shapes::expect_matrix(kOp, "out", out, table.dtype, n, h);
  if (n * h == 0) return;
  enqueue(stream, {kOp, Category::compute}, [&](cudaStream_t raw_stream) {
    const RowGrid grid(n, h, kOp);
    dispatch_device(table.dtype, [&]<class T>() {
      launch_kernel(embedding_forward_kernel<T>, {grid.grid, grid.block, raw_stream}, tokens.as<int32_t>(),
                    static_cast<const T*>(table.data), table.rows(), first_row, h, grid.chunks,
                    h % kPack == 0 && aligned(table, out), static_cast<T*>(out.data));
    });
  });
}

void CudaOps::embedding_backward(Tensor tokens, Tensor dout, int64_t first_row, Tensor dtable, Stream& stream) {
  constexpr const char* kOp = "embedding_backward";
  shapes::check_embedding_backward(tokens, dout, dtable);
  const int64_t n = tokens.numel(), h = dout.cols(), table_rows = dtable.rows();
  if (n * h == 0) return;
  if (n > 0x3fffffff) fail("embedding_backward: " + std::to_string(n) + " tokens are more than a call takes");
  enqueue(stream, {kOp, Category::compute}, [&](cudaStream_t raw_stream) {
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
    check_cuda(cudaMemsetAsync(o.count, 0, static_cast<size_t>(table_rows + 1) * sizeof(int), raw_stream),
               "cudaMemsetAsync");
    const int count = static_cast<int>(n);
    const unsigned int positions = blocks(ceil_div(n, 256), kOp);
    const int* const ids = tokens.as<int32_t>();
    launch_kernel(count_kernel, {positions, 256, raw_stream}, ids, count, first_row, table_rows, o);
    launch_kernel(place_kernel, {positions, 256, raw_stream}, ids, count, first_row, o);
    launch_kernel(collect_kernel, {positions, 256, raw_stream}, ids, count, first_row, o);
    launch_kernel(sort_kernel, {positions, 256, raw_stream}, ids, count, first_row, o);
    const RowGrid grid(n, h, kOp);
    dispatch_device(dout.dtype, [&]<class T>() {
      launch_kernel(embedding_backward_kernel<T>, {grid.grid, grid.block, raw_stream}, ids,
                    static_cast<const T*>(dout.data), first_row, h, grid.chunks,
                    h % kPack == 0 && aligned(dout, dtable), o, dtable.as<float>());
    });
  });
}

void CudaOps::position_forward(Tensor x, Tensor positions, const Dropout& dropout, Tensor out, Stream& stream) {
  constexpr const char* kOp = "position_forward";
  shapes::check_position_forward(x, positions, dropout, out);
  const int64_t s = x.shape[0], b = x.shape[1], h = x.shape[2];
  if (x.numel() == 0) return;
  enqueue(stream, {kOp, Category::compute}, [&](cudaStream_t raw_stream) {
    const RowGrid grid(s * b, h, kOp);
    dispatch_device(x.dtype, [&]<class T>() {
      launch_kernel(position_forward_kernel<T>, {grid.grid, grid.block, raw_stream}, static_cast<const T*>(x.data),
                    static_cast<const T*>(positions.data), DropoutArgs(dropout), static_cast<T*>(out.data), b, h,
                    grid.chunks, h % kPack == 0 && aligned(x, positions, out));
    });
  });
}

void CudaOps::position_backward(Tensor dout, const Dropout& dropout, Tensor dx, Tensor dpositions, Stream& stream) {
  constexpr const char* kOp = "position_backward";
  shapes::check_position_backward(dout, dropout, dx, dpositions);
  const int64_t s = dout.shape[0], b = dout.shape[1], h = dout.shape[2];
  if (dout.numel() == 0) return;
  enqueue(stream, {kOp, Category::compute}, [&](cudaStream_t raw_stream) {
    const RowGrid grid(s, h, kOp);
    dispatch_device(dout.dtype, [&]<class T>() {
      launch_kernel(position_backward_kernel<T>, {grid.grid, grid.block, raw_stream}, static_cast<const T*>(dout.data),
                    DropoutArgs(dropout), static_cast<T*>(dx.data), dpositions.as<float>(), b, h, grid.chunks,
                    h % kPack == 0 && aligned(dout, dx, dpositions));
    });
  });
}

}  // namespace trivet
