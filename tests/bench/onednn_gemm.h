// The GEMM of op::Matmul computed by oneDNN, for comparison. Null in a build without oneDNN.
#pragma once

#include <functional>

#include "tests/support/matmul_options.h"

#ifdef TRIVET_BENCH_ONEDNN
#include <memory>
#include <omp.h>
#include <oneapi/dnnl/dnnl.hpp>
#endif

namespace trivet {

#ifdef TRIVET_BENCH_ONEDNN

constexpr bool kOneDnn = true;

inline std::function<void()> onednn_gemm(Tensor a, Tensor b, Tensor c, const test::MatmulOptions& how, int threads) {
  using dnnl::memory;
  const auto type = [](const Tensor& t) {
    return t.dtype == DType::f32 ? memory::data_type::f32 : memory::data_type::bf16;
  };
  const int64_t m = c.rows(), n = c.cols(), k = how.transpose_a ? a.rows() : a.cols();
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  const memory::desc a_desc({m, k}, type(a), how.transpose_a ? memory::dims{1, m} : memory::dims{k, 1});
  const memory::desc b_desc({k, n}, type(b), how.transpose_b ? memory::dims{1, k} : memory::dims{n, 1});
  const memory::desc c_desc({m, n}, type(c), memory::dims{n, 1});
  dnnl::primitive_attr attributes;
  if (how.accumulate) {
    dnnl::post_ops add;
    add.append_sum(1.0f);
    attributes.set_post_ops(add);
  }
  omp_set_num_threads(threads);
  const dnnl::matmul product(
      dnnl::matmul::primitive_desc(dnnl::matmul::desc(a_desc, b_desc, c_desc), attributes, engine));
  const std::unordered_map<int, memory> arguments{{DNNL_ARG_SRC, memory(a_desc, engine, a.data)},
                                                  {DNNL_ARG_WEIGHTS, memory(b_desc, engine, b.data)},
                                                  {DNNL_ARG_DST, memory(c_desc, engine, c.data)}};
  return [=, stream = dnnl::stream(engine)]() mutable {
    product.execute(stream, arguments);
    stream.wait();
  };
}

#else

constexpr bool kOneDnn = false;
inline std::function<void()> onednn_gemm(Tensor, Tensor, Tensor, const test::MatmulOptions&, int) { return nullptr; }

#endif

}  // namespace trivet
