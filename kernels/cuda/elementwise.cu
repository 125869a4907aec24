// Activations, add, convert; bias or position, dropout and residual; sums over rows; fill and clear. All of these are
// memory-bound: each element is read once and written once, in 16-byte accesses, so the roofline is memory bandwidth.
// (GELU forward: about 20 instructions per element for 4 bytes in bf16; some 27 would fit.)
#include <bit>

#include "base/piece.h"
#include "kernels/base/fp8.h"
#include "kernels/cuda/chunk_table.cuh"
#include "kernels/cuda/column_partials.cuh"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/dropout.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/reduce.cuh"

namespace trivet {
namespace {

// ---- elementwise

// This back end's arithmetic, for the formulas of kernels/activation.h.
struct Math {
  __device__ static float exp(float x) { return __expf(x); }
  __device__ static float exp_in_range(float x) { return __expf(x); }
  __device__ static float quotient(float a, float b) { return __fdividef(a, b); }
  __device__ static float clamp(float x, float low, float high) { return x < low ? low : x > high ? high : x; }
};
template <class Formulas>
struct Value {
  __device__ float operator()(float x) const { return Formulas::value(x); }
};
template <class Formulas>
struct TimesSlope {
  __device__ float operator()(float x, float dy) const { return dy * Formulas::slope(x); }
};
struct Identity {
  __device__ float operator()(float x) const { return x; }
};

// out[i] = f(in[i], …). Each thread handles one pack of the flat arrays.
template <class F, class Out, class... In>
__global__ void map_kernel(F f, int64_t n, bool vectors, Out* out, const In*... in) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kPack;
  if (i >= n) return;
  with_flag(is_whole(i, n, vectors), [&](auto whole) {
    const auto map = [&](const auto&... packs) {
      Pack result;
#pragma unroll
      for (int k = 0; k < kPack; ++k) result.v[k] = f(packs.v[k]...);
      store_pack(out, i, n, whole, result);
    };
    map(load_pack(in, i, n, whole)...);
  });
}

template <class In, class Out, class F, class... Inputs>
void launch_map(const char* op, F f, const Tensor& out, cudaStream_t stream, const Inputs&... in) {
  const int64_t n = out.numel();
  if (n == 0) return;
  launch_kernel(map_kernel<F, Out, std::conditional_t<true, In, Inputs>...>,
                {blocks(ceil_div(n, kBlockThreads * kPack), op), kBlockThreads, stream}, f, n, aligned(out, in...),
                static_cast<Out*>(out.data), static_cast<const In*>(in.data)...);
}

// ---- kernels

// Each thread handles one pack of a row of [n, f] and the two packs of [n, 2 f] that belong to it, as RowGrid assigns
// them. If dy is null, out is y, computed from x; otherwise out is dx, computed from x and dy.
template <class Formulas, class T>
__global__ void gated_kernel(const T* x, const T* dy, int64_t f, int chunks, bool vectors, T* out) {
  const int64_t row = blockIdx.x / chunks;
  const int64_t i = (static_cast<int64_t>(blockIdx.x % chunks) * blockDim.x + threadIdx.x) * kPack;
  if (i >= f) return;
  const T* const gates = x + row * 2 * f;
  with_flag(vectors, [&](auto whole) {
    Pack gate = load_pack(gates, i, f, whole), up = load_pack(gates + f, i, f, whole);
    if (!dy) {
#pragma unroll
      for (int k = 0; k < kPack; ++k) gate.v[k] = Formulas::value(gate.v[k]) * up.v[k];
      store_pack(out + row * f, i, f, whole, gate);
      return;
    }
    const Pack d = load_pack(dy + row * f, i, f, whole);
#pragma unroll
    for (int k = 0; k < kPack; ++k) {
      const auto act = Formulas::value_and_slope(gate.v[k]);
      gate.v[k] = d.v[k] * up.v[k] * act.slope;
      up.v[k] = d.v[k] * act.value;
    }
    store_pack(out + row * 2 * f, i, f, whole, gate);
    store_pack(out + row * 2 * f + f, i, f, whole, up);
  });
}

// Each thread handles one pack of a row of [n, h], as RowGrid assigns them.
// out = residual + (x + added) * mask. Row r of x gets row ids[r] of `added`; without ids, row r / repeats, or row 0 if
// repeats is 0. added, residual and ids may be null; a null term is 0.
template <class T>
__global__ void dropout_add_kernel(const T* x, const T* added, int64_t repeats, const int* ids, const T* residual,
                                   DropoutArgs dropout, T* out, int64_t b, int64_t h, int chunks, bool vectors) {
  const int64_t row = blockIdx.x / chunks;
  const int64_t i = (static_cast<int64_t>(blockIdx.x % chunks) * blockDim.x + threadIdx.x) * kPack;
  if (i >= h) return;
  const int64_t at = row * h, at_added = (ids ? ids[row] : repeats > 0 ? row / repeats : 0) * h;
  with_flag(vectors, [&](auto whole) {
    Pack sum = load_pack(x + at, i, h, whole), beside{}, addend{};
    if (residual) beside = load_pack(residual + at, i, h, whole);
    if (added) addend = load_pack(added + at_added, i, h, whole);
    const Pack scale = dropout.scales(row, b, h, i);
#pragma unroll
    for (int k = 0; k < kPack; ++k) {
      if (added) sum.v[k] += addend.v[k];
      sum.v[k] = beside.v[k] + sum.v[k] * scale.v[k];
    }
    store_pack(out + at, i, h, whole, sum);
  });
}

// Each thread writes 16 bytes of a pattern that repeats every 8 bytes; byte by byte at the end, or if x is not aligned.
__global__ void fill_kernel(unsigned char* x, uint64_t pattern, int64_t bytes) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * 16;
  if (i >= bytes) return;
  if (i + 16 <= bytes && reinterpret_cast<uintptr_t>(x) % 16 == 0)
    *reinterpret_cast<ulonglong2*>(x + i) = {pattern, pattern};
  else
    for (int64_t k = i; k < min(i + 16, bytes); ++k) x[k] = static_cast<unsigned char>(pattern >> (k % 8 * 8));
}

struct Bytes {
  unsigned char* x;
  int64_t bytes;
};
using Cleared = ChunkTable<Bytes, piece(400, 3)>;  // a block clears a chunk

// Each thread writes 16 zeros; one by one at the end, or if the tensor is not aligned.
__global__ void __launch_bounds__(kBlockThreads) clear_kernel(const __grid_constant__ Cleared cleared) {
  const int which = cleared.find(blockIdx.x);
  const Bytes& t = cleared.entry[which];
  const int64_t i = ((blockIdx.x - cleared.first[which]) * blockDim.x + threadIdx.x) * 16;
  if (i + 16 <= t.bytes && reinterpret_cast<uintptr_t>(t.x) % 16 == 0) *reinterpret_cast<ulonglong2*>(t.x + i) = {0, 0};
  else
    for (int64_t k = i; k < min(i + 16, t.bytes); ++k) t.x[k] = 0;
}

// Each block sums a tile of 256 columns (one pack per lane) over every gridDim.y-th group of 8 rows (one row per warp)
// and writes the sums to partials[blockIdx.y][columns].
template <class T>
__global__ void __launch_bounds__(256)
    column_sum_kernel(const T* x, int64_t n, int64_t columns, bool vectors, float* partials) {
  constexpr int kRows = 8;  // one per warp
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

void launch_dropout_add(const char* op, const Tensor& x, const Tensor& added, int64_t repeats, const Tensor& residual,
                        const Dropout& dropout, const Tensor& out, cudaStream_t stream, const Tensor& ids = {}) {
  const int64_t n = x.rows(), b = x.shape[1], h = x.shape[2];
  if (n * h == 0) return;
  const RowGrid grid(n, h, op);
  dispatch_device(x.dtype, [&]<class T>() {
    launch_kernel(dropout_add_kernel<T>, {grid.grid, grid.block, stream}, elements<T>(x), elements<T>(added), repeats,
                  elements<int32_t>(ids), elements<T>(residual), DropoutArgs(dropout), elements<T>(out), b, h, grid.chunks,
                  h % kPack == 0 && aligned(x, added, residual, out));
  });
}

template <class Formulas, class T>
void launch_gated(const char* op, const Tensor& x, const Tensor& dy, const Tensor& out, cudaStream_t stream) {
  const int64_t n = x.rows(), f = x.cols() / 2;
  if (n * f == 0) return;
  const RowGrid grid(n, f, op);
  launch_kernel(gated_kernel<Formulas, T>, {grid.grid, grid.block, stream}, elements<T>(x), elements<T>(dy), f,
                grid.chunks, f % kPack == 0 && aligned(x, dy, out), elements<T>(out));
}

}  // namespace

void CudaOps::launch(const op::ActivationForward& op, cudaStream_t stream) {
  const char* const name = op.kSpan.name;
  dispatch_device(op.x.dtype, [&]<class T>() {
    with_formulas<Math>(
        op.kind, [&]<class F>(F) { launch_map<T, T>(name, Value<F>(), op.y, stream, op.x); },
        [&]<class F>(F) { launch_gated<F, T>(name, op.x, {}, op.y, stream); });
  });
}

void CudaOps::launch(const op::ActivationBackward& op, cudaStream_t stream) {
  const char* const name = op.kSpan.name;
  dispatch_device(op.x.dtype, [&]<class T>() {
    with_formulas<Math>(
        op.kind, [&]<class F>(F) { launch_map<T, T>(name, TimesSlope<F>(), op.dx, stream, op.x, op.dy); },
        [&]<class F>(F) { launch_gated<F, T>(name, op.x, op.dy, op.dx, stream); });
  });
}

void CudaOps::launch(const op::ColumnSum& op, cudaStream_t stream) {
  const int64_t n = op.x.rows(), columns = op.x.cols();
  if (n * columns == 0) return;
  // Enough blocks to fill the GPU, but with at least 32 rows per block.
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
  launch_dropout_add(op.kSpan.name, op.x, op.bias, 0, op.residual, op.dropout, op.out, stream);
}

void CudaOps::launch(const op::PositionForward& op, cudaStream_t stream) {
  launch_dropout_add(op.kSpan.name, op.x, op.positions, op.x.shape[1], {}, op.dropout, op.out, stream, op.ids);
}

void CudaOps::launch(const op::DropoutBackward& op, cudaStream_t stream) {
  if (op.dropout.probability == 0 && op.dx.data == op.dout.data) return;
  launch_dropout_add(op.kSpan.name, op.dout, {}, 0, {}, op.dropout, op.dx, stream);
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
    case DType::e4m3: pattern = E4m3::encode(op.value) * 0x101010101010101ull; break;
    case DType::e5m2: pattern = E5m2::encode(op.value) * 0x101010101010101ull; break;
  }
  launch_kernel(fill_kernel, {blocks(ceil_div(op.x.bytes(), kBlockThreads * 16), op.kSpan.name), kBlockThreads, stream},
                static_cast<unsigned char*>(op.x.data), pattern, op.x.bytes());
}

void CudaOps::launch(const op::Clear& op, cudaStream_t stream) {
  const auto bytes_of = [](const Tensor& x) {
    return std::pair(Bytes{static_cast<unsigned char*>(x.data), x.bytes()}, ceil_div(x.bytes(), kBlockThreads * 16));
  };
  launch_tables<Cleared>(op.xs, bytes_of, [&](const Cleared& cleared, int64_t chunks) {
    launch_kernel(clear_kernel, {blocks(chunks, op.kSpan.name), kBlockThreads, stream}, cleared);
  });
}

void CudaOps::launch(const op::Convert& op, cudaStream_t stream) {
  if (op.from.dtype == op.to.dtype) {
    check_cuda(cudaMemcpyAsync(op.to.data, op.from.data, static_cast<size_t>(op.from.bytes()), cudaMemcpyDeviceToDevice,
                               stream),
               "cudaMemcpyAsync");
    return;
  }
  dispatch_device(op.from.dtype, [&]<class From>() {
    using To = std::conditional_t<std::is_same_v<From, float>, __nv_bfloat16, float>;
    launch_map<From, To>(op.kSpan.name, Identity(), op.to, stream, op.from);
  });
}

void CudaOps::launch(const op::Add& op, cudaStream_t stream) {
  dispatch_device(op.a.dtype, [&]<class T>() { launch_map<T, T>(op.kSpan.name, Sum(), op.out, stream, op.a, op.b); });
}

}  // namespace trivet
