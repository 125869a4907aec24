#include <algorithm>
#include <cmath>
#include <unistd.h>

#include "kernels/base/fp8.h"
#include "kernels/cpu/blocked_gemm.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/panels_amx.h"
#include "kernels/cpu/test_hooks.h"

namespace trivet::TRIVET_CPU {
namespace {

template <class T, class C>
Gemm<T, C> gemm_of(const op::Matmul& op) {
  const Tensor& c = op.pre_activation ? static_cast<const Tensor&>(op.pre_activation) : op.c;
  return {c.rows(),       c.cols(),     op.transpose_a ? op.a.rows() : op.a.cols(),          op.a.as<T>(),
          op.b.as<T>(),   c.as<C>(),    op.bias && !op.residual ? op.bias.as<T>() : nullptr, op.transpose_a,
          op.transpose_b, op.accumulate};
}

// The size of a part, at least 1, when n is split evenly into the fewest parts of at most `most`.
int64_t even_part(int64_t n, int64_t most) {
  const int64_t parts = std::max<int64_t>(1, (n + most - 1) / most);
  return std::max<int64_t>(1, (n + parts - 1) / parts);
}

// Size of the L2 cache in bytes, as reported by the system, or a typical value.
int64_t second_cache() {
  static const int64_t bytes = [] {
    const int64_t found = sysconf(_SC_LEVEL2_CACHE_SIZE);
    return found > 0 ? found : int64_t{512} << 10;
  }();
  return bytes;
}

// Shares of the caches, in bytes of packed panels, tuned empirically while other programs were using the last-level
// cache: for sliced panels (AMX) with 2 MiB of L2, for the others with 1 MiB.
struct Shares {
  int64_t panel = second_cache() / 8;  // of a left panel
  int64_t left = second_cache() / 8;   // of a block of left panels
  int64_t sums = second_cache() / 2;   // partial, waiting for the next block of k
  int64_t right = 4 << 20;             // of a chunk of right panels, in the last-level cache
  int64_t waiting = 16 << 20;          // of partial sums waiting for the next chunk of k
};
Shares shares_in_slices() { return {.left = second_cache() / 8 * 3, .right = 8 << 20}; }
constexpr int64_t kSlicedPanels = 8;  // right panels that one slice of a block of `a` multiplies before the next

}  // namespace

Blocking::Blocking(int64_t m, int64_t n, int64_t k, int64_t element_bytes, int64_t slice_steps)
    : m_panels(panels_of(m)), n_panels(panels_of(n)), steps(panels_of(k)) {
  Shares most = slice_steps == kWholeBlock ? Shares{} : shares_in_slices();
  for (int64_t* share : {&most.panel, &most.left, &most.sums, &most.right, &most.waiting}) *share /= gemm_cache_divisor;
  const int64_t step_bytes = kBlock * element_bytes, sum_bytes = kBlock * 4;
  const auto at_least_one = [](int64_t count) { return std::max<int64_t>(1, count); };
  k_block = even_part(steps, at_least_one(most.panel / step_bytes));
  m_block = even_part(m_panels, at_least_one(most.left / (k_block * step_bytes)));
  const bool one_block = k_block == steps;
  const int64_t columns = most.right / (k_block * step_bytes);
  n_chunk =
      even_part(n_panels, at_least_one(one_block ? columns : std::min(columns, most.sums / (m_block * sum_bytes))));
  k_chunk = even_part(steps, std::max(k_block, most.right / (n_chunk * step_bytes)));
  k_block = even_part(k_chunk, k_block);
  keep_sums = k_chunk < steps;
  m_chunk =
      keep_sums ? even_part(m_panels, at_least_one(most.waiting / (n_chunk * sum_bytes))) : at_least_one(m_panels);
  k_slice = std::min(slice_steps, k_block);
  n_block = k_slice < k_block ? std::min(n_chunk, kSlicedPanels) : n_chunk;
  sum_rows = k_slice == steps ? 1 : keep_sums ? m_chunk : m_block;
  sum_columns = k_slice == steps ? 1 : one_block ? n_block : n_chunk;
}

std::unique_ptr<CpuKernels> create_kernels(int threads) { return std::make_unique<Kernels>(threads); }

// Decodes FP8 values exactly: a few bits times a power of two fit in a bf16 unless the value is too small.
void Kernels::decode(const Tensor& values, const Tensor& scale, bf16* to) const {
  const bool by_blocks = ScaleBlocks::given(scale);
  float exact[256];
  bf16 of_code[256];  // one load per element; GCC does not vectorise the arithmetic in decode()
  dispatch_fp8(values.dtype, [&]<class Format>() {
    for (int code = 0; code < 256; ++code) {
      exact[code] = Format::decode(static_cast<uint8_t>(code)) * (by_blocks ? 1 : scale.as<float>()[0]);
      of_code[code] = bf16(exact[code]);
    }
  });
  const auto* const from = static_cast<const uint8_t*>(values.data);
  if (by_blocks && values.numel() > 0) {
    const ScaleBlocks blocks(scale, values);
    const int64_t n = values.cols(), across = scale.cols();
    const int64_t grain = std::max<int64_t>(1, (1 << 14) / (blocks.rows * n));
    return parallel_for(threads_, scale.rows(), grain, [&](Range part, int) {
      for (int64_t i = part.begin; i < part.end; ++i) {
        const float* const of_block = scale.as<float>() + i * across;
        const int64_t begin = blocks.first_row(i) * n, end = begin + blocks.row_count(i) * n;
        for (int64_t row = begin; row < end; row += n)
          for (int64_t b = 0; b < across; ++b)
            for (int64_t j = b * blocks.columns; j < std::min(n, (b + 1) * blocks.columns); ++j)
              to[row + j] = bf16(exact[from[row + j]] * of_block[b]);
      }
    });
  }
  parallel_for(threads_, values.numel(), 1 << 14, [&](Range part, int) {
    for (int64_t i = part.begin; i < part.end; ++i) to[i] = of_code[from[i]];
  });
}

namespace {

// Sums x[0, n) as Hopper's tensor cores do according to DeepSeek-V3 (2024, section 3.5.2): as 14-bit fixed-point
// numbers, scaled so that the largest one uses the top bit.
float narrow_sum(const float* x, int64_t n) {
  float largest = 0, sum = 0;
  for (int64_t i = 0; i < n; ++i) largest = std::max(largest, std::abs(x[i]));
  const float unit = largest > 0 ? std::ldexp(1.0f, std::ilogb(largest) - 13) : 1;  // 1: all are 0 or NaN
  for (int64_t i = 0; i < n; ++i) sum += std::trunc(x[i] / unit) * unit;
  return sum;
}

// Adds 32 products at a time to the running sum, which is promoted to fp32 every 128 products.
template <class C>
void multiply_narrowly(const Gemm<bf16, C>& g, int threads) {
  parallel_for(threads, g.m, 1, [&](Range rows, int) {
    for (int64_t i = rows.begin; i < rows.end; ++i)
      for (int64_t j = 0; j < g.n; ++j) {
        float total = 0, terms[33] = {};
        for (int64_t begin = 0; begin < g.k; begin += 32) {
          if (begin % 128 == 0) total += terms[0], terms[0] = 0;
          const int64_t count = std::min<int64_t>(32, g.k - begin);
          for (int64_t k = begin; k < begin + count; ++k)
            terms[1 + k - begin] = static_cast<float>(g.a[g.transpose_a ? k * g.m + i : i * g.k + k]) *
                                   static_cast<float>(g.b[g.transpose_b ? j * g.k + k : k * g.n + j]);
          terms[0] = narrow_sum(terms, 1 + count);
        }
        total += terms[0];
        if (g.bias) total += static_cast<float>(g.bias[j]);
        C& c = g.c[i * g.n + j];
        c = C(g.accumulate ? total + static_cast<float>(c) : total);
      }
  });
}

}  // namespace

void Kernels::compute(const op::Matmul& op) {
  if (is_fp8(op.a.dtype)) {
    const Workspaces::Lease lease = workspaces_.lease(2 * (op.a.numel() + op.b.numel()));
    auto *const a = reinterpret_cast<bf16*>(lease.get()), *const b = a + op.a.numel();
    decode(op.a, op.scales.a, a);
    decode(op.b, op.scales.b, b);
    op::Matmul decoded = op;
    decoded.a = Tensor{a, DType::bf16, op.a.shape};
    decoded.b = Tensor{b, DType::bf16, op.b.shape};
    if (!op.scales.narrow_sums) return compute(decoded);
    return op.c.dtype == DType::f32 ? multiply_narrowly(gemm_of<bf16, float>(decoded), threads_)
                                    : multiply_narrowly(gemm_of<bf16, bf16>(decoded), threads_);
  }
  const auto run = [&]<class Panels, class T, class C>() {
    BlockedGemm<Panels, T, C> gemm(gemm_of<T, C>(op), threads_);
    gemm.run(workspaces_.lease(gemm.workspace_bytes()).get());
  };
  with_panels(op.a.dtype, [&]<class Panels, class T>() {
    if (op.c.dtype == DType::f32) run.template operator()<Panels, T, float>();
    else if constexpr (std::is_same_v<T, bf16>) run.template operator()<Panels, T, bf16>();
  });
}

}  // namespace trivet::TRIVET_CPU
