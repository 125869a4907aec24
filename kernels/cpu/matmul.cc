// Matrix products: oneDNN's matmul primitive, created once for every shape and kept.
#include <dnnl.hpp>
#include <map>
#include <mutex>
#include <omp.h>
#include <tuple>
#include <vector>

#include "kernels/cpu/cpu_ops.h"

namespace trivet {
namespace {

using Dims = dnnl::memory::dims;

dnnl::memory::data_type data_type_of(DType dtype) {
  return dtype == DType::bf16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
}

struct Product {
  int64_t m, n, k;
  DType ab, c;
  bool transpose_a, transpose_b, accumulate, bias;
  auto operator<=>(const Product&) const = default;
};

[[noreturn]] void fail_shape(const char* argument, const Tensor& found, const std::string& expected) {
  fail(std::string("matmul: ") + argument + " is " + to_string(found.shape) + " " + name_of(found.dtype) +
       ", expected " + expected);
}

Product product_of(const Tensor& a, const Tensor& b, const Tensor& c, const Ops::Matmul& how) {
  if (a.dtype != DType::f32 && a.dtype != DType::bf16) fail_shape("a", a, "fp32 or bf16");
  if (b.dtype != a.dtype) fail_shape("b", b, std::string("the type of a, ") + name_of(a.dtype));
  if (c.dtype != a.dtype && c.dtype != DType::f32) fail_shape("c", c, std::string("fp32 or ") + name_of(a.dtype));
  const int64_t m = how.transpose_a ? a.cols() : a.rows(), k = how.transpose_a ? a.rows() : a.cols();
  const int64_t n = how.transpose_b ? b.rows() : b.cols(), b_k = how.transpose_b ? b.cols() : b.rows();
  if (b_k != k) fail_shape("b", b, "a reduction length of " + std::to_string(k) + " as in a " + to_string(a.shape));
  if (c.rows() != m || c.cols() != n) fail_shape("c", c, to_string(Shape{m, n}));
  if (how.bias) {
    if (how.bias.dtype != a.dtype || how.bias.numel() != n)
      fail_shape("bias", how.bias, to_string(Shape{n}) + " " + name_of(a.dtype));
    if (how.accumulate) fail("matmul: a bias cannot be added when accumulating");
  }
  return {m, n, k, a.dtype, c.dtype, how.transpose_a, how.transpose_b, how.accumulate, static_cast<bool>(how.bias)};
}

}  // namespace

struct CpuOps::MatmulCache {
  struct Entry {
    dnnl::memory a, b, c, bias, scratchpad;
    dnnl::matmul primitive;
    int64_t scratch_bytes = 0;
  };
  std::mutex mutex;
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  std::map<Product, Entry> entries;
  std::vector<std::byte> scratch;

  Entry& find(const Product& p) {
    auto [at, is_new] = entries.try_emplace(p);
    Entry& entry = at->second;
    if (!is_new) return entry;
    const Dims a_strides = p.transpose_a ? Dims{1, p.m} : Dims{p.k, 1};
    const Dims b_strides = p.transpose_b ? Dims{1, p.k} : Dims{p.n, 1};
    const dnnl::memory::desc a({p.m, p.k}, data_type_of(p.ab), a_strides);
    const dnnl::memory::desc b({p.k, p.n}, data_type_of(p.ab), b_strides);
    const dnnl::memory::desc c({p.m, p.n}, data_type_of(p.c), Dims{p.n, 1});
    const dnnl::memory::desc bias({1, p.n}, data_type_of(p.ab), Dims{p.n, 1});
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    if (p.accumulate) {
      dnnl::post_ops sum;
      sum.append_sum(1.0f);
      attributes.set_post_ops(sum);
    }
    const auto desc = p.bias ? dnnl::matmul::desc(a, b, bias, c) : dnnl::matmul::desc(a, b, c);
    const dnnl::matmul::primitive_desc primitive(desc, attributes, engine);
    entry.primitive = dnnl::matmul(primitive);
    entry.a = dnnl::memory(a, engine, nullptr);
    entry.b = dnnl::memory(b, engine, nullptr);
    entry.c = dnnl::memory(c, engine, nullptr);
    if (p.bias) entry.bias = dnnl::memory(bias, engine, nullptr);
    entry.scratchpad = dnnl::memory(primitive.scratchpad_desc(), engine, nullptr);
    const size_t bytes = primitive.scratchpad_desc().get_size();
    if (scratch.size() < bytes + 64) scratch.resize(bytes + 64);
    return entry;
  }

  void run(const Product& p, const Tensor& a, const Tensor& b, const Tensor& c, const Tensor& bias) {
    std::lock_guard lock(mutex);
    Entry& e = find(p);
    e.a.set_data_handle(a.data);
    e.b.set_data_handle(b.data);
    e.c.set_data_handle(c.data);
    const auto address = (reinterpret_cast<uintptr_t>(scratch.data()) + 63) / 64 * 64;
    e.scratchpad.set_data_handle(reinterpret_cast<void*>(address));
    std::unordered_map<int, dnnl::memory> arguments{
        {DNNL_ARG_SRC, e.a}, {DNNL_ARG_WEIGHTS, e.b}, {DNNL_ARG_DST, e.c}, {DNNL_ARG_SCRATCHPAD, e.scratchpad}};
    if (p.bias) {
      e.bias.set_data_handle(bias.data);
      arguments.emplace(DNNL_ARG_BIAS, e.bias);
    }
    e.primitive.execute(stream, arguments);
    stream.wait();
  }
};

CpuOps::CpuOps(int threads) : threads_(threads), matmuls_(std::make_unique<MatmulCache>()) {
  check(threads >= 1, "CpuOps needs at least one thread");
}
CpuOps::~CpuOps() = default;

void CpuOps::matmul(Tensor a, Tensor b, Tensor c, const Matmul& how, Stream& stream) {
  const Product product = product_of(a, b, c, how);
  if (product.m == 0 || product.n == 0) return;
  stream.run({"matmul", Category::compute}, [this, product, a, b, c, bias = how.bias] {
    omp_set_num_threads(threads_);  // of the thread that runs the stream, where oneDNN looks it up
    matmuls_->run(product, a, b, c, bias);
  });
}

}  // namespace trivet
