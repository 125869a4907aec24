// The optimizer's step: acceptance, the search for non-finite elements, and AdamW. AdamW also rounds the new weight
// into the model's weight, so that a single pass covers all of the optimizer's memory.
#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>

#include "base/piece.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/vector.h"

namespace trivet::TRIVET_CPU {
namespace {

constexpr int64_t kSearched = piece(1024, 64);  // elements checked together

bool all_finite(const float* x, int64_t n) {
  uint32_t largest = 0;  // of the magnitudes' bits
  for (int64_t i = 0; i < n; ++i) largest = std::max(largest, std::bit_cast<uint32_t>(x[i]) & 0x7fffffffu);
  return largest < 0x7f800000u;
}

template <bool kModelWeight>
void update(int64_t n, const AdamWConstants& k, float scale, const float* grad, float* weight, float* m, float* v,
            bf16* model_weight) {
  for_vectors(n, [=](auto at) {
    const Floats g = at.load(grad) * scale, w = at.load(weight);
    const Floats m_new = k.beta1 * at.load(m) + k.one_minus_beta1 * g;
    const Floats v_new = k.beta2 * at.load(v) + k.one_minus_beta2 * (g * g);
    const Floats w_new = w - (k.step_size * m_new / (sqrt(v_new) * k.root_correction + k.eps) + k.decay * w);
    at.store(m, m_new);
    at.store(v, v_new);
    at.store(weight, w_new);
    if constexpr (kModelWeight) at.store(model_weight, w_new);
  });
}

}  // namespace

void Kernels::compute(const op::AcceptStep& op) {
  bool passes = true;
  for (int64_t i = 0; i < op.numbers.numel(); ++i) {
    const float x = op.numbers.as<float>()[i];
    passes &= std::isfinite(x) ? x <= op.limits.at_most[static_cast<size_t>(i)] : !op.limits.finite;
  }
  op.accepted.as<float>()[0] = passes ? 1 : 0;
}

void Kernels::compute(const op::FindNonFinite& op) {
  if (op.accepted && op.accepted.as<float>()[0] != 0) return;
  const float* const x = op.x.as<float>();
  int64_t* const found = op.found.as<int64_t>();
  std::atomic_flag lock;
  parallel_for(threads_, op.x.numel(), 16 * kSearched, [&](Range part, int) {
    int64_t mark = 0, nans = 0, infinities = 0;
    for (int64_t begin = part.begin; begin < part.end; begin += kSearched) {
      const int64_t end = std::min(begin + kSearched, part.end);
      if (all_finite(x + begin, end - begin)) continue;
      for (int64_t i = begin; i < end; ++i) {
        if (std::isfinite(x[i])) continue;
        mark = std::max(mark, non_finite_mark(i, std::isinf(x[i])));
        ++(std::isinf(x[i]) ? infinities : nans);
      }
    }
    if (mark == 0) return;
    while (lock.test_and_set(std::memory_order_acquire)) {
    }
    found[0] = std::max(found[0], mark), found[1] += nans, found[2] += infinities;
    lock.clear(std::memory_order_release);
  });
}

void Kernels::compute(const op::AdamWStep& op) {
  if (op.accepted && op.accepted.as<float>()[0] == 0) return;
  AdamW without_decay = op.how;
  without_decay.weight_decay = 0;
  const AdamWConstants with_decay = constants_of(op.how), no_decay = constants_of(without_decay);
  const float scale = op.grad_scale.as<float>()[0];
  const auto size = [&](size_t i) { return op.shards[i].weight.numel(); };
  int64_t n = 0;
  for (size_t i = 0; i < op.shards.size(); ++i) n += size(i);
  parallel_for(threads_, n, 8192, [&](Range part, int) {
    for_slices(op.shards.size(), size, part, [&](size_t i, Range range) {
      const AdamWShard& shard = op.shards[i];
      const AdamWConstants& k = shard.decays ? with_decay : no_decay;
      const auto from = [=](const Tensor& t) { return t.as<float>() + range.begin; };
      if (shard.model_weight)
        update<true>(range.size(), k, scale, from(shard.grad), from(shard.weight), from(shard.m), from(shard.v),
                     shard.model_weight.as<bf16>() + range.begin);
      else
        update<false>(range.size(), k, scale, from(shard.grad), from(shard.weight), from(shard.m), from(shard.v),
                      nullptr);
    });
  });
}

}  // namespace trivet::TRIVET_CPU
