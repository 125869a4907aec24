// The ops of a step beside a model's layers: the loss, the optimizer, whether the step is taken; and those that only
// move memory. The conventions of their contracts are in kernels/ops.h; check() is the contract's shapes and types as
// code.
#pragma once

#include <array>

#include "kernels/base/trace.h"
#include "kernels/op_fields.h"
#include "kernels/shapes.h"

namespace trivet {

struct AdamW {
  float learning_rate = 0, beta1 = 0.9f, beta2 = 0.999f, eps = 1e-8f, weight_decay = 0;
  int64_t step = 1;  // counts from 1: bias correction by 1 - beta^step
};

// n elements of the optimizer's state, all [n] fp32 but model_weight.
struct AdamWShard {
  InOut weight;
  In grad;
  InOut m, v;                    // moments
  OptionalInOut model_weight{};  // [n] bf16, receives the rounded weight
  bool decays = true;            // else the weight decay is 0
};

// An exact sum of squares: 64-bit counters on a fixed grid of 28-bit bins, from 2^-308 up (kernels/exact_sum.h). The
// sum is exact, so it has the same bits in whatever order, on however many ranks, the parts are added.
inline constexpr int64_t kExactSumBins = 24;

// What a step's numbers, up to kStepNumbers of them, may be.
inline constexpr size_t kStepNumbers = 4;
struct StepLimits {
  std::array<float, kStepNumbers> at_most;  // a finite number above it is refused; +inf: none is
  bool finite = true;                       // a number that is not finite is refused
};

// What FindNonFinite tells.
inline constexpr int64_t kNonFiniteNumbers = 5;

namespace op {

// ---- softmax cross-entropy in the pieces that a vocabulary cut over ranks needs (Shoeybi et al. 2019, section 3)

// One pass over this rank's columns. logits: [n, v] T, whose column j is vocabulary entry first_column + j; entries
// from `vocab_size` on are padding and never enter. targets: [n] int32. Outputs, [n] fp32: row_max (-inf where all
// columns are padding), row_sum = sum of exp(logit - row_max), target_logit (0 where the target is on another rank).
struct CrossEntropyForward {
  static constexpr SpanInfo kSpan{"cross_entropy_forward"};
  In logits, targets;
  int64_t first_column, vocab_size;
  Out row_max, row_sum, target_logit;

  void check() const {
    constexpr const char* kOp = kSpan.name;
    shapes::expect_float(kOp, "logits", logits);
    const int64_t n = logits.rows();
    shapes::expect_vector(kOp, "targets", targets, DType::i32, n);
    shapes::expect_vector(kOp, "row_max", row_max, DType::f32, n);
    shapes::expect_vector(kOp, "row_sum", row_sum, DType::f32, n);
    shapes::expect_vector(kOp, "target_logit", target_logit, DType::f32, n);
  }
};

// row_sum *= exp(row_max - global_max): from this rank's maximum to the one over all ranks. [n] fp32.
struct CrossEntropyRescale {
  static constexpr SpanInfo kSpan{"cross_entropy_rescale"};
  In row_max, global_max;
  InOut row_sum;

  void check() const {
    constexpr const char* kOp = kSpan.name;
    const int64_t n = row_max.numel();
    shapes::expect_vector(kOp, "row_max", row_max, DType::f32, n);
    shapes::expect_vector(kOp, "global_max", global_max, DType::f32, n);
    shapes::expect_vector(kOp, "row_sum", row_sum, DType::f32, n);
  }
};

// loss[0] += scale * sum over rows, in double, of log(row_sum) + row_max - target_logit. loss: [1] fp32.
struct CrossEntropyLoss {
  static constexpr SpanInfo kSpan{"cross_entropy_loss"};
  In row_max, row_sum, target_logit;
  float scale;
  InOut loss;

  void check() const {
    constexpr const char* kOp = kSpan.name;
    const int64_t n = row_max.numel();
    shapes::expect_vector(kOp, "row_max", row_max, DType::f32, n);
    shapes::expect_vector(kOp, "row_sum", row_sum, DType::f32, n);
    shapes::expect_vector(kOp, "target_logit", target_logit, DType::f32, n);
    shapes::expect_vector(kOp, "loss", loss, DType::f32, 1);
  }
};

// In place: logits = scale * (softmax - one-hot of the target), 0 in padded columns. row_max, row_sum: global.
struct CrossEntropyBackward {
  static constexpr SpanInfo kSpan{"cross_entropy_backward"};
  InOut logits;
  In targets;
  int64_t first_column, vocab_size;
  In row_max, row_sum;
  float scale;

  void check() const {
    constexpr const char* kOp = kSpan.name;
    shapes::expect_float(kOp, "logits", logits);
    const int64_t n = logits.rows();
    shapes::expect_vector(kOp, "targets", targets, DType::i32, n);
    shapes::expect_vector(kOp, "row_max", row_max, DType::f32, n);
    shapes::expect_vector(kOp, "row_sum", row_sum, DType::f32, n);
  }
};

// ---- optimizer

// AdamW with decoupled decay (Loshchilov, Hutter 2019), on all pieces at once:
//   g = grad * grad_scale[0];  weight -= lr * (m^ / (sqrt(v^) + eps) + weight_decay * weight)
// grad_scale: [1] fp32. accepted: [1] fp32; where it is 0, nothing is written. Both are read when the stream gets
// there: the host need not know them. How elements are cut into pieces changes no bit.
struct AdamWStep {
  static constexpr SpanInfo kSpan{"adamw", Category::optimizer};
  List<AdamWShard> pieces;
  In grad_scale;
  OptionalIn accepted{};
  AdamW how;

  void check() const {
    constexpr const char* kOp = kSpan.name;
    for (const AdamWShard& piece : pieces) {
      const int64_t n = piece.weight.numel();
      shapes::expect_vector(kOp, "weight", piece.weight, DType::f32, n);
      shapes::expect_vector(kOp, "grad", piece.grad, DType::f32, n);
      shapes::expect_vector(kOp, "m", piece.m, DType::f32, n);
      shapes::expect_vector(kOp, "v", piece.v, DType::f32, n);
      if (piece.model_weight) shapes::expect_vector(kOp, "model_weight", piece.model_weight, DType::bf16, n);
    }
    shapes::expect_vector(kOp, "grad_scale", grad_scale, DType::f32, 1);
    if (accepted) shapes::expect_vector(kOp, "accepted", accepted, DType::f32, 1);
    trivet::check(how.step >= 1, "adamw: step counts from 1");
  }
};

// bins += the exact sum of squares of all xs (fp32), or bins.last() += the count of their non-finite elements.
// bins: [kExactSumBins] int64.
struct SumOfSquares {
  static constexpr SpanInfo kSpan{"sum_of_squares", Category::optimizer};
  List<In> xs;
  InOut bins;

  void check() const {
    for (const Tensor& x : xs) shapes::expect_vector(kSpan.name, "x", x, DType::f32, x.numel());
    shapes::expect_vector(kSpan.name, "bins", bins, DType::i64, kExactSumBins);
  }
};

// norm[0] = multiplier * sqrt(the sum in bins), NaN where an element was not finite; grad_scale[0] = multiplier *
// min(1, max_norm / (norm + 1e-6)), or just multiplier where max_norm <= 0. All [1] fp32. As Megatron clips.
struct ClipScale {
  static constexpr SpanInfo kSpan{"clip_scale", Category::optimizer};
  In bins;
  float multiplier, max_norm;
  Out norm, grad_scale;

  void check() const {
    shapes::expect_vector(kSpan.name, "bins", bins, DType::i64, kExactSumBins);
    shapes::expect_vector(kSpan.name, "norm", norm, DType::f32, 1);
    shapes::expect_vector(kSpan.name, "grad_scale", grad_scale, DType::f32, 1);
  }
};

// ---- whether a step is taken, decided on the device

// accepted[0] = 1, or 0 where one of the numbers is refused. numbers: [n] fp32, accepted: [1] fp32.
struct AcceptStep {
  static constexpr SpanInfo kSpan{"accept_step", Category::optimizer};
  In numbers;
  StepLimits limits;
  Out accepted;

  void check() const {
    trivet::check(numbers.numel() <= static_cast<int64_t>(kStepNumbers), "accept_step: more numbers than limits");
    shapes::expect_vector(kSpan.name, "numbers", numbers, DType::f32, numbers.numel());
    shapes::expect_vector(kSpan.name, "accepted", accepted, DType::f32, 1);
  }
};

// Looks through x where the step is refused for what is not finite, so that a report can name it when the gradients
// are gone: where accepted[0] is 0, found = {index of the first such element or -1, NaNs, infinities, bits of that
// element, bits of the one before it}; else found is left as it is. x: [n] fp32; found: [kNonFiniteNumbers] int64.
struct FindNonFinite {
  static constexpr SpanInfo kSpan{"find_non_finite", Category::optimizer};
  In x, accepted;
  InOut found;

  void check() const {
    shapes::expect_vector(kSpan.name, "x", x, DType::f32, x.numel());
    shapes::expect_vector(kSpan.name, "accepted", accepted, DType::f32, 1);
    shapes::expect_vector(kSpan.name, "found", found, DType::i64, kNonFiniteNumbers);
  }
};

// ---- plain

// x = value. Any dtype.
struct Fill {
  static constexpr SpanInfo kSpan{"fill"};
  Out x;
  float value;

  void check() const { shapes::expect_vector(kSpan.name, "x", x, x.dtype, x.numel()); }
};

// All bytes of all xs = 0. Any dtypes.
struct Clear {
  static constexpr SpanInfo kSpan{"clear"};
  List<Out> xs;

  void check() const {
    for (const Tensor& x : xs)
      if (x.bytes() > 0) shapes::expect_vector(kSpan.name, "x", x, x.dtype, x.numel());
  }
};

// to = from: fp32 to bf16, bf16 to fp32, or a copy.
struct Convert {
  static constexpr SpanInfo kSpan{"convert"};
  In from;
  Out to;

  void check() const {
    shapes::expect_vector(kSpan.name, "to", to, to.dtype, from.numel());
    shapes::expect_vector(kSpan.name, "from", from, from.dtype, from.numel());
    if (from.dtype == to.dtype) return;
    shapes::expect_float(kSpan.name, "from", from);
    shapes::expect_float(kSpan.name, "to", to);
  }
};

// out = a + b. T; out may alias either.
struct Add {
  static constexpr SpanInfo kSpan{"add"};
  In a, b;
  Out out;

  void check() const {
    shapes::expect_float(kSpan.name, "a", a);
    shapes::expect_vector(kSpan.name, "b", b, a.dtype, a.numel());
    shapes::expect_vector(kSpan.name, "out", out, a.dtype, a.numel());
  }
};

}  // namespace op
}  // namespace trivet
