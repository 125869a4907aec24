// Causal self-attention, forward and backward.
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/philox.h"

namespace trivet {
namespace {

struct Sizes {
  int64_t s, b, heads, d;
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(d)); }
};

[[noreturn]] void fail_shape(const char* op, const char* argument, const Tensor& found, const std::string& expected) {
  fail(std::string(op) + ": " + argument + " is " + to_string(found.shape) + " " + name_of(found.dtype) +
       ", expected " + expected);
}

void check_like(const char* op, const char* argument, const Tensor& found, DType dtype, Shape shape) {
  if (found.dtype != dtype || !(found.shape == shape))
    fail_shape(op, argument, found, to_string(shape) + " " + name_of(dtype));
}

Sizes sizes_of(const char* op, const Tensor& qkv, const Tensor& out, const Tensor& lse, const Ops::Attention& how) {
  if (qkv.dtype != DType::f32 && qkv.dtype != DType::bf16) fail_shape(op, "qkv", qkv, "fp32 or bf16");
  if (how.heads < 1 || qkv.shape.rank != 3 || qkv.shape[2] % (3 * how.heads) != 0)
    fail_shape(op, "qkv", qkv, "[s, b, heads * 3 * d] with " + std::to_string(how.heads) + " heads");
  const Sizes z{qkv.shape[0], qkv.shape[1], how.heads, qkv.shape[2] / (3 * how.heads)};
  check_like(op, "out", out, qkv.dtype, {z.s, z.b, z.heads * z.d});
  check_like(op, "lse", lse, DType::f32, {z.b, z.heads, z.s});
  return z;
}

// 1 / (1 - p) where the probability of (query, key) is kept, else 0.
float dropout_factor(const Dropout& dropout, int64_t batch, int64_t head, int64_t query, int64_t key) {
  if (dropout.probability == 0) return 1;
  const int64_t row = (dropout.first_sample + batch) * dropout.total_heads + dropout.first_head + head;
  const auto index = static_cast<uint64_t>((row * dropout.seq_length + query) * dropout.seq_length + key);
  const uint32_t word = philox4x32(index / 4, dropout.site, dropout.seed).w[index % 4];
  return word >= dropout_threshold(dropout.probability) ? 1.0f / (1.0f - dropout.probability) : 0.0f;
}

template <class T>
float dot(const T* x, const T* y, int64_t n) {
  float sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<float>(x[i]) * static_cast<float>(y[i]);
  return sum;
}

template <class T>
void forward(const Sizes& z, const T* qkv, T* out, float* lse, const Dropout& dropout, int threads) {
#pragma omp parallel for collapse(2) schedule(static) num_threads(threads)
  for (int64_t batch = 0; batch < z.b; ++batch)
    for (int64_t head = 0; head < z.heads; ++head) {
      std::vector<float> p(static_cast<size_t>(z.s)), sum(static_cast<size_t>(z.d));
      const auto row = [&](int64_t position) { return qkv + ((position * z.b + batch) * z.heads + head) * 3 * z.d; };
      for (int64_t i = 0; i < z.s; ++i) {
        float largest = -std::numeric_limits<float>::infinity(), total = 0;
        for (int64_t j = 0; j <= i; ++j) {
          p[j] = z.scale() * dot(row(i), row(j) + z.d, z.d);
          largest = std::max(largest, p[j]);
        }
        for (int64_t j = 0; j <= i; ++j) total += p[j] = std::exp(p[j] - largest);
        std::fill(sum.begin(), sum.end(), 0.0f);
        for (int64_t j = 0; j <= i; ++j) {
          const float weight = p[j] / total * dropout_factor(dropout, batch, head, i, j);
          for (int64_t c = 0; c < z.d; ++c) sum[c] += weight * static_cast<float>(row(j)[2 * z.d + c]);
        }
        for (int64_t c = 0; c < z.d; ++c) out[((i * z.b + batch) * z.heads + head) * z.d + c] = static_cast<T>(sum[c]);
        lse[(batch * z.heads + head) * z.s + i] = largest + std::log(total);
      }
    }
}

template <class T>
void backward(const Sizes& z, const T* dout, const T* qkv, const T* out, const float* lse, T* dqkv,
              const Dropout& dropout, int threads) {
#pragma omp parallel for collapse(2) schedule(static) num_threads(threads)
  for (int64_t batch = 0; batch < z.b; ++batch)
    for (int64_t head = 0; head < z.heads; ++head) {
      std::vector<float> grad(static_cast<size_t>(3 * z.s * z.d), 0.0f);  // [s, 3 * d]
      const auto at = [&](int64_t position) { return (position * z.b + batch) * z.heads + head; };
      for (int64_t i = 0; i < z.s; ++i) {
        const T* q = qkv + at(i) * 3 * z.d;
        const T* doutput = dout + at(i) * z.d;
        const float delta = dot(doutput, out + at(i) * z.d, z.d);
        float* dq = &grad[i * 3 * z.d];
        for (int64_t j = 0; j <= i; ++j) {
          const T* k = qkv + at(j) * 3 * z.d + z.d;
          float *dk = &grad[(j * 3 + 1) * z.d], *dv = dk + z.d;
          const float p = std::exp(z.scale() * dot(q, k, z.d) - lse[(batch * z.heads + head) * z.s + i]);
          const float keep = dropout_factor(dropout, batch, head, i, j);
          const float ds = p * (keep * dot(doutput, k + z.d, z.d) - delta) * z.scale();
          for (int64_t c = 0; c < z.d; ++c) {
            dq[c] += ds * static_cast<float>(k[c]);
            dk[c] += ds * static_cast<float>(q[c]);
            dv[c] += p * keep * static_cast<float>(doutput[c]);
          }
        }
      }
      for (int64_t i = 0; i < z.s; ++i)
        for (int64_t c = 0; c < 3 * z.d; ++c) dqkv[at(i) * 3 * z.d + c] = static_cast<T>(grad[i * 3 * z.d + c]);
    }
}

}  // namespace

void CpuOps::attention_forward(Tensor qkv, Tensor out, Tensor lse, const Attention& how, Stream& stream) {
  const Sizes z = sizes_of("attention_forward", qkv, out, lse, how);
  stream.run({"attention_forward", Category::compute}, [=, dropout = how.dropout, threads = threads_] {
    dispatch_float(qkv.dtype,
                   [&]<class T>() { forward<T>(z, qkv.as<T>(), out.as<T>(), lse.as<float>(), dropout, threads); });
  });
}

void CpuOps::attention_backward(Tensor dout, Tensor qkv, Tensor out, Tensor lse, Tensor dqkv, const Attention& how,
                                Stream& stream) {
  const Sizes z = sizes_of("attention_backward", qkv, out, lse, how);
  check_like("attention_backward", "dout", dout, qkv.dtype, out.shape);
  check_like("attention_backward", "dqkv", dqkv, qkv.dtype, qkv.shape);
  stream.run({"attention_backward", Category::compute}, [=, dropout = how.dropout, threads = threads_] {
    dispatch_float(qkv.dtype, [&]<class T>() {
      backward<T>(z, dout.as<T>(), qkv.as<T>(), out.as<T>(), lse.as<float>(), dqkv.as<T>(), dropout, threads);
    });
  });
}

}  // namespace trivet
