// GEMMs: cuBLASLt (cuda_gemms.h), and small kernels for the rest: k = 0, shapes without an algorithm, a bf16 bias with
// an fp32 result, work outside epilogues, and FP8 operands in a layout that the library does not accept.
#include "kernels/base/arena.h"
#include "kernels/base/fp8.h"
#include "kernels/cuda/column_partials.cuh"
#include "kernels/cuda/cuda_gemms.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/pack.cuh"

namespace trivet {
namespace {

// ---- kernels

// One thread per element of c. Correct for every shape, but slow. bias: null for none.
template <class T, class C>
__global__ void plain_gemm_kernel(const T* a, const T* b, const T* bias, C* c, int64_t m, int64_t n, int64_t k,
                                  bool transpose_a, bool transpose_b, bool accumulate) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= m * n) return;
  const int64_t row = i / n, column = i % n;
  float sum = 0;
  for (int64_t l = 0; l < k; ++l)
    sum += to_float(a[transpose_a ? l * m + row : row * k + l]) *
           to_float(b[transpose_b ? column * k + l : l * n + column]);
  if (accumulate) sum += to_float(c[i]);
  if (bias) sum += to_float(bias[column]);
  c[i] = from_float<C>(sum);
}

// One thread per element: c[m, n] += bias[n].
template <class T, class C>
__global__ void add_bias_kernel(const T* bias, C* c, int64_t m, int64_t n) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < m * n) c[i] = from_float<C>(to_float(c[i]) + to_float(bias[i % n]));
}

// One thread per value of a matrix of n values.
template <class Format>
__global__ void decode_kernel(const uint8_t* values, const float* scale, ScaleBlocks blocks, __nv_bfloat16* to,
                              int64_t n, int64_t columns) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < n)
    to[i] = from_float<__nv_bfloat16>(Format::decode(values[i]) * scale[blocks.index(i / columns, i % columns)]);
}

// to = the scales of an operand as the library reads them (CudaGemm), padded with zeros. One thread per scale: of block
// `b` along k, at row or column `outer` of c or, if `squares`, block of these. along_rows: k is along the operand's
// rows.
__global__ void arrange_scales_kernel(const float* from, ScaleBlocks blocks, float* to, int64_t outers, int64_t count,
                                      bool along_rows, bool squares) {
  constexpr int64_t kSize = ScaleBlocks::kSize;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t pitch = squares ? (count + 3) / 4 * 4 : count;
  if (i >= outers * pitch) return;
  const int64_t b = squares ? i % pitch : i / outers, outer = squares ? i / pitch * kSize : i % outers;
  to[i] = b >= count ? 0 : from[along_rows ? blocks.index(b * kSize, outer) : blocks.index(outer, b * kSize)];
}

// to[columns, rows] = the transpose of the bytes from[rows, columns]. REQUIRES: rows % 16 == 0, and `to` is 16-byte
// aligned. vectors: the same holds for columns and `from`.
//
// Hopper multiplies FP8 operands only if both are K-major, as they are in the forward pass. The input gradient needs
// the weight transposed; the weight gradient needs both operands transposed. By counting, for fc1 of Llama 3.1 8B at
// 8,192 tokens (28,672 x 4,096) on an H200: reading and writing the weight's 117 MB at 4.8 TB/s takes 49 us next to a
// 972 us GEMM (1.92 TFLOP at 1,979 TFLOP/s); the 268 MB of dy and x take 112 us next to another: 5.5 % of the three
// GEMMs. A quantiser that wrote both orders would save the reads, half of that. But in the other order, a gather over
// positions is not a concatenation, weights in both orders take another byte per parameter, and CPUs need one order.
constexpr int kTile = 128, kTransposeThreads = 256;

// One block per tile. A thread loads 16 columns of 4 rows, and stores each column's 4 bytes as a word; then it loads
// 16 bytes of a column. Each group of 16 columns permutes its 16-byte vectors differently, so that neither the 32 words
// that a warp stores together (8 columns, 16 apart, by 4) nor the 8 vectors that a quarter-warp loads share a bank.
__global__ void __launch_bounds__(kTransposeThreads)
    transpose_kernel(const uint8_t* from, uint8_t* to, int64_t rows, int64_t columns, bool vectors) {
  __shared__ uint4 tile[kTile][kTile / 16];
  const int64_t across = (columns + kTile - 1) / kTile;
  const int64_t first_row = blockIdx.x / across * kTile, first_column = blockIdx.x % across * kTile;
  const int group = threadIdx.x % 8, word = threadIdx.x / 8;
  const int64_t row = first_row + 4 * word, column = first_column + 16 * group;
  alignas(16) uint32_t in[4][4] = {};
  if (row < rows && column < columns)
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const uint8_t* const at = from + (row + r) * columns + column;
      if (vectors) {
        *reinterpret_cast<uint4*>(in[r]) = *reinterpret_cast<const uint4*>(at);
      } else {
#pragma unroll
        for (int c = 0; c < 16; ++c)
          if (column + c < columns) in[r][c / 4] |= static_cast<uint32_t>(at[c]) << (c % 4 * 8);
      }
    }
#pragma unroll
  for (int c = 0; c < 16; ++c) {
    uint32_t bytes = 0;
#pragma unroll
    for (int r = 0; r < 4; ++r) bytes |= (in[r][c / 4] >> (c % 4 * 8) & 0xffu) << (8 * r);
    reinterpret_cast<uint32_t*>(tile[16 * group + c])[word ^ (4 * group)] = bytes;
  }
  __syncthreads();
#pragma unroll
  for (int c = static_cast<int>(threadIdx.x) / 8; c < kTile; c += 32)
    if (first_column + c < columns && first_row + 16 * group < rows)
      *reinterpret_cast<uint4*>(to + (first_column + c) * rows + first_row + 16 * group) = tile[c][group ^ (c / 16)];
}

// ---- launchers

// Whether the library can read an operand with these scales. along_rows: k is along its rows.
ScaleMode mode_of(const Tensor& values, const Tensor& scale, bool along_rows) {
  if (!ScaleBlocks::given(scale)) return ScaleMode::tensor;
  const ScaleBlocks blocks(scale, values);
  const bool in_step = ScaleBlocks::aligned(scale, values);
  if ((along_rows ? values.rows() : values.cols()) % 16 != 0 || (along_rows && !in_step)) return ScaleMode::foreign;
  if ((along_rows ? blocks.rows : blocks.columns) != ScaleBlocks::kSize) return ScaleMode::foreign;
  // The rows of squares that begin elsewhere have scales of their own.
  return (along_rows ? blocks.columns : blocks.rows) == 1 || !in_step ? ScaleMode::vectors : ScaleMode::squares;
}

Tensor decode(const Tensor& values, const Tensor& scale, std::byte* to, cudaStream_t stream) {
  const Tensor decoded{to, DType::bf16, values.shape};
  const int64_t n = values.numel();
  dispatch_fp8(values.dtype, [&]<class Format>() {
    if (n > 0)
      launch_kernel(decode_kernel<Format>, {blocks(ceil_div(n, kBlockThreads), "matmul"), kBlockThreads, stream},
                    static_cast<const uint8_t*>(values.data), scale.as<float>(), ScaleBlocks(scale, values),
                    elements<bf16>(decoded), n, values.cols());
  });
  return decoded;
}

// Points `data` and `scale` of a GEMM at an operand as the library reads it: its codes transposed if k is along its
// rows, and its scales arranged. Copies are in `cut`, and are only counted if it has no memory.
void prepare(const Tensor& values, const Tensor& scales, bool along_rows, ScaleMode mode, WorkspaceCut& cut,
             const void*& data, const void*& scale, cudaStream_t stream) {
  const int64_t rows = values.rows(), columns = values.cols();
  const int64_t k = along_rows ? rows : columns, outer = along_rows ? columns : rows;
  if (along_rows) {
    auto* const to = cut.part<uint8_t>(rows * columns);
    if (to)
      launch_kernel(transpose_kernel,
                    {blocks(ceil_div(rows, kTile) * ceil_div(columns, kTile), "matmul"), kTransposeThreads, stream},
                    static_cast<const uint8_t*>(values.data), to, rows, columns, columns % 16 == 0 && aligned(values));
    data = to;
  }
  // Those of vectors along rows are in the library's order already.
  if (mode == ScaleMode::tensor || (mode == ScaleMode::vectors && along_rows)) return;
  const bool squares = mode == ScaleMode::squares;
  const int64_t outers = squares ? ScaleBlocks::count(outer) : outer, count = ScaleBlocks::count(k);
  const int64_t n = outers * (squares ? ceil_div(count, 4) * 4 : count);
  auto* const to = cut.part<float>(n);
  if (to)
    launch_kernel(arrange_scales_kernel, {blocks(ceil_div(n, kBlockThreads), "matmul"), kBlockThreads, stream},
                  scales.as<float>(), ScaleBlocks(scales, values), to, outers, count, along_rows, squares);
  scale = to;
}

// Calls f.template operator()<T, C>() for a GEMM's types.
template <class F>
void with_types(DType dtype, DType c_dtype, const F& f) {
  if (dtype == DType::f32) f.template operator()<float, float>();
  else if (c_dtype == DType::f32) f.template operator()<__nv_bfloat16, float>();
  else f.template operator()<__nv_bfloat16, __nv_bfloat16>();
}

}  // namespace

void CudaOps::launch(const op::Matmul& op, cudaStream_t stream) {
  const int64_t m = op.c.rows(), n = op.c.cols(), k = op.transpose_a ? op.a.rows() : op.a.cols();
  if (m * n == 0) return;
  const bool fp8 = is_fp8(op.a.dtype), fused_bias = op.bias && (fp8 || op.bias.dtype == op.c.dtype);
  CudaGemm gemm{.m = m,
                .n = n,
                .k = k,
                .transpose_a = op.transpose_a,
                .transpose_b = op.transpose_b,
                .accumulate = op.accumulate,
                // In forward passes; gradients, and what has block scales, are summed in fp32.
                .fast = op.a.dtype == DType::e4m3 && op.b.dtype == DType::e4m3 && !op.transpose_a && op.transpose_b &&
                        op.c.dtype == DType::bf16 && !ScaleBlocks::given(op.scales.a),
                .dtype = op.a.dtype,
                .b_dtype = op.b.dtype,
                .c_dtype = op.c.dtype,
                .a_scale = op.scales.a.data,
                .b_scale = op.scales.b.data,
                .a = op.a.data,
                .b = op.b.data,
                .c = op.c.data,
                .bias = fused_bias ? op.bias.data : nullptr,
                .pre_activation = op.pre_activation.data,
                .activation_backward = op.activation_backward.data,
                .activation = op.activation,
                .bias_grad = nullptr,
                .residual = op.residual.data,
                .a_mode = mode_of(op.a, op.scales.a, op.transpose_a),
                .b_mode = mode_of(op.b, op.scales.b, !op.transpose_b)};
  // Returns the bytes of the copies.
  const auto prepare_both = [&](std::byte* to) {
    WorkspaceCut cut(to);
    prepare(op.a, op.scales.a, op.transpose_a, gemm.a_mode, cut, gemm.a, gemm.a_scale, stream);
    prepare(op.b, op.scales.b, !op.transpose_b, gemm.b_mode, cut, gemm.b, gemm.b_scale, stream);
    return cut.bytes();
  };
  const bool prepares =
      fp8 && k > 0 && k % 16 == 0 && gemm.a_mode != ScaleMode::foreign && gemm.b_mode != ScaleMode::foreign;
  const int64_t behind = CudaGemms::kWorkspaceBytes;  // the library's comes first
  const int64_t copies = prepares ? prepare_both(nullptr) : 0;
  std::byte* const workspace = workspaces_.take(stream, behind + (op.bias_grad ? m * 4 : copies));
  if (prepares) {
    prepare_both(workspace + behind);
    gemm.transpose_a = false, gemm.transpose_b = true;
  }
  const auto run = [&](const CudaGemmApart* apart) { return k > 0 && gemms_->run(gemm, apart, workspace, stream); };
  // The kernels that follow a GEMM without an epilogue.
  const auto rest = [&](const Tensor& bias_grad) {
    if (op.pre_activation) launch(activation_of(op), stream);
    if (op.activation_backward) launch(activation_backward_of(op), stream);
    if (op.bias_grad) launch(op::ColumnSum{op.a, bias_grad}, stream);
    if (op.residual) launch(residual_of(op), stream);
  };
  if (gemm.has_epilogue() || op.bias_grad) {
    CudaGemm plain = gemm;
    plain.residual = nullptr;
    if (op.residual) plain.bias = nullptr;  // added with the residual
    plain.pre_activation = nullptr;
    plain.activation_backward = nullptr;
    if (op.pre_activation) plain.c = op.pre_activation.data;
    // The library overwrites the bias gradient, so we let it write the sum after its workspace; a kernel then adds it.
    const Tensor sum{op.bias_grad ? workspace + behind : nullptr, DType::f32, {m}};
    gemm.bias_grad = op.c.dtype == DType::f32 ? sum.data : nullptr;
    const CudaGemmApart apart{plain, [&] { rest(sum); }};
    if (gemm.has_epilogue() && run(&apart)) {
      if (sum) add_column_partials(sum.as<float>(), 1, m, op.bias_grad.as<float>(), nullptr, stream);
      return;
    }
    gemm = plain;
  }
  const bool done = run(nullptr);
  if (!done && fp8) {  // in bf16, as on a CPU: exact, except for values too small for bf16
    std::byte* const at = workspaces_.take(stream, behind + Scratch::padded(2 * m * k) + 2 * n * k) + behind;
    op::Matmul decoded = op;
    decoded.a = decode(op.a, op.scales.a, at, stream);
    decoded.b = decode(op.b, op.scales.b, at + Scratch::padded(2 * m * k), stream);
    decoded.scales = {};
    return launch(decoded, stream);  // needs no more workspace than precedes its operands
  }
  const Tensor bias = op.residual ? Tensor{} : Tensor(op.bias);
  if (!done || (bias && !fused_bias))
    with_types(op.a.dtype, op.c.dtype, [&]<class T, class C>() {
      const unsigned int grid = blocks(ceil_div(m * n, 256), op.kSpan.name);
      C* const to = static_cast<C*>(gemm.c);
      if (done) launch_kernel(add_bias_kernel<T, C>, {grid, 256, stream}, elements<T>(bias), to, m, n);
      else
        launch_kernel(plain_gemm_kernel<T, C>, {grid, 256, stream}, elements<T>(op.a), elements<T>(op.b),
                      elements<T>(bias), to, m, n, k, op.transpose_a, op.transpose_b, op.accumulate);
    });
  rest(op.bias_grad);
}

}  // namespace trivet
