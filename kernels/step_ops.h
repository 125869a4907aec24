// The ops of an optimizer's step, and those that only move memory. The conventions of their contracts are in
// kernels/ops.h.
#pragma once

#include <array>

#include "kernels/base/trace.h"
#include "kernels/op_fields.h"

namespace trivet {

struct AdamW {
  float learning_rate = 0, beta1 = 0.9f, beta2 = 0.999f, eps = 1e-8f, weight_decay = 0;
  int64_t step = 1;  // counts from 1: bias correction by 1 - beta^step
};

// n elements of the optimizer's state, all [n] fp32 but model_weight.
struct AdamWPiece {
  InOut weight;
  In grad;
  InOut m, v;                    // moments
  OptionalInOut model_weight{};  // [n] bf16, receives the rounded weight
  bool decays = true;            // else the weight decay is 0
};

// An exact sum of squares: 64-bit counters on a fixed grid of 28-bit bins, from 2^-308 up (kernels/exact_sum.h). The
// sum is exact, so it has the same bits in whatever order, on however many ranks, the parts are added.
inline constexpr int64_t kExactSumBins = 24;

// What a step's numbers, up to kJudgedNumbers of them, may be.
inline constexpr size_t kJudgedNumbers = 4;
struct StepLimits {
  std::array<float, kJudgedNumbers> at_most;  // a finite number above it is refused; +inf: none is
  bool finite = true;                         // a number that is not finite is refused
};

// What FindNonFinite tells.
inline constexpr int64_t kNonFiniteNumbers = 5;

namespace op {

// ---- optimizer

// AdamW with decoupled decay (Loshchilov, Hutter 2019), on all pieces at once:
//   g = grad * grad_scale[0];  weight -= lr * (m^ / (sqrt(v^) + eps) + weight_decay * weight)
// grad_scale: [1] fp32. proceed: [1] fp32; where it is 0, nothing is written. Both are read when the stream gets there:
// the host need not know them. How elements are cut into pieces changes no bit.
struct AdamWStep {
  static constexpr SpanInfo kSpan{"adamw", Category::optimizer};
  List<AdamWPiece> pieces;
  In grad_scale;
  OptionalIn proceed{};
  AdamW how;
  void check() const;
};

// bins += the exact sum of squares of all xs (fp32), or bins.last() += the count of their non-finite elements.
// bins: [kExactSumBins] int64.
struct SumOfSquares {
  static constexpr SpanInfo kSpan{"sum_of_squares", Category::optimizer};
  List<In> xs;
  InOut bins;
  void check() const;
};

// norm[0] = multiplier * sqrt(the sum in bins), NaN where an element was not finite; grad_scale[0] = multiplier *
// min(1, max_norm / (norm + 1e-6)), or just multiplier where max_norm <= 0. All [1] fp32. As Megatron clips.
struct ClipScale {
  static constexpr SpanInfo kSpan{"clip_scale", Category::optimizer};
  In bins;
  float multiplier, max_norm;
  Out norm, grad_scale;
  void check() const;
};

// ---- whether a step is taken, decided on the device

// proceed[0] = 1, or 0 where one of the numbers is refused. numbers: [n] fp32, proceed: [1] fp32.
struct JudgeStep {
  static constexpr SpanInfo kSpan{"judge_step", Category::optimizer};
  In numbers;
  StepLimits limits;
  Out proceed;
  void check() const;
};

// Looks through x where the step is refused for what is not finite, so that a report can name it when the gradients
// are gone: where proceed[0] is 0, found = {index of the first such element or -1, NaNs, infinities, bits of that
// element, bits of the one before it}; else found is left as it is. x: [n] fp32; found: [kNonFiniteNumbers] int64.
struct FindNonFinite {
  static constexpr SpanInfo kSpan{"find_non_finite", Category::optimizer};
  In x, proceed;
  InOut found;
  void check() const;
};

// ---- plain

// x = value. Any dtype.
struct Fill {
  static constexpr SpanInfo kSpan{"fill"};
  Out x;
  float value;
  void check() const;
};

// All bytes of all xs = 0. Any dtypes.
struct Clear {
  static constexpr SpanInfo kSpan{"clear"};
  List<Out> xs;
  void check() const {}
};

// to = from: fp32 to bf16, bf16 to fp32, or a copy.
struct Convert {
  static constexpr SpanInfo kSpan{"convert"};
  In from;
  Out to;
  void check() const;
};

// out = a + b. T; out may alias either.
struct Add {
  static constexpr SpanInfo kSpan{"add"};
  In a, b;
  Out out;
  void check() const;
};

}  // namespace op
}  // namespace trivet
