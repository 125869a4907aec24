// Softmax cross-entropy over a rank's columns. Logits are by far the largest activation, so each of the two passes
// goes over them once.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/vector.h"
#include "kernels/op_checks.h"

namespace trivet {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// How many of this rank's v columns are entries of the vocabulary, not padding.
int64_t real_columns(int64_t first_column, int64_t vocab_size, int64_t v) {
  return std::clamp<int64_t>(vocab_size - first_column, 0, v);
}

template <class T>
float maximum(const T* x, int64_t n) {
  Floats m = Floats{} + kMinusInfinity;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const Floats v = load(x + i);
    m = v > m ? v : m;
  }
  float largest = kMinusInfinity;
  for (int lane = 0; lane < kLanes; ++lane) largest = std::max(largest, m[lane]);
  for (; i < n; ++i) largest = std::max(largest, static_cast<float>(x[i]));
  return largest;
}

// Online softmax by blocks that stay in the L1 cache: the running sum is rescaled only where a block has a new maximum.
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
      __builtin_prefetch(block + kBlock + at.i);  // the next block comes from memory while this one is summed
      return exp_of_nonpositive(at.load(block) - max);
    });
  }
  row_max = max;
  row_sum = static_cast<float>(sum);
}

// target: its column on this rank, -1 where it is on another.
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

void CpuOps::cross_entropy_forward(Tensor logits, Tensor targets, int64_t first_column, int64_t vocab_size,
                                   Tensor row_max, Tensor row_sum, Tensor target_logit, Stream& stream) {
  constexpr const char* kOp = "cross_entropy_forward";
  shapes::check_cross_entropy_forward(logits, targets, row_max, row_sum, target_logit);
  const int64_t n = logits.rows(), v = logits.cols();
  stream.run({kOp, Category::compute}, [=, threads = threads_] {
    const int64_t columns = real_columns(first_column, vocab_size, v);
    dispatch_float(logits.dtype, [&]<class T>() {
      parallel_for(threads, n, rows_per_grain(v), [&](Range rows, int) {
        for (int64_t r = rows.begin; r < rows.end; ++r) {
          const T* const row = logits.as<T>() + r * v;
          const int64_t target = targets.as<int32_t>()[r] - first_column;
          target_logit.as<float>()[r] = target >= 0 && target < columns ? static_cast<float>(row[target]) : 0.0f;
          forward_row(row, columns, row_max.as<float>()[r], row_sum.as<float>()[r]);
        }
      });
    });
  });
}

void CpuOps::cross_entropy_rescale(Tensor row_max, Tensor global_max, Tensor row_sum, Stream& stream) {
  constexpr const char* kOp = "cross_entropy_rescale";
  shapes::check_cross_entropy_rescale(row_max, global_max, row_sum);
  const int64_t n = row_max.numel();
  stream.run({kOp, Category::compute}, [=] {
    const float* const local = row_max.as<float>();
    const float* const global = global_max.as<float>();
    float* const sum = row_sum.as<float>();
    for_vectors(n, [=](auto at) { at.store(sum, at.load(sum) * exp(at.load(local) - at.load(global))); });
  });
}

void CpuOps::cross_entropy_loss(Tensor row_max, Tensor row_sum, Tensor target_logit, float scale, Tensor loss,
                                Stream& stream) {
  constexpr const char* kOp = "cross_entropy_loss";
  shapes::check_cross_entropy_loss(row_max, row_sum, target_logit, loss);
  const int64_t n = row_max.numel();
  stream.run({kOp, Category::compute}, [=] {
    double sum = 0;
    for (int64_t r = 0; r < n; ++r)
      sum +=
          std::log(static_cast<double>(row_sum.as<float>()[r])) + row_max.as<float>()[r] - target_logit.as<float>()[r];
    loss.as<float>()[0] = static_cast<float>(loss.as<float>()[0] + scale * sum);
  });
}

void CpuOps::cross_entropy_backward(Tensor logits, Tensor targets, int64_t first_column, int64_t vocab_size,
                                    Tensor row_max, Tensor row_sum, float scale, Stream& stream) {
  constexpr const char* kOp = "cross_entropy_backward";
  shapes::check_cross_entropy_backward(logits, targets, row_max, row_sum);
  const int64_t n = logits.rows(), v = logits.cols();
  stream.run({kOp, Category::compute}, [=, threads = threads_] {
    const int64_t columns = real_columns(first_column, vocab_size, v);
    dispatch_float(logits.dtype, [&]<class T>() {
      parallel_for(threads, n, rows_per_grain(v), [&](Range rows, int) {
        for (int64_t r = rows.begin; r < rows.end; ++r) {
          const int64_t target = targets.as<int32_t>()[r] - first_column;
          backward_row(logits.as<T>() + r * v, columns, v, target >= 0 && target < columns ? target : -1,
                       row_max.as<float>()[r], row_sum.as<float>()[r], scale);
        }
      });
    });
  });
}

}  // namespace trivet
