// Activations of an MLP, between its two linear layers: the kinds and their formulas, shared by all back ends.
#pragma once

#include <cstdint>

#include "kernels/base/dtype.h"

namespace trivet {

enum class Activation : uint8_t {
  gelu,    // elementwise (Hendrycks, Gimpel 2016), in the tanh form of GPT-2
  swiglu,  // gated (Shazeer 2020): the first half of x's columns is gate, the second up: silu(gate) * up
};
constexpr bool is_gated(Activation kind) { return kind == Activation::swiglu; }

// V: float, or a vector of floats. Math: a back end's exp(V), exp_in_range(V) for normal results, quotient(V, V) and
// clamp(V, float, float), which passes NaN through.
template <class V>
struct ValueAndSlope {
  V value, slope;
};

// With u = sqrt(2 / pi) (x + 0.044715 x^3), written with the logistic function:
//   gelu(x) = x (1 + tanh u) / 2 = x s,   s = 1 / (1 + e^(-2u)),   gelu'(x) = s + x s (1 - s) 2u'.
template <class Math>
struct Gelu {
  static constexpr float kLinear = -1.5957691216057308f, kCubic = 0.044715f * kLinear;  // -2u = x (… + … x^2)

  template <class V>
  TRIVET_HOST_DEVICE static V value(V x) {
    return Math::quotient(x, 1.0f + Math::exp(x * (kLinear + kCubic * (x * x))));
  }
  // Beyond 9 the derivative is 0 or 1 to within 1e-25; further out, e would overflow and e * s would be NaN.
  template <class V>
  TRIVET_HOST_DEVICE static V slope(V far) {
    const V x = Math::clamp(far, -9.0f, 9.0f), x2 = x * x;
    const V e = Math::exp_in_range(x * (kLinear + kCubic * x2)), s = Math::quotient(1.0f, 1.0f + e);
    return s - x * (kLinear + 3.0f * kCubic * x2) * s * (e * s);
  }
};

// With s = 1 / (1 + e^-g): silu(g) = g s, silu'(g) = s (1 + g (1 - s)).
template <class Math>
struct Silu {
  template <class V>
  TRIVET_HOST_DEVICE static V value(V g) {
    return Math::quotient(g, 1.0f + Math::exp(-g));
  }
  template <class V>
  TRIVET_HOST_DEVICE static ValueAndSlope<V> value_and_slope(V g) {
    const V s = Math::quotient(1.0f, 1.0f + Math::exp(-g));
    return {g * s, s * (1.0f + g * (1.0f - s))};
  }
};

// Calls plain(formulas) for an elementwise kind, gated(formulas) for one with a gate.
template <class Math, class Plain, class Gated>
void with_formulas(Activation kind, const Plain& plain, const Gated& gated) {
  switch (kind) {
    case Activation::gelu: return plain(Gelu<Math>());
    case Activation::swiglu: return gated(Silu<Math>());
  }
}

}  // namespace trivet
