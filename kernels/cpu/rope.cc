// Rotary position embeddings: the table of angles, and the rotation of queries and keys.
#include <cmath>
#include <vector>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/vector.h"

namespace trivet::TRIVET_CPU {

void Kernels::compute(const op::RotaryTable& op) {
  const int64_t half = op.rotary.width / 2;
  std::vector<double> frequencies;
  for (int64_t i = 0; i < half; ++i) frequencies.push_back(rotary_frequency(op.rotary, i));
  for_rows(threads_, op.table.rows(), 64 * half, [&](int64_t position) {  // about 64 operations per angle
    float* const row = op.table.as<float>() + position * 2 * half;
    for (int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(op.first + position) * frequencies[static_cast<size_t>(i)];
      row[i] = static_cast<float>(std::cos(angle));
      row[half + i] = static_cast<float>(std::sin(angle));
    }
  });
}

void Kernels::compute(const op::Rope& op) {
  const int64_t half = op.table.cols() / 2, b = op.q.layout.b;
  const float sign = op.inverse ? -1 : 1;
  dispatch_float(op.q.memory.dtype, [&]<class T>() {
    for_rows(threads_, op.q.layout.s * b, (op.q.layout.heads() + op.k.layout.heads()) * 2 * half, [&](int64_t r) {
      const int64_t row = op.ids ? op.ids.as<int32_t>()[r] : r / b;
      const float *const cosines = op.table.as<float>() + row * 2 * half, *const sines = cosines + half;
      for (const HeadsOf<InOut>* const heads : {&op.q, &op.k})
        for (int64_t head = 0; head < heads->layout.heads(); ++head) {
          T *const first = static_cast<T*>(heads->data()) + heads->layout.at(r / b, r % b, head), *const second =
                                                                                                      first + half;
          for_vectors(half, [=](auto at) {
            const Floats c = at.load(cosines), s = at.load(sines) * sign, x = at.load(first), y = at.load(second);
            at.store(first, x * c - y * s);
            at.store(second, y * c + x * s);
          });
        }
    });
  });
}

}  // namespace trivet::TRIVET_CPU
