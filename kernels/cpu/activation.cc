// GELU in the tanh form of GPT-2, written with the logistic function: with u = sqrt(2 / pi) (x + 0.044715 x^3),
//   gelu(x) = x (1 + tanh u) / 2 = x s,   s = 1 / (1 + e^(-2u)),   gelu'(x) = s + x s (1 - s) 2u'.
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/shapes.h"

namespace trivet {
namespace {

constexpr float kTwoRootTwoOverPi = 1.5957691216057308f;
constexpr float kCubic = 0.044715f;

inline float exp_minus_2u(float x) { return simd_exp(-kTwoRootTwoOverPi * x * (1.0f + kCubic * x * x)); }

inline float gelu(float x) { return x / (1.0f + exp_minus_2u(x)); }

// Beyond 9 the gradient is 0 or 1 to within 1e-25, and e s further down would become infinity * 0.
inline float gelu_gradient(float far_x) {
  const float x = far_x < -9.0f ? -9.0f : (far_x > 9.0f ? 9.0f : far_x);
  const float e = exp_minus_2u(x);
  const float s = 1.0f / (1.0f + e);
  return s + x * s * (e * s) * (kTwoRootTwoOverPi * (1.0f + 3.0f * kCubic * x * x));
}

constexpr int64_t kGrain = 8192;  // elements worth a thread

}  // namespace

void CpuOps::gelu_forward(Tensor x, Tensor y, Stream& stream) {
  constexpr const char* kOp = "gelu_forward";
  shapes::expect_float(kOp, "x", x);
  shapes::expect_like(kOp, "y", y, x);
  stream.run({kOp, Category::compute}, [=, threads = threads_] {
    dispatch_float(x.dtype, [&]<class T>() {
      parallel_for(threads, x.numel(), kGrain, [&](Range part, int) {
        const T* const in = x.as<T>();
        T* const out = y.as<T>();
#pragma omp simd
        for (int64_t i = part.begin; i < part.end; ++i) store(out[i], gelu(static_cast<float>(in[i])));
      });
    });
  });
}

void CpuOps::gelu_backward(Tensor x, Tensor dy, Tensor dx, Stream& stream) {
  constexpr const char* kOp = "gelu_backward";
  shapes::expect_float(kOp, "x", x);
  shapes::expect_like(kOp, "dy", dy, x);
  shapes::expect_like(kOp, "dx", dx, x);
  stream.run({kOp, Category::compute}, [=, threads = threads_] {
    dispatch_float(x.dtype, [&]<class T>() {
      parallel_for(threads, x.numel(), kGrain, [&](Range part, int) {
        const T* const in = x.as<T>();
        const T* const gradient = dy.as<T>();
        T* const out = dx.as<T>();
#pragma omp simd
        for (int64_t i = part.begin; i < part.end; ++i)
          store(out[i], static_cast<float>(gradient[i]) * gelu_gradient(static_cast<float>(in[i])));
      });
    });
  });
}

}  // namespace trivet
