#include "kernels/cpu/blocked_gemm.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/panels_amx.h"

namespace trivet {
namespace {

template <class T, class C>
Gemm<T, C> gemm_of(const op::Matmul& op) {
  const Tensor& c = op.pre_activation ? static_cast<const Tensor&>(op.pre_activation) : op.c;
  return {c.rows(),       c.cols(),     op.transpose_a ? op.a.rows() : op.a.cols(), op.a.as<T>(),
          op.b.as<T>(),   c.as<C>(),    op.bias ? op.bias.as<T>() : nullptr,        op.transpose_a,
          op.transpose_b, op.accumulate};
}

// n cut into parts of equal size, as few as keep each within `most`: the size, at least 1.
int64_t even_part(int64_t n, int64_t most) {
  const int64_t parts = std::max<int64_t>(1, (n + most - 1) / most);
  return std::max<int64_t>(1, (n + parts - 1) / parts);
}

// Found by trial on a machine with 48 KiB, 2 MiB and tens of MiB of cache; the sizes in bytes leave room for the other
// operand.
constexpr int64_t kDeepestChunk = 8192;    // bytes of one row of b's chunk
constexpr int64_t kLeftBytes = 768 << 10;  // of a block of left panels, in the second cache
constexpr int64_t kRightBytes = 8 << 20;   // of a chunk of right panels, in the last cache
constexpr int64_t kSliceSteps = 8;         // of a right panel: 32 KiB of fp32, 16 KiB of bf16, in the first cache
constexpr int64_t kRightPanels = 8;        // that the left panels of a block meet before the next slice

}  // namespace

Blocking::Blocking(int64_t m, int64_t n, int64_t k, int64_t element_bytes)
    : m_panels(panels_of(m)), n_panels(panels_of(n)), steps(panels_of(k)) {
  const int64_t step_bytes = kBlock * element_bytes;
  k_slice = kSliceSteps;
  k_chunk = even_part(steps, kDeepestChunk / (kPanel * element_bytes));
  keep_sums = k_chunk < steps;
  n_chunk = even_part(n_panels, std::max<int64_t>(1, kRightBytes / (k_chunk * step_bytes)));
  m_block = even_part(m_panels, std::max<int64_t>(1, kLeftBytes / (k_chunk * step_bytes)));
  n_block = std::min(n_chunk, kRightPanels);
}

void CpuOps::compute(const op::Matmul& op) {
  const auto run = [&]<class Panels, class T, class C>() {
    BlockedGemm<Panels, T, C> gemm(gemm_of<T, C>(op), threads_);
    gemm.run(workspaces_.lease(gemm.workspace_bytes()).get());
  };
  with_panels(op.a.dtype, [&]<class Panels, class T>() {
    if (op.c.dtype == DType::f32) run.template operator()<Panels, T, float>();
    else if constexpr (std::is_same_v<T, bf16>) run.template operator()<Panels, T, bf16>();
  });
}

}  // namespace trivet
