// Copies or adds heads from one view to another, and merges in attention results over more keys.
#include <cmath>
#include <limits>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/vector.h"

namespace trivet::TRIVET_CPU {

void Kernels::compute(const op::CopyHeads& op) {
  const HeadsLayout &from = op.from.layout, &to = op.to.layout;
  dispatch_float(op.from.memory.dtype, [&]<class From>() {
    dispatch_float(op.to.memory.dtype, [&]<class To>() {
      const From* const source = static_cast<const From*>(op.from.data());
      To* const target = static_cast<To*>(op.to.data());
      for_rows(threads_, from.s * from.b, from.heads() * from.d, [&](int64_t r) {
        for (int64_t head = 0; head < from.heads(); ++head) {
          const From* const x = source + from.at(r / from.b, r % from.b, head);
          To* const y = target + to.at(r / to.b, r % to.b, head);
          for_vectors(from.d, [&](auto at) { at.store(y, op.accumulate ? at.load(y) + at.load(x) : at.load(x)); });
        }
      });
    });
  });
}

void Kernels::compute(const op::AttentionMerge& op) {
  const int64_t n = op.more.shape[0], b = op.more.shape[1], heads = op.more_lse.shape[1], s = op.lse.shape[2];
  const int64_t d = op.more.shape[2] / heads;
  dispatch_float(op.more.dtype, [&]<class T>() {
    for_rows(threads_, n * b, heads * d, [&](int64_t r) {
      const int64_t position = r / b, entry = r % b;
      for (int64_t head = 0; head < heads; ++head) {
        float& lse = op.lse.as<float>()[(entry * heads + head) * s + op.first_position + position];
        const float more_lse = op.more_lse.as<float>()[(entry * heads + head) * n + position];
        if (more_lse == -std::numeric_limits<float>::infinity()) continue;
        const float larger = std::max(lse, more_lse);
        const float both = larger + std::log(std::exp(lse - larger) + std::exp(more_lse - larger));
        const float keep = std::exp(lse - both), add = std::exp(more_lse - both);
        const T* const more = op.more.as<T>() + (r * heads + head) * d;
        float* const out = op.out.as<float>() + ((op.first_position * b + r) * heads + head) * d;
        if (keep == 0) for_vectors(d, [&](auto at) { at.store(out, at.load(more) * add); });  // `out` is not read
        else for_vectors(d, [&](auto at) { at.store(out, at.load(out) * keep + at.load(more) * add); });
        lse = both;
      }
    });
  });
}

}  // namespace trivet::TRIVET_CPU
