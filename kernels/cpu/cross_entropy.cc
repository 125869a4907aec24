// Softmax cross-entropy over a rank's columns. Logits are by far the largest activation, so each of the two passes
// traverses them once.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/vector.h"

namespace trivet::TRIVET_CPU {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

template <class T>
float maximum(const T* x, int64_t n) {
  Floats m = Floats{} + kMinusInfinity;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) m = larger(load(x + i), m);
  float largest = kMinusInfinity;
  for (int lane = 0; lane < kLanes; ++lane) largest = std::max(largest, m[lane]);
  for (; i < n; ++i) largest = std::max(largest, static_cast<float>(x[i]));
  return largest;
}

// Online softmax over blocks that stay in the L1 cache: the running sum is rescaled only if a block has a new maximum.
template <class T>
void forward_row(const T* logits, int64_t n, float& row_max, float& row_sum) {
  constexpr int64_t kBlock = 2048;
  float max = kMinusInfinity;
  double sum = 0;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const T* const block = logits + begin;
    const int64_t count = std::min(kBlock, n - begin);
    const float block_max = maximum(block, count);
    if (block_max > max) {
      sum *= std::exp(static_cast<double>(max) - block_max);
      max = block_max;
    }
    sum += sum_over(count, [=](auto at) {
      __builtin_prefetch(block + kBlock + at.i);  // fetches the next block while this one is summed
      return exp_of_nonpositive(at.load(block) - max);
    });
  }
  row_max = max;
  row_sum = static_cast<float>(sum);
}

// target: the target's column on this rank; -1 if it is on another rank.
template <class T>
void backward_row(T* logits, int64_t n, int64_t v, int64_t target, float row_max, float row_sum, float scale) {
  const float factor = scale / row_sum;
  float at_target = 0;
  if (target >= 0) at_target = (exp(Floats{} + static_cast<float>(logits[target]) - row_max) * factor)[0];
  for_vectors(n, [=](auto at) { at.store(logits, exp(at.load(logits) - row_max) * factor); });
  if (target >= 0) logits[target] = T(at_target - scale);  // the difference is rounded once
  std::fill(logits + n, logits + v, T(0.0f));
}

}  // namespace

void Kernels::compute(const op::CrossEntropyForward& op) {
  const int64_t n = op.logits.rows(), v = op.logits.cols();
  const int64_t columns = real_columns(op.first_column, op.vocab_size, v);
  dispatch_float(op.logits.dtype, [&]<class T>() {
    for_rows(threads_, n, v, [&](int64_t r) {
      const T* const row = op.logits.as<T>() + r * v;
      const int64_t target = op.targets.as<int32_t>()[r] - op.first_column;
      op.target_logit.as<float>()[r] = target >= 0 && target < columns ? static_cast<float>(row[target]) : 0.0f;
      forward_row(row, columns, op.row_max.as<float>()[r], op.row_sum.as<float>()[r]);
    });
  });
}

void Kernels::compute(const op::CrossEntropyRescale& op) {
  const float* const local = op.row_max.as<float>();
  const float* const global = op.global_max.as<float>();
  float* const sum = op.row_sum.as<float>();
  for_vectors(op.row_max.numel(),
              [=](auto at) { at.store(sum, at.load(sum) * exp(at.load(local) - at.load(global))); });
}

void Kernels::compute(const op::CrossEntropyLoss& op) {
  const float* const row_max = op.row_max.as<float>();
  const float* const row_sum = op.row_sum.as<float>();
  const float* const target_logit = op.target_logit.as<float>();
  const int32_t* const targets = op.targets.as<int32_t>();
  float& loss = *op.loss.as<float>();
  double sum = 0;
  for (int64_t r = 0; r < op.row_max.numel(); ++r)
    if (targets[r] >= 0) sum += std::log(static_cast<double>(row_sum[r])) + row_max[r] - target_logit[r];
  loss = static_cast<float>(loss + op.scale * sum);
}

void Kernels::compute(const op::CrossEntropyBackward& op) {
  const int64_t n = op.logits.rows(), v = op.logits.cols();
  const int64_t columns = real_columns(op.first_column, op.vocab_size, v);
  dispatch_float(op.logits.dtype, [&]<class T>() {
    for_rows(threads_, n, v, [&](int64_t r) {
      const int32_t id = op.targets.as<int32_t>()[r];
      const int64_t target = id - op.first_column;
      backward_row(op.logits.as<T>() + r * v, columns, v, target >= 0 && target < columns ? target : -1,
                   op.row_max.as<float>()[r], op.row_sum.as<float>()[r], id < 0 ? 0 : op.scale);
    });
  });
}

}  // namespace trivet::TRIVET_CPU
