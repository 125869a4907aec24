// The ops of a step outside a model's layers: the loss, the optimizer, step acceptance, and simple elementwise ops. The
// conventions of their contracts are in kernels/ops.h; check() is the contract's shapes and types as code.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/base/trace.h"
#include "kernels/op_fields.h"
#include "kernels/shapes.h"

namespace trivet {

struct AdamW {
  float learning_rate = 0, beta1 = 0.9f, beta2 = 0.999f, eps = 1e-8f, weight_decay = 0;
  int64_t step = 1;  // counts from 1: bias correction by 1 - beta^step
};

// The factors of an AdamW step, computed once in double: the same for every back end.
struct AdamWConstants {
  float beta1, one_minus_beta1, beta2, one_minus_beta2, eps;
  float step_size;        // learning rate / (1 - beta1^step)
  float root_correction;  // 1 / sqrt(1 - beta2^step)
  float decay;            // learning rate * weight decay
};

inline AdamWConstants constants_of(const AdamW& how) {
  const double step = static_cast<double>(how.step);
  const double correction1 = 1.0 - std::pow(static_cast<double>(how.beta1), step);
  const double correction2 = 1.0 - std::pow(static_cast<double>(how.beta2), step);
  return {.beta1 = how.beta1,
          .one_minus_beta1 = static_cast<float>(1.0 - static_cast<double>(how.beta1)),
          .beta2 = how.beta2,
          .one_minus_beta2 = static_cast<float>(1.0 - static_cast<double>(how.beta2)),
          .eps = how.eps,
          .step_size = static_cast<float>(how.learning_rate / correction1),
          .root_correction = static_cast<float>(1.0 / std::sqrt(correction2)),
          .decay = static_cast<float>(static_cast<double>(how.learning_rate) * how.weight_decay)};
}

// n elements of the optimizer's state, all [n] fp32 except model_weight.
struct AdamWShard {
  InOut weight;
  In grad;
  InOut m, v;                    // moments
  OptionalInOut model_weight{};  // [n] bf16, receives the rounded weight
  bool decays = true;            // else the weight decay is 0
};

// An exact sum of squares: 64-bit counters on a fixed grid of 28-bit bins, from 2^-308 up (kernels/exact_sum.h). The
// sum is exact, so its bits do not depend on the order of the terms or on the number of ranks.
inline constexpr int64_t kExactSumBins = 24;

// Limits on a step's numbers, at most kStepNumbers of them.
inline constexpr size_t kStepNumbers = 4;
struct StepLimits {
  std::array<float, kStepNumbers> at_most;  // a finite number above it is rejected; +inf: no limit
  bool finite = true;                       // a number that is not finite is rejected
};

// The factor that turns sums over `labels` labels of weight 1 / labels into means over those that count; 0 if none
// do.
TRIVET_HOST_DEVICE inline double counted_share(double missing, double labels) {
  return missing < labels ? labels / (labels - missing) : 0;
}

// FindNonFinite's report of the first element that is not finite: larger for an earlier element. 0: none.
inline constexpr int64_t kNonFiniteNumbers = 3;
TRIVET_HOST_DEVICE constexpr int64_t non_finite_mark(int64_t element, bool infinite) {
  return (int64_t{1} << 62) - 2 * element - (infinite ? 1 : 0);
}
constexpr int64_t element_of_mark(int64_t mark) { return ((int64_t{1} << 62) - mark) / 2; }
constexpr bool infinite_of_mark(int64_t mark) { return mark % 2 != 0; }

// The number of a rank's v columns, from first_column on, that are vocabulary entries and not padding.
constexpr int64_t real_columns(int64_t first_column, int64_t vocab_size, int64_t v) {
  return std::clamp<int64_t>(vocab_size - first_column, 0, v);
}

namespace op {

// ---- softmax cross-entropy in the steps that a vocabulary partitioned over ranks requires (Shoeybi et al. 2019,
// section 3)

// One pass over this rank's columns. logits: [n, v] T, whose column j is vocabulary entry first_column + j; entries
// from `vocab_size` on are padding and ignored. targets: [n] int32. Outputs, [n] fp32: row_max (-inf if all
// columns are padding), row_sum = sum of exp(logit - row_max), target_logit (0 if the target is on another rank).
// A row whose target is below 0 is ignored: it has no loss and a gradient of 0.
// With `gradient`, which must be the logits: also runs CrossEntropyBackward, with these row_max and row_sum and the
// same bits as a separate op; on GPUs it may use the logits that this pass left in shared memory.
struct CrossEntropyForward {
  static constexpr SpanInfo kSpan{"cross_entropy_forward"};
  In logits, targets;
  int64_t first_column, vocab_size;
  Out row_max, row_sum, target_logit;
  OptionalInOut gradient{};
  float scale = 1;  // of the gradient

  void check(const Expect& expect) const {
    expect.floats("logits", logits);
    const int64_t n = logits.rows();
    expect.vector("targets", targets, DType::i32, n);
    expect.vectors(DType::f32, n, {{"row_max", row_max}, {"row_sum", row_sum}, {"target_logit", target_logit}});
    if (gradient) expect.like("gradient", gradient, logits);
    if (gradient && gradient.data != logits.data) fail("cross_entropy_forward: the gradient takes the logits' place");
  }
};

// row_sum *= exp(row_max - global_max): rescales from this rank's maximum to that of all ranks. [n] fp32.
struct CrossEntropyRescale {
  static constexpr SpanInfo kSpan{"cross_entropy_rescale"};
  In row_max, global_max;
  InOut row_sum;

  void check(const Expect& expect) const {
    expect.vectors(DType::f32, row_max.numel(),
                   {{"row_max", row_max}, {"global_max", global_max}, {"row_sum", row_sum}});
  }
};

// loss[0] += scale * sum over rows that count, in double, of log(row_sum) + row_max - target_logit. loss: [1] fp32.
struct CrossEntropyLoss {
  static constexpr SpanInfo kSpan{"cross_entropy_loss"};
  In targets, row_max, row_sum, target_logit;
  float scale;
  InOut loss;

  void check(const Expect& expect) const {
    const int64_t n = targets.numel();
    expect.vector("targets", targets, DType::i32, n);
    expect.vectors(DType::f32, n, {{"row_max", row_max}, {"row_sum", row_sum}, {"target_logit", target_logit}});
    expect.vector("loss", loss, DType::f32, 1);
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

  void check(const Expect& expect) const {
    expect.floats("logits", logits);
    const int64_t n = logits.rows();
    expect.vector("targets", targets, DType::i32, n);
    expect.vectors(DType::f32, n, {{"row_max", row_max}, {"row_sum", row_sum}});
  }
};
// The backward op that a CrossEntropyForward with a gradient includes.
inline CrossEntropyBackward backward_of(const CrossEntropyForward& op) {
  return {op.gradient, op.targets, op.first_column, op.vocab_size, op.row_max, op.row_sum, op.scale};
}

// ---- optimizer

// AdamW with decoupled decay (Loshchilov, Hutter 2019), on all shards in one call:
//   g = grad * grad_scale[0];  weight -= lr * (m^ / (sqrt(v^) + eps) + weight_decay * weight)
// grad_scale: [1] fp32. accepted: [1] fp32; if it is 0, nothing is written. Both are read on the device. How
// elements are split into shards does not change the result by a single bit.
struct AdamWStep {
  static constexpr SpanInfo kSpan{"adamw", Category::optimizer};
  List<AdamWShard> shards;
  In grad_scale;
  OptionalIn accepted{};
  AdamW how;

  void check(const Expect& expect) const {
    for (const AdamWShard& shard : shards) {
      const int64_t n = shard.weight.numel();
      expect.vectors(DType::f32, n, {{"weight", shard.weight}, {"grad", shard.grad}, {"m", shard.m}, {"v", shard.v}});
      if (shard.model_weight) expect.vector("model_weight", shard.model_weight, DType::bf16, n);
    }
    expect.vector("grad_scale", grad_scale, DType::f32, 1);
    if (accepted) expect.vector("accepted", accepted, DType::f32, 1);
    trivet::check(how.step >= 1, "adamw: step counts from 1");
  }
};

// bins += the exact sum of squares of all xs (fp32); the last bin += the count of their non-finite elements.
// bins: [kExactSumBins] int64.
struct SumOfSquares {
  static constexpr SpanInfo kSpan{"sum_of_squares", Category::optimizer};
  List<In> xs;
  InOut bins;

  void check(const Expect& expect) const {
    for (const Tensor& x : xs) expect.vector("x", x, DType::f32, x.numel());
    expect.vector("bins", bins, DType::i64, kExactSumBins);
  }
};

// norm[0] = multiplier * sqrt(the sum in bins), NaN if an element was not finite; grad_scale[0] = multiplier *
// min(1, max_norm / (norm + 1e-6)), or just multiplier if max_norm <= 0. Both [1] fp32. Clips as Megatron does.
struct ClipScale {
  static constexpr SpanInfo kSpan{"clip_scale", Category::optimizer};
  In bins;
  float multiplier, max_norm;
  Out norm, grad_scale;

  void check(const Expect& expect) const {
    expect.vector("bins", bins, DType::i64, kExactSumBins);
    expect.vectors(DType::f32, 1, {{"norm", norm}, {"grad_scale", grad_scale}});
  }
};

// numbers[i] *= f, grad_scale[0] = f * min(1, max_norm / (f * norm[0] + 1e-6)), as op::ClipScale, with f =
// counted_share(missing[0], labels). numbers: [n] fp32, the others [1] fp32.
struct CountLabels {
  static constexpr SpanInfo kSpan{"count_labels", Category::optimizer};
  In missing, norm;
  int64_t labels;
  float max_norm;
  InOut numbers;
  Out grad_scale;

  void check(const Expect& expect) const {
    expect.vectors(DType::f32, 1, {{"missing", missing}, {"norm", norm}, {"grad_scale", grad_scale}});
    expect.vector("numbers", numbers, DType::f32, numbers.numel());
  }
};

// ---- whether a step is taken, decided on the device

// accepted[0] = 1, or 0 if one of the numbers is rejected. numbers: [n] fp32, accepted: [1] fp32.
struct AcceptStep {
  static constexpr SpanInfo kSpan{"accept_step", Category::optimizer};
  In numbers;
  StepLimits limits;
  Out accepted;

  void check(const Expect& expect) const {
    trivet::check(numbers.numel() <= static_cast<int64_t>(kStepNumbers), "accept_step: more numbers than limits");
    expect.vector("numbers", numbers, DType::f32, numbers.numel());
    expect.vector("accepted", accepted, DType::f32, 1);
  }
};

// Searches x for elements that are not finite, so that a report can name them after x is overwritten: found[0] = the
// larger of itself and non_finite_mark() of the first one, found[1] += NaNs, found[2] += infinities. Results accumulate
// over searches, and `found` must be 0 before the first. accepted: [1] fp32 (null: 0); if it is not 0, nothing is
// searched. x: [n] fp32, n < 2^61; found: [kNonFiniteNumbers] int64.
struct FindNonFinite {
  static constexpr SpanInfo kSpan{"find_non_finite", Category::optimizer};
  In x;
  OptionalIn accepted{};
  InOut found;

  void check(const Expect& expect) const {
    expect.vector("x", x, DType::f32, x.numel());
    if (accepted) expect.vector("accepted", accepted, DType::f32, 1);
    expect.vector("found", found, DType::i64, kNonFiniteNumbers);
  }
};

// ---- elementwise

// x = value. Any dtype.
struct Fill {
  static constexpr SpanInfo kSpan{"fill"};
  Out x;
  float value;

  void check(const Expect& expect) const { expect.vector("x", x, x.dtype, x.numel()); }
};

// All bytes of all xs = 0. Any dtypes.
struct Clear {
  static constexpr SpanInfo kSpan{"clear"};
  List<Out> xs;

  void check(const Expect& expect) const {
    for (const Tensor& x : xs)
      if (x.bytes() > 0) expect.vector("x", x, x.dtype, x.numel());
  }
};

// to = from: fp32 to bf16, bf16 to fp32, or a copy.
struct Convert {
  static constexpr SpanInfo kSpan{"convert"};
  In from;
  Out to;

  void check(const Expect& expect) const {
    expect.vector("to", to, to.dtype, from.numel());
    expect.vector("from", from, from.dtype, from.numel());
    if (from.dtype == to.dtype) return;
    expect.floats("from", from);
    expect.floats("to", to);
  }
};

// out = a + b. T; out may alias either.
struct Add {
  static constexpr SpanInfo kSpan{"add"};
  In a, b;
  Out out;

  void check(const Expect& expect) const {
    expect.floats("a", a);
    expect.vectors(a.dtype, a.numel(), {{"b", b}, {"out", out}});
  }
};

}  // namespace op
}  // namespace trivet
