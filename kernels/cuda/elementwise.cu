// Bias, dropout and residual; sums over rows; fill, convert, add. All of these only move memory: each element is read
// once and written once, in accesses of 16 bytes, and the roofline is the bandwidth.
#include <bit>

#include "kernels/cuda/column_partials.cuh"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/dropout.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/piece_table.cuh"

namespace trivet {
namespace {

// ---- kernels

// A thread has one pack of a row of [n, h], as RowGrid deals them out.
// out = residual + (x + bias) * mask; bias and residual may be null (0). Without residual: a dropout's backward pass.
template <class T>
__global__ void bias_dropout_add_kernel(const T* x, const T* bias, const T* residual, DropoutArgs dropout, T* out,
                                        int64_t b, int64_t h, int chunks, bool vectors) {
  const int64_t row = blockIdx.x / chunks;
  const int64_t i = (static_cast<int64_t>(blockIdx.x % chunks) * blockDim.x + threadIdx.x) * kPack;
  if (i >= h) return;
  const int64_t at = row * h;
  with_flag(vectors, [&](auto whole) {
    Pack sum = load_pack(x + at, i, h, whole), beside{}, added{};
    if (residual) beside = load_pack(residual + at, i, h, whole);
    if (bias) added = load_pack(bias, i, h, whole);
    const Pack scale = dropout.scales(row, b, h, i);
#pragma unroll
    for (int k = 0; k < kPack; ++k) {
      if (bias) sum.v[k] += added.v[k];
      sum.v[k] = beside.v[k] + sum.v[k] * scale.v[k];
    }
    store_pack(out + at, i, h, whole, sum);
  });
}

// A thread has one pack of a flat array.
template <class T>
__global__ void add_kernel(const T* a, const T* b, T* out, int64_t n, bool vectors) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kPack;
  if (i >= n) return;
  with_flag(is_whole(i, n, vectors), [&](auto whole) {
    Pack sum = load_pack(a, i, n, whole);
    const Pack other = load_pack(b, i, n, whole);
#pragma unroll
    for (int k = 0; k < kPack; ++k) sum.v[k] += other.v[k];
    store_pack(out, i, n, whole, sum);
  });
}

template <class From, class To>
__global__ void convert_kernel(const From* from, To* to, int64_t n, bool vectors) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kPack;
  if (i < n) store_pack(to, i, n, vectors, load_pack(from, i, n, vectors));
}

// A thread writes 16 bytes of a pattern that repeats every 8 bytes; the last ones, byte by byte.
__global__ void fill_kernel(unsigned char* x, uint64_t pattern, int64_t bytes) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * 16;
  if (i >= bytes) return;
  if (i + 16 <= bytes && reinterpret_cast<uintptr_t>(x) % 16 == 0)
    *reinterpret_cast<ulonglong2*>(x + i) = {pattern, pattern};
  else
    for (int64_t k = i; k < min(i + 16, bytes); ++k) x[k] = static_cast<unsigned char>(pattern >> (k % 8 * 8));
}

struct Cleared {
  unsigned char* x;
  int64_t bytes;
};
using ClearedPieces = PieceTable<Cleared, 400>;  // its parts are what a block clears

// A thread writes 16 zeros, or the last few or those of a piece that is not aligned one by one.
__global__ void __launch_bounds__(256) clear_kernel(const __grid_constant__ ClearedPieces pieces) {
  const int which = pieces.find(blockIdx.x);
  const Cleared& piece = pieces.piece[which];
  const int64_t i = ((blockIdx.x - pieces.first[which]) * blockDim.x + threadIdx.x) * 16;
  if (i + 16 <= piece.bytes && reinterpret_cast<uintptr_t>(piece.x) % 16 == 0)
    *reinterpret_cast<ulonglong2*>(piece.x + i) = {0, 0};
  else
    for (int64_t k = i; k < min(i + 16, piece.bytes); ++k) piece.x[k] = 0;
}

// A block takes a tile of 256 columns (a lane has a pack of them) and every gridDim.y-th group of 8 rows (a warp has
// one of them); its sums over rows go to partials[blockIdx.y][columns].
template <class T>
__global__ void __launch_bounds__(256)
    column_sum_kernel(const T* x, int64_t n, int64_t columns, bool vectors, float* partials) {
  constexpr int kRows = 8;  // warps
  __shared__ float shared[kRows][256 + 8];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * 256, column = first + lane * kPack;
  Pack sum{};
  if (column < columns)
    with_flag(vectors, [&](auto whole) {
#pragma unroll 4
      for (int64_t row = static_cast<int64_t>(blockIdx.y) * kRows + warp; row < n; row += gridDim.y * kRows) {
        const Pack pack = load_pack(x + row * columns, column, columns, whole);
#pragma unroll
        for (int k = 0; k < kPack; ++k) sum.v[k] += pack.v[k];
      }
    });
#pragma unroll
  for (int k = 0; k < kPack; ++k) shared[warp][lane * kPack + k] = sum.v[k];
  __syncthreads();
  const int64_t mine = first + threadIdx.x;
  float total = 0;
#pragma unroll
  for (int row = 0; row < kRows; ++row) total += shared[row][threadIdx.x];
  if (mine < columns) partials[blockIdx.y * columns + mine] = total;
}

// ---- launchers

constexpr int kThreads = 256;

unsigned int grid_of_packs(int64_t n, const char* op) { return blocks(ceil_div(n, kThreads * kPack), op); }

void launch_bias_dropout_add(const char* op, const Tensor& x, const Tensor& bias, const Tensor& residual,
                             const Dropout& dropout, const Tensor& out, cudaStream_t stream) {
  const int64_t n = x.rows(), b = x.shape[1], h = x.shape[2];
  if (n * h == 0) return;
  const RowGrid grid(n, h, op);
  dispatch_device(x.dtype, [&]<class T>() {
    launch_kernel(bias_dropout_add_kernel<T>, {grid.grid, grid.block, stream}, elements<T>(x), elements<T>(bias),
                  elements<T>(residual), DropoutArgs(dropout), elements<T>(out), b, h, grid.chunks,
                  h % kPack == 0 && aligned(x, bias, residual, out));
  });
}

}  // namespace

void CudaOps::launch(const op::ColumnSum& op, cudaStream_t stream) {
  const int64_t n = op.x.rows(), columns = op.x.cols();
  if (n * columns == 0) return;
  // Enough blocks to fill the GPU, but at least 32 rows for each.
  const int64_t tiles = ceil_div(columns, 256);
  const int64_t parts = std::clamp<int64_t>(ceil_div(6 * multiprocessors_, tiles), 1, ceil_div(n, 32));
  auto* const partials = reinterpret_cast<float*>(workspaces_.take(stream, parts * columns * 4));
  const dim3 grid(blocks(tiles, op.kSpan.name), static_cast<unsigned int>(std::min<int64_t>(parts, 65535)));
  dispatch_device(op.x.dtype, [&]<class T>() {
    launch_kernel(column_sum_kernel<T>, {grid, 256, stream}, elements<T>(op.x), n, columns,
                  columns % kPack == 0 && aligned(op.x), partials);
  });
  add_column_partials(partials, grid.y, columns, op.sum.as<float>(), nullptr, stream);
}

void CudaOps::launch(const op::BiasDropoutAdd& op, cudaStream_t stream) {
  launch_bias_dropout_add(op.kSpan.name, op.x, op.bias, op.residual, op.dropout, op.out, stream);
}

void CudaOps::launch(const op::DropoutBackward& op, cudaStream_t stream) {
  if (op.dropout.probability == 0 && op.dx.data == op.dout.data) return;
  launch_bias_dropout_add(op.kSpan.name, op.dout, {}, {}, op.dropout, op.dx, stream);
}

void CudaOps::launch(const op::Fill& op, cudaStream_t stream) {
  if (op.x.numel() == 0) return;
  uint64_t pattern = 0;
  switch (op.x.dtype) {
    case DType::f32: pattern = std::bit_cast<uint32_t>(op.value) * 0x100000001ull; break;
    case DType::bf16: pattern = bf16(op.value).bits * 0x1000100010001ull; break;
    case DType::i32: pattern = static_cast<uint32_t>(static_cast<int32_t>(op.value)) * 0x100000001ull; break;
    case DType::i64: pattern = static_cast<uint64_t>(static_cast<int64_t>(op.value)); break;
    case DType::u8: pattern = static_cast<uint8_t>(op.value) * 0x101010101010101ull; break;
  }
  launch_kernel(fill_kernel, {blocks(ceil_div(op.x.bytes(), kThreads * 16), op.kSpan.name), kThreads, stream},
                static_cast<unsigned char*>(op.x.data), pattern, op.x.bytes());
}

void CudaOps::launch(const op::Clear& op, cudaStream_t stream) {
  const auto piece_of = [](const Tensor& x) {
    return std::pair(Cleared{static_cast<unsigned char*>(x.data), x.bytes()}, ceil_div(x.bytes(), kThreads * 16));
  };
  launch_tables<ClearedPieces>(op.xs, piece_of, [&](const ClearedPieces& pieces) {
    launch_kernel(clear_kernel, {blocks(pieces.total(), op.kSpan.name), kThreads, stream}, pieces);
  });
}

void CudaOps::launch(const op::Convert& op, cudaStream_t stream) {
  const int64_t n = op.from.numel();
  if (op.from.dtype == op.to.dtype) {
    check_cuda(cudaMemcpyAsync(op.to.data, op.from.data, static_cast<size_t>(op.from.bytes()), cudaMemcpyDeviceToDevice,
                               stream),
               "cudaMemcpyAsync");
    return;
  }
  if (n == 0) return;
  dispatch_device(op.from.dtype, [&]<class From>() {
    using To = std::conditional_t<std::is_same_v<From, float>, __nv_bfloat16, float>;
    launch_kernel(convert_kernel<From, To>, {grid_of_packs(n, op.kSpan.name), kThreads, stream},
                  elements<From>(op.from), elements<To>(op.to), n, aligned(op.from, op.to));
  });
}

void CudaOps::launch(const op::Add& op, cudaStream_t stream) {
  const int64_t n = op.a.numel();
  if (n == 0) return;
  dispatch_device(op.a.dtype, [&]<class T>() {
    launch_kernel(add_kernel<T>, {grid_of_packs(n, op.kSpan.name), kThreads, stream}, elements<T>(op.a),
                  elements<T>(op.b), elements<T>(op.out), n, aligned(op.a, op.b, op.out));
  });
}

}  // namespace trivet
