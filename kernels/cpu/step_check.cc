// Whether a step is taken: the decision, and where the numbers went wrong.
#include <algorithm>
#include <bit>
#include <cmath>
#include <span>

#include "kernels/cpu/cpu_ops.h"

namespace trivet {

void CpuOps::compute(const op::AcceptStep& op) {
  bool passes = true;
  for (int64_t i = 0; i < op.numbers.numel(); ++i) {
    const float x = op.numbers.as<float>()[i];
    passes &= std::isfinite(x) ? x <= op.limits.at_most[static_cast<size_t>(i)] : !op.limits.finite;
  }
  op.accepted.as<float>()[0] = passes ? 1 : 0;
}

void CpuOps::compute(const op::FindNonFinite& op) {
  if (op.accepted.as<float>()[0] != 0) return;
  const std::span<const float> numbers(op.x.as<float>(), static_cast<size_t>(op.x.numel()));
  const auto first = std::find_if_not(numbers.begin(), numbers.end(), [](float v) { return std::isfinite(v); });
  int64_t* const out = op.found.as<int64_t>();
  std::fill_n(out, kNonFiniteNumbers, 0);
  out[0] = first == numbers.end() ? -1 : first - numbers.begin();
  if (first == numbers.end()) return;
  out[1] = std::count_if(first, numbers.end(), [](float v) { return std::isnan(v); });
  out[2] = std::count_if(first, numbers.end(), [](float v) { return std::isinf(v); });
  out[3] = std::bit_cast<uint32_t>(*first);
  if (first != numbers.begin()) out[4] = std::bit_cast<uint32_t>(*(first - 1));
}

}  // namespace trivet
