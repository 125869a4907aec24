#include "kernels/cpu/blocked_gemm.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/panels_amx.h"

namespace trivet {
namespace {

template <class T, class C>
Product<T, C> product_of(const op::Matmul& op) {
  const Tensor& c = op.pre_activation ? static_cast<const Tensor&>(op.pre_activation) : op.c;
  return {c.rows(),       c.cols(),     op.transpose_a ? op.a.rows() : op.a.cols(), op.a.as<T>(),
          op.b.as<T>(),   c.as<C>(),    op.bias ? op.bias.as<T>() : nullptr,        op.transpose_a,
          op.transpose_b, op.accumulate};
}

}  // namespace

void CpuOps::compute(const op::Matmul& op) {
  const auto run = [&]<class Panels, class T, class C>() {
    BlockedGemm<Panels, T, C> product(product_of<T, C>(op), threads_);
    product.run(workspaces_.lease(product.workspace_bytes()).data());
  };
  const auto run_bf16 = [&]<class C>() {
    if (amx_available()) run.template operator()<AmxPanels, bf16, C>();
    else run.template operator()<F32Panels, bf16, C>();
  };
  if (op.a.dtype == DType::f32) run.template operator()<F32Panels, float, float>();
  else if (op.c.dtype == DType::f32) run_bf16.template operator()<float>();
  else run_bf16.template operator()<bf16>();
}

}  // namespace trivet
