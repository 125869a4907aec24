// Whether a step is taken: the decision, and where the numbers went wrong.
#include <algorithm>
#include <bit>
#include <cmath>
#include <span>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/op_checks.h"

namespace trivet {

void CpuOps::judge_step(Tensor numbers, const StepLimits& limits, Tensor proceed, Stream& stream) {
  shapes::check_judge_step(numbers, proceed);
  stream.run({"judge_step", Category::optimizer}, [=] {
    bool passes = true;
    for (int64_t i = 0; i < numbers.numel(); ++i) {
      const float x = numbers.as<float>()[i];
      passes &= std::isfinite(x) ? x <= limits.at_most[static_cast<size_t>(i)] : !limits.finite;
    }
    proceed.as<float>()[0] = passes ? 1 : 0;
  });
}

void CpuOps::find_non_finite(Tensor x, Tensor proceed, Tensor found, Stream& stream) {
  shapes::check_find_non_finite(x, proceed, found);
  stream.run({"find_non_finite", Category::optimizer}, [=] {
    if (proceed.as<float>()[0] != 0) return;
    const std::span<const float> numbers(x.as<float>(), static_cast<size_t>(x.numel()));
    const auto first = std::find_if_not(numbers.begin(), numbers.end(), [](float v) { return std::isfinite(v); });
    int64_t* const out = found.as<int64_t>();
    std::fill_n(out, 5, 0);
    out[0] = first == numbers.end() ? -1 : first - numbers.begin();
    if (first == numbers.end()) return;
    out[1] = std::count_if(first, numbers.end(), [](float v) { return std::isnan(v); });
    out[2] = std::count_if(first, numbers.end(), [](float v) { return std::isinf(v); });
    out[3] = std::bit_cast<uint32_t>(*first);
    if (first != numbers.begin()) out[4] = std::bit_cast<uint32_t>(*(first - 1));
  });
}

}  // namespace trivet
