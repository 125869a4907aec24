#include "kernels/cpu/blocked_product.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/panels_amx.h"
#include "kernels/shapes.h"

namespace trivet {
namespace {

template <class T, class C>
Product<T, C> product_of(const Tensor& a, const Tensor& b, const Tensor& c, const Ops::Matmul& how) {
  return {c.rows(),        c.cols(),      how.transpose_a ? a.rows() : a.cols(), a.as<T>(),
          b.as<T>(),       c.as<C>(),     how.bias ? how.bias.as<T>() : nullptr, how.transpose_a,
          how.transpose_b, how.accumulate};
}

void check_matmul(const Tensor& a, const Tensor& b, const Tensor& c, const Ops::Matmul& how) {
  shapes::expect_float("matmul", "a", a);
  const int64_t m = how.transpose_a ? a.cols() : a.rows(), k = how.transpose_a ? a.rows() : a.cols();
  shapes::expect_float("matmul", "b", b);
  const int64_t n = how.transpose_b ? b.rows() : b.cols();
  shapes::expect_matrix("matmul", "b", b, a.dtype, how.transpose_b ? n : k, how.transpose_b ? k : n);
  shapes::expect_float("matmul", "c", c);
  shapes::expect_matrix("matmul", "c", c, c.dtype == DType::f32 ? DType::f32 : a.dtype, m, n);
  if (how.bias) {
    shapes::expect_vector("matmul", "bias", how.bias, a.dtype, n);
    if (how.accumulate) fail("matmul: a bias cannot be added when accumulating");
  }
}

}  // namespace

void CpuOps::matmul(Tensor a, Tensor b, Tensor c, const Matmul& how, Stream& stream) {
  check_matmul(a, b, c, how);
  stream.run({"matmul", Category::compute}, [this, a, b, c, how] {
    const auto run = [&]<class Panels, class T, class C>() {
      BlockedProduct<Panels, T, C> product(product_of<T, C>(a, b, c, how), threads_);
      product.run(workspaces_.lease(product.workspace_bytes()).data());
    };
    const auto run_bf16 = [&]<class C>() {
      if (amx_available()) run.template operator()<AmxPanels, bf16, C>();
      else run.template operator()<F32Panels, bf16, C>();
    };
    if (a.dtype == DType::f32) run.template operator()<F32Panels, float, float>();
    else if (c.dtype == DType::f32) run_bf16.template operator()<float>();
    else run_bf16.template operator()<bf16>();
  });
}

}  // namespace trivet
