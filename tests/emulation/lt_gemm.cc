#include "tests/emulation/lt_gemm.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cuda_fp8.h>
#include <limits>
#include <numeric>
#include <vector>

namespace trivet::emulation {
namespace {

// Uses NVIDIA's header, which is independent of kernels/base/fp8.h.
template <__nv_fp8_interpretation_t kKind>
float decoded(const void* data, int64_t i) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(static_cast<const __nv_fp8_storage_t*>(data)[i], kKind)));
}

float load(const void* data, cudaDataType_t type, int64_t i) {
  if (type == CUDA_R_32F) return static_cast<const float*>(data)[i];
  if (type == CUDA_R_8F_E4M3) return decoded<__NV_E4M3>(data, i);
  if (type == CUDA_R_8F_E5M2) return decoded<__NV_E5M2>(data, i);
  return std::bit_cast<float>(static_cast<uint32_t>(static_cast<const uint16_t*>(data)[i]) << 16);
}

// Rounds to nearest, ties to even.
uint16_t bf16_bits(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  if (std::isnan(x)) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

void store(void* data, cudaDataType_t type, int64_t i, float x) {
  if (type == CUDA_R_32F) static_cast<float*>(data)[i] = x;
  else static_cast<uint16_t*>(data)[i] = bf16_bits(x);
}

float rounded(cudaDataType_t type, float x) {
  return type == CUDA_R_32F ? x : std::bit_cast<float>(static_cast<uint32_t>(bf16_bits(x)) << 16);
}

// Rounds to 10 bits of mantissa, ties away from zero, like a tensor core's input.
float tf32(float x) {
  if (!std::isfinite(x)) return x;
  return std::bit_cast<float>((std::bit_cast<uint32_t>(x) + 0x1000) & ~0x1fffu);
}

// op(matrix) in fp32, [rows, columns], element (i, j) at i * along_rows + j * along_columns.
std::vector<float> unpacked(const LtProduct& p, const void* matrix, cudaDataType_t type, bool transposed, int64_t ld,
                            int64_t rows, int64_t columns, int64_t along_rows, int64_t along_columns) {
  std::vector<float> out(static_cast<size_t>(rows * columns));
  for (int64_t j = 0; j < columns; ++j)
    for (int64_t i = 0; i < rows; ++i) {
      const float x = load(matrix, type, transposed ? j + i * ld : i + j * ld);
      out[static_cast<size_t>(i * along_rows + j * along_columns)] = p.tf32 ? tf32(x) : x;
    }
  return out;
}

// sums[j * m + i] = the terms [begin, end) of the sum at (i, j), in order. Four columns at a time.
void add_terms(const LtProduct& p, const float* a, const float* b, int64_t begin, int64_t end, float* sums) {
  std::fill(sums, sums + p.m * p.n, 0.f);
  for (int64_t j = 0; j < p.n; j += 4) {
    const int64_t columns = std::min<int64_t>(4, p.n - j);
    for (int64_t l = begin; l < end; ++l) {
      const float* const column = a + l * p.m;
      for (int64_t c = 0; c < columns; ++c) {
        const float factor = b[(j + c) * p.k + l];
        float* const sum = sums + (j + c) * p.m;
        for (int64_t i = 0; i < p.m; ++i) sum[i] += column[i] * factor;
      }
    }
  }
}

// The same with scales of blocks, if there are any.
void add_up(const LtProduct& p, const float* a, const float* b, int64_t begin, int64_t end, float* sums) {
  if (!p.in_blocks()) return add_terms(p, a, b, begin, end, sums);
  std::fill(sums, sums + p.m * p.n, 0.f);
  std::vector<float> part(static_cast<size_t>(p.m * p.n));
  for (int64_t next = 0; begin < end; begin = next) {
    const int64_t l = begin / 128;
    next = std::min(end, (l + 1) * 128);
    add_terms(p, a, b, begin, next, part.data());
    for (int64_t j = 0; j < p.n; ++j)
      for (int64_t i = 0; i < p.m; ++i)
        sums[j * p.m + i] +=
            part[static_cast<size_t>(j * p.m + i)] * (p.a_scale[LtProduct::scale_at(p.a_mode, i, l, p.m, p.k)] *
                                                      p.b_scale[LtProduct::scale_at(p.b_mode, j, l, p.n, p.k)]);
  }
}

void poison(const LtProduct& p, void* matrix, int64_t ld) {
  for (int64_t j = 0; j < p.n; ++j)
    for (int64_t i = 0; i < p.m; ++i) store(matrix, p.d_type, i + j * ld, std::numeric_limits<float>::quiet_NaN());
}

// The tanh form.
constexpr float kScale = 0.7978845608028654f, kCubic = 0.044715f;  // sqrt(2 / pi)
float gelu(float x) { return 0.5f * x * (1 + std::tanh(kScale * (x + kCubic * x * x * x))); }
float gelu_gradient(float x) {
  const float t = std::tanh(kScale * (x + kCubic * x * x * x));
  return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * kScale * (1 + 3 * kCubic * x * x);
}

}  // namespace

void run(const LtProduct& p) {
  if (p.beta == 0) poison(p, p.d, p.ldd);
  if (p.gelu) poison(p, p.aux, p.ld_aux);
  for (int64_t j = 0; p.bias_gradient && j < p.n; ++j)
    store(p.bias_gradient, p.d_type, j, std::numeric_limits<float>::quiet_NaN());
  const std::vector<float> a = unpacked(p, p.a, p.type, p.transpose_a, p.lda, p.m, p.k, 1, p.m);
  const std::vector<float> b = unpacked(p, p.b, p.b_type, p.transpose_b, p.ldb, p.k, p.n, 1, p.k);
  // Sums each column in the GEMM's order: whole, or by halves.
  const int64_t half = p.algorithm == LtAlgorithm::whole ? p.k : p.k / 2;
  for (int64_t j = 0; p.bias_gradient && j < p.n; ++j) {
    const float* const column = b.data() + j * p.k;
    const float first = std::accumulate(column, column + half, 0.f);
    store(p.bias_gradient, p.d_type, j, first + std::accumulate(column + half, column + p.k, 0.f));
  }
  std::vector<float> own;
  float* sums = p.workspace;
  if (p.algorithm == LtAlgorithm::whole) {
    own.resize(static_cast<size_t>(p.m * p.n));
    sums = own.data();
    add_up(p, a.data(), b.data(), 0, p.k, sums);
  } else {
    float* const second = sums + p.m * p.n;
    add_up(p, a.data(), b.data(), 0, p.k / 2, sums);
    add_up(p, a.data(), b.data(), p.k / 2, p.k, second);
    const cudaDataType_t kept = p.algorithm == LtAlgorithm::halves ? CUDA_R_32F : p.d_type;
    for (int64_t i = 0; i < p.m * p.n; ++i) sums[i] = rounded(kept, sums[i]) + rounded(kept, second[i]);
  }
  const bool scaled = p.a_scale && !p.in_blocks();
  const float scales[] = {scaled ? *p.a_scale : 1, scaled ? *p.b_scale : 1};
  for (int64_t j = 0; j < p.n; ++j)
    for (int64_t i = 0; i < p.m; ++i) {
      float x = p.alpha * sums[j * p.m + i] * scales[0] * scales[1];
      if (p.beta != 0) x += p.beta * load(p.c, p.d_type, i + j * p.ldc);
      if (p.bias) x += load(p.bias, p.bias_type, i);
      if (p.gelu) {
        store(p.aux, p.d_type, i + j * p.ld_aux, x);
        x = gelu(x);
      }
      if (p.gelu_gradient) x *= gelu_gradient(load(p.aux, p.d_type, i + j * p.ld_aux));
      store(p.d, p.d_type, i + j * p.ldd, x);
    }
}

}  // namespace trivet::emulation
