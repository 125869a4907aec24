// GELU in the tanh form of GPT-2, written with the logistic function: with u = sqrt(2 / pi) (x + 0.044715 x^3),
//   gelu(x) = x (1 + tanh u) / 2 = x s,   s = 1 / (1 + e^(-2u)),   gelu'(x) = s + x s (1 - s) 2u'.
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/vector.h"

namespace trivet {
namespace {

// -2u = x (kLinear + kCubic x^2)
constexpr float kLinear = -1.5957691216057308f, kCubic = 0.044715f * kLinear;

inline Floats gelu(Floats x) { return x / (1.0f + exp(x * (kLinear + kCubic * (x * x)))); }

// Beyond 9 the gradient is 0 or 1 to within 1e-25; further out e would overflow, and e s be NaN.
inline Floats gelu_gradient(Floats far) {
  const Floats x = at_most(at_least(far, -9.0f), 9.0f), x2 = x * x;
  const Floats e = exp_in_range(x * (kLinear + kCubic * x2)), s = 1.0f / (1.0f + e);
  return s - x * (kLinear + 3.0f * kCubic * x2) * s * (e * s);
}

constexpr int64_t kHeavyGrain = 8192;  // elements worth a thread

}  // namespace

void CpuOps::compute(const op::GeluForward& op) {
  dispatch_float(op.x.dtype, [&]<class T>() {
    parallel_for(threads_, op.x.numel(), kHeavyGrain, [&](Range part, int) {
      const T* const in = op.x.as<T>() + part.begin;
      T* const out = op.y.as<T>() + part.begin;
      for_vectors(part.size(), [=](auto at) { at.store(out, gelu(at.load(in))); });
    });
  });
}

void CpuOps::compute(const op::GeluBackward& op) {
  dispatch_float(op.x.dtype, [&]<class T>() {
    parallel_for(threads_, op.x.numel(), kHeavyGrain, [&](Range part, int) {
      const T* const in = op.x.as<T>() + part.begin;
      const T* const gradient = op.dy.as<T>() + part.begin;
      T* const out = op.dx.as<T>() + part.begin;
      for_vectors(part.size(), [=](auto at) { at.store(out, at.load(gradient) * gelu_gradient(at.load(in))); });
    });
  });
}

}  // namespace trivet
