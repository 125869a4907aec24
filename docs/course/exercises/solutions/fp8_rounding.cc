#include "docs/course/exercises/fp8_rounding.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace trivet::exercise {

float round_to_e4m3(float x) {
  if (!std::isfinite(x)) return std::numeric_limits<float>::quiet_NaN();
  const float magnitude = std::min(std::abs(x), 448.0f);
  const float step = std::ldexp(1.0f, std::max(std::ilogb(magnitude), -6) - 3);
  return std::copysign(std::nearbyint(magnitude / step) * step, x);
}

}  // namespace trivet::exercise
